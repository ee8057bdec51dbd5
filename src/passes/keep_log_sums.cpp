#include <algorithm>
#include <string_view>
#include <vector>

#include "ir/builder.h"
#include "ir/pattern.h"
#include "ir/uses.h"
#include "opdef/registry.h"
#include "passes/candidate.h"
#include "passes/passes.h"
#include "passes/rewriter.h"

// Pattern: SoftmaxCrossEntropyLoss whose log-probabilities only
// onnxgrad.SoftmaxCrossEntropyLossGrad reads, with one row of scores after another in memory.
// Instead of a tensor of the size of the scores, one number per row is stored,
// log(sum(exp(scores))), with which the gradient computes the probabilities from the scores, in
// their place if nothing else reads them.

namespace onnxgrad::passes {
namespace {

using ir::Node;
using ir::Value;

constexpr std::string_view kLoss = "SoftmaxCrossEntropyLoss";
constexpr std::string_view kLossGradient = "SoftmaxCrossEntropyLossGrad";

// All that read the log-probabilities; empty if one of them is something else.
std::vector<Node*> gradients_of(const Value* log_probabilities, const ir::Uses& uses) {
  std::vector<Node*> gradients;
  for (const ir::Use& use : uses.of(log_probabilities)) {
    if (!is_function(use.node, kLossGradient) || use.input != 1) return {};
    gradients.push_back(use.node);
  }
  return gradients;
}

bool has_rows(const Value* scores) {
  const auto dims = scores->type.static_dims();
  const bool is_real =
      scores->dtype() == DataType::kFloat32 || scores->dtype() == DataType::kFloat64;
  return is_real && dims && dims->rank() >= 2 && dims->product(2, dims->rank()) == 1;
}

// The loss, and a gradient of it, with the sums instead of the log-probabilities.
Node loss_with(const Node& loss, Value* sums) {
  Node with_sums = loss;
  with_sums.domain = ir::kFusedDomain;
  with_sums.outputs[1] = sums;
  return with_sums;
}

Node gradient_with(const Node& gradient, Value* scores, Value* sums) {
  Node with_sums = gradient;
  with_sums.domain = ir::kFusedDomain;
  with_sums.op_type = kLossGradient;
  with_sums.inputs.resize(4, nullptr);
  with_sums.inputs[1] = scores;
  with_sums.inputs.push_back(sums);
  return with_sums;
}

}  // namespace

bool keep_log_sums(ir::Graph& graph, const PassContext& context) {
  if (!any_node(graph, [](const Node& node) { return ir::is_op(&node, kLoss); })) return false;
  const ir::Uses uses(graph);
  bool changed = false;
  for (Node* node : graph.nodes) {
    if (!ir::is_op(node, kLoss) || node->output(1) == nullptr) continue;
    Value* scores = node->inputs[0];
    const Value* labels = node->inputs[1];
    const std::vector<Node*> gradients = gradients_of(node->outputs[1], uses);
    if (gradients.empty() || !has_rows(scores) || !labels->type.static_dims()) continue;
    const ir::Type type = ir::Type::tensor(scores->dtype(), *labels->type.shape);
    Value wanted = candidate_value(type);
    const bool is_preferred = context.prefers(loss_with(*node, &wanted)) &&
                              std::ranges::all_of(gradients, [&](const Node* gradient) {
                                return context.prefers(gradient_with(*gradient, scores, &wanted));
                              });
    if (!is_preferred) continue;
    node->domain = ir::kFusedDomain;
    Value* sums = graph.add_output(node, 1, type, "log_sums");
    for (Node* gradient : gradients) *gradient = gradient_with(*gradient, scores, sums);
    changed = true;
  }
  return changed;
}

}  // namespace onnxgrad::passes
