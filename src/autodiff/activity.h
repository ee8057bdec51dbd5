#ifndef ONNXGRAD_AUTODIFF_ACTIVITY_H_
#define ONNXGRAD_AUTODIFF_ACTIVITY_H_

#include <span>
#include <unordered_set>
#include <vector>

#include "ir/graph.h"
#include "opdef/custom_gradients.h"
#include "opdef/registry.h"

namespace onnxgrad::autodiff {

/// The sources of gradient rules.
struct Rules {
  const opdef::OpRegistry& registry;
  const opdef::CustomGradients* custom = nullptr;  ///< null: none

  bool is_custom(const ir::Node& node) const { return custom != nullptr && custom->covers(node); }
  /// True unless the definition declares the gradient to be zero; always for inputs that subgraphs
  /// capture (numbered as in gradient_inputs) and for those of an unknown operator.
  bool can_flow_to(const ir::Node& node, std::size_t i) const;
  /// True if there is a rule that covers input `i`.
  bool has_rule_for(const ir::Node& node, std::size_t i) const;
};

/// The part of a graph that a gradient flows through: values that depend on `wrt` and that
/// `outputs` depend on, along inputs that a gradient can flow to.
class Activity {
 public:
  Activity(const ir::Graph& graph, const Rules& rules, std::span<ir::Value* const> outputs,
           std::span<ir::Value* const> wrt);

  bool is_active(const ir::Value* value) const { return active_.contains(value); }
  /// Nodes with an active output and an active input, in graph order.
  const std::vector<ir::Node*>& nodes() const { return nodes_; }

 private:
  std::unordered_set<const ir::Value*> active_;
  std::vector<ir::Node*> nodes_;
};

/// Whether a value may have a gradient: floating-point, or of unknown type.
bool carries_gradient(const ir::Value* value);

/// The inputs of `node`, then the values that its subgraphs capture.
std::vector<ir::Value*> gradient_inputs(const ir::Node& node);

}  // namespace onnxgrad::autodiff

#endif  // ONNXGRAD_AUTODIFF_ACTIVITY_H_
