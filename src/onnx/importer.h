#ifndef ONNXGRAD_ONNX_IMPORTER_H_
#define ONNXGRAD_ONNX_IMPORTER_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ir/graph.h"
#include "onnx/tensor_message.h"
#include "onnxgrad/error.h"

// Conversion of a serialized ModelProto to a graph, with every check that needs names: the result
// has unique, defined values in topological order and well-formed attributes.

namespace onnxgrad::onnx_io {

/// The bytes of a message that is passed through unread. protobuf must accept them as a `Message`
/// too, since the files we write contain them. `what` names it. Throws: ModelError.
template <class Message>
std::string opaque(std::string_view bytes, const char* what) {
  Message message;
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    throw ModelError({.what = std::string("the bytes of ") + what + " are damaged",
                      .hint = "Fetch or export the model again."});
  }
  return std::string(bytes);
}

/// Builds a graph from messages. Start reading at import_model().
class Importer {
 public:
  explicit Importer(TensorDecoder tensors) : tensors_(std::move(tensors)) {}

  /// Imports a model. Throws: ModelError, ShapeError (dimensions of types and tensors),
  /// DeviceError.
  ir::Model import_model(std::string_view bytes);
  /// Imports a single FunctionProto. With `may_lack_outputs`, outputs that the body does not
  /// compute are nullptr: ONNX makes such bodies for nodes that do not use them.
  ir::Function import_function(std::string_view bytes, bool may_lack_outputs = false);
  /// Imports a single AttributeProto, without graphs.
  ir::Attribute import_attribute(std::string_view bytes);

 private:
  // A node of the file before its inputs are resolved.
  struct NodeParts {
    ir::Node* node = nullptr;
    std::vector<std::string_view> inputs = {};
    std::vector<std::string_view> attributes = {};
  };
  // A graph being read; subgraphs look up values here.
  struct Scope {
    ir::Graph* graph = nullptr;
    std::unordered_map<const ir::Node*, std::size_t> position = {};
    std::size_t current = 0;  // the node whose inputs or subgraphs are being resolved
    bool is_sorted = true;
  };
  struct ValueInfo {
    std::string_view name;
    ir::Type type;
    std::string_view doc_string;
    ir::Metadata metadata;
  };

  void read_graph(std::string_view bytes, ir::Graph& graph);
  void read_initializer(std::string_view bytes, ir::Graph& graph);
  void read_sparse_initializer(std::string_view bytes, ir::Graph& graph);
  void read_inputs(std::span<const std::string_view> infos, ir::Graph& graph);
  void read_value_infos(std::span<const std::string_view> infos, ir::Graph& graph,
                        bool are_outputs);
  NodeParts read_node(std::string_view bytes, ir::Graph& graph);
  void read_nodes(std::span<const std::string_view> nodes, ir::Graph& graph);
  void resolve(std::vector<NodeParts>& parts);
  ir::Value* resolve_name(std::string_view name, const NodeParts* reader);
  void note_order(const ir::Value& value);
  ir::Attribute read_attribute(std::string_view bytes, ir::Graph& parent);
  ir::GraphPtr read_subgraph(std::string_view bytes, ir::Graph& parent);
  static ValueInfo read_value_info(std::string_view bytes);

  TensorDecoder tensors_;
  std::vector<Scope> scopes_;               // from the outermost graph inwards
  const ir::Function* function_ = nullptr;  // the one whose body is being read
};

}  // namespace onnxgrad::onnx_io

#endif  // ONNXGRAD_ONNX_IMPORTER_H_
