#ifndef ONNXGRAD_ONNX_SEPARATE_H_
#define ONNXGRAD_ONNX_SEPARATE_H_

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ir/graph.h"
#include "onnx/file_edit.h"

// Separation of a tensor of a file that several nodes read into several tensors.

namespace onnxgrad::onnx_io {

/// A node of the main graph or of one of its subgraphs, and which of its inputs reads a tensor.
struct TensorRead {
  ir::Node* node = nullptr;
  std::size_t input = 0;
  std::string scope;  ///< scope of the node, as FileIndex::scope_of() makes it
};

/// A tensor of the main graph or of one of its subgraphs: an initializer, or a Constant node's.
struct TensorReads {
  const ir::Value* value = nullptr;
  std::string scope;                   ///< scope of the graph that it is in
  std::vector<TensorRead> reads = {};  ///< in the order of the file
  bool is_output = false;              ///< a graph returns it directly
};

/// Collects the tensors that nodes read, by value.
std::unordered_map<const ir::Value*, TensorReads> collect_tensor_reads(const ir::Model& file);

/// A plan to give some reads of a tensor a separate tensor with equal elements.
struct Separation {
  const TensorReads* tensor = nullptr;
  /// Name of each new tensor, unused in the file, and which of TensorReads::reads it is for.
  std::vector<std::pair<std::string, std::vector<std::size_t>>> parts = {};
};

/// Writes new tensors next to old ones into the bytes of a file; everything else is unchanged. A
/// new tensor is stored like the old one: external data is the same bytes of the same file.
class TensorSeparator {
 public:
  /// `bytes` must have been loaded, and live as long as this.
  explicit TensorSeparator(std::string_view bytes) : index_(bytes), edit_(bytes) {}

  /// False for a value that is not a TensorProto in the file (a sparse initializer, floats of a
  /// Constant), and for readers that cannot be found in it.
  bool can_separate(const TensorReads& tensor) const;
  void separate(const Separation& separation);
  std::string apply() const { return edit_.apply(); }

 private:
  struct Place {
    PlacePath graph;          // the graph that it is in
    MessagePlace after = {};  // message that new tensors are written after
    std::string_view tensor;  // the TensorProto
  };
  std::optional<Place> find(const TensorReads& tensor) const;
  void add_inputs(const Separation& separation, const PlacePath& graph);
  void redirect(const TensorRead& read, const std::string& name);
  void append_after(const PlacePath& around, const MessagePlace& place, const std::string& fields);

  FileIndex index_;
  FileEdit edit_;
};

}  // namespace onnxgrad::onnx_io

#endif  // ONNXGRAD_ONNX_SEPARATE_H_
