#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

#include "ir/builder.h"
#include "ir/pattern.h"
#include "ir/uses.h"
#include "opdef/registry.h"
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
// With fewer scores, a step's time is in other things.
constexpr std::int64_t kFewestScores = 1 << 14;

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
  return is_real && dims && dims->rank() >= 2 && dims->product(2, dims->rank()) == 1 &&
         dims->num_elements() >= kFewestScores;
}

}  // namespace

bool keep_log_sums(ir::Graph& graph, const PassContext& /*context*/) {
  if (!any_node(graph, [](const Node& node) { return ir::is_op(&node, kLoss); })) return false;
  const ir::Uses uses(graph);
  bool changed = false;
  for (Node* node : graph.nodes) {
    if (!ir::is_op(node, kLoss) || node->output(1) == nullptr) continue;
    Value* scores = node->inputs[0];
    const Value* labels = node->inputs[1];
    const std::vector<Node*> gradients = gradients_of(node->outputs[1], uses);
    if (gradients.empty() || !has_rows(scores) || !labels->type.static_dims()) continue;
    node->domain = ir::kFusedDomain;
    Value* sums = graph.add_output(node, 1, ir::Type::tensor(scores->dtype(), *labels->type.shape),
                                   "log_sums");
    for (Node* gradient : gradients) {
      gradient->domain = ir::kFusedDomain;
      gradient->op_type = kLossGradient;
      gradient->inputs.resize(4, nullptr);
      gradient->inputs[1] = scores;
      gradient->inputs.push_back(sums);
    }
    changed = true;
  }
  return changed;
}

}  // namespace onnxgrad::passes
