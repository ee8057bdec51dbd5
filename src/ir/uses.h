#ifndef ONNXGRAD_IR_USES_H_
#define ONNXGRAD_IR_USES_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_set>
#include <vector>

#include "ir/graph.h"
#include "ir/pointer_map.h"

namespace onnxgrad::ir {

/// One place that reads a value.
struct Use {
  Node* node = nullptr;  ///< in the graph or a subgraph; nullptr: an output of one
  int input = 0;         ///< index among the inputs of `node`
};

/// The uses of the values of a graph: a snapshot taken at construction. Values captured by
/// subgraphs are included.
class Uses {
 public:
  explicit Uses(const Graph& graph);

  /// The uses of a value: nodes in graph order, subgraphs after the inputs of their node; then
  /// outputs.
  std::span<const Use> of(const Value* value) const;
  std::size_t count(const Value* value) const { return of(value).size(); }
  /// The first node that reads the value; nullptr if none does.
  Node* first_reader(const Value* value) const;
  /// The node of the value's own graph that is its only reader, once; nullptr if there is none.
  Node* only_reader(const Value* value) const;

 private:
  // The uses of one value, stored consecutively.
  struct Row {
    std::uint32_t begin = 0;
    std::uint32_t count = 0;
  };
  PointerMap<Value, Row> rows_;
  std::vector<Use> uses_;
};

/// The values that `node` reads: its inputs that are present, then what its subgraphs capture.
std::vector<Value*> values_read(const Node& node);
/// `values` and all values that they are computed from.
std::unordered_set<const Value*> ancestors_of(std::span<const Value* const> values);
/// The nodes of `graph` that `values` are computed by, in its order.
std::vector<const Node*> nodes_for(const Graph& graph, std::span<const Value* const> values);

}  // namespace onnxgrad::ir

#endif  // ONNXGRAD_IR_USES_H_
