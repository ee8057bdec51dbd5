#ifndef ONNXGRAD_ONNX_DECLARED_SHAPES_H_
#define ONNXGRAD_ONNX_DECLARED_SHAPES_H_

#include <functional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "ir/builder.h"
#include "ir/graph.h"
#include "opdef/registry.h"

// Shapes that a file declares for values that nodes compute, often those of the exported example:
// the shape of a Reshape may be fed, the batch may be another one. So such a declaration only
// completes what follows from the inputs, and only as far as it holds for whatever is fed:
//
//   rank              where none is inferred
//   number            where the inputs have fixed sizes, and no fed value can determine a size
//   name              of sizes of inputs ("N", "N*12"): as declared; any other one is equal to
//   itself
//                     only, as exporters use one name for several sizes

namespace onnxgrad::onnx_io {

class DeclaredShapes {
 public:
  /// `graph`: the main graph. An unknown dimension of an input (an unnamed batch) becomes a symbol,
  /// so that it is the same wherever it reappears: gradients then need no comparison of shapes at
  /// run time.
  DeclaredShapes(const opdef::OpRegistry& registry, ir::Graph& graph);

  /// Calls `infer`, which sets the types of `outputs`, without their declared shapes, and completes
  /// these types. `outputs` are those of a node, which `infer` may replace by others. If it throws,
  /// the types are the declared ones.
  void complete(const std::vector<ir::Value*>& outputs, const std::function<void()>& infer);

  /// Forgets the declared sizes of the inputs of a Loop's, Scan's or SequenceMap's body that the
  /// node's inputs do not confirm for every iteration.
  void open_formals(const ir::Node& node, ir::Graph& body) const;

 private:
  bool is_relied_on(const ir::Node& node, const ir::Value& output);
  bool is_fed(const ir::Value* value);
  void complete(ir::Type& type, const ir::Type& declared, bool is_relied_on, const ir::Value& value,
                bool is_element);
  bool is_of_inputs(const std::string& symbol) const;
  ir::Dim completed(const ir::Dim& declared, bool is_relied_on, const ir::Value& value,
                    std::size_t axis, bool is_element);

  const opdef::OpRegistry& registry_;
  const ir::Graph& graph_;
  std::unordered_set<std::string> of_inputs_;             // symbols of input sizes
  std::unordered_map<std::string, std::string> used_by_;  // other symbols: value and axis
  std::unordered_map<const ir::Value*, bool> is_fed_;
};

}  // namespace onnxgrad::onnx_io

#endif  // ONNXGRAD_ONNX_DECLARED_SHAPES_H_
