#ifndef ONNXGRAD_IR_ORIGIN_H_
#define ONNXGRAD_IR_ORIGIN_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace onnxgrad::ir {

/// The place in the user's file of a weight of the working graph, with the exact inverse:
/// element i of the stored tensor = factor[i] * weight[index[i]].
/// An empty `index` is the identity: the stored tensor has the weight's dtype, shape and order.
/// Weights of subgraphs and of functions' bodies become initializers of the main graph; `function`
/// and `path` then specify where they were.
struct WeightOrigin {
  enum class Kind {
    kInitializer,   ///< `name` is the initializer
    kConstantNode,  ///< `name` is the output of a Constant node, `attribute` holds the value
    kAttribute,     ///< `name` is the first output of the node that holds `attribute`
    kDefinition,    ///< nowhere: a constant of the definition of an operator
  };
  Kind kind = Kind::kInitializer;
  std::string name = {};
  std::string attribute = {};
  std::vector<std::int64_t> index = {};
  std::vector<float> factor = {};
  /// "domain:name:overload" of the function; empty: the main graph.
  std::string function = {};
  /// Path to the subgraph, outermost first: (first output of the node, attribute with the
  /// subgraph).
  std::vector<std::pair<std::string, std::string>> path = {};
};

}  // namespace onnxgrad::ir

#endif  // ONNXGRAD_IR_ORIGIN_H_
