#include <cstdint>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "ir/uses.h"
#include "opdef/fused.h"
#include "passes/candidate.h"
#include "passes/passes.h"
#include "passes/rewriter.h"
#include "passes/step_patterns.h"

// Pattern: W - a * G and W + a * G, where G is an onnxgrad.fused.Gemm without other readers
// (through views and products with one-element tensors). The update of plain gradient descent
// becomes W += (-a) op(A) op(B): the gradient itself is never stored.

namespace onnxgrad::passes {
namespace {

using ir::Uses;

// scale * rate * product, with `rate` a one-element value or nullptr.
struct Scaled {
  ir::Node* product = nullptr;
  ir::Value* rate = nullptr;
  double scale = 1;
};

std::optional<Scaled> match_scaled(ir::Value* value, const Uses& uses) {
  Scaled result;
  while (uses.count(value) == 1 && value->producer != nullptr) {
    ir::Node* node = value->producer;
    if (opdef::is_plain_matmul(node)) {
      result.product = node;
      return result;
    }
    if (is_standard(node, "Neg")) {
      result.scale = -result.scale;
      value = node->inputs[0];
      continue;
    }
    if (!is_standard(node, "Mul")) return std::nullopt;
    const std::size_t scalar = num_elements(node->inputs[0]) == 1 ? 0 : 1;
    ir::Value* factor = node->inputs[scalar];
    if (num_elements(factor) != 1) return std::nullopt;
    if (const auto constant = constant_number(factor, 1)) {
      result.scale *= *constant;
    } else if (result.rate == nullptr) {
      result.rate = factor;
    } else {
      return std::nullopt;
    }
    value = node->inputs[1 - scalar];
  }
  return std::nullopt;
}

// The weight (unscaled operand) and the scaled product of an update node.
std::optional<std::pair<ir::Value*, Scaled>> match_update(const ir::Node& node, const Uses& uses) {
  const bool is_sub = is_standard(&node, "Sub");
  if (!is_sub && !is_standard(&node, "Add")) return std::nullopt;
  for (const std::size_t side : {std::size_t{1}, std::size_t{0}}) {
    if (is_sub && side == 0) break;
    ir::Value* weight = node.inputs[1 - side];
    if (!weight->type.static_dims() || !node.outputs[0]->type.static_dims()) continue;
    std::optional<Scaled> scaled = match_scaled(node.inputs[side], uses);
    // Only leaves are updated in place: a sum of two products is not an update.
    if (!scaled || weight->producer != nullptr || weight->is_constant()) continue;
    const auto dims = weight->type.static_dims();
    if (dims != node.outputs[0]->type.static_dims() || dims->rank() != 2 ||
        dims != scaled->product->outputs[0]->type.static_dims()) {
      continue;
    }
    if (is_sub) scaled->scale = -scaled->scale;
    return std::pair(weight, *scaled);
  }
  return std::nullopt;
}

std::optional<ir::Node> gemm_update_of(const ir::Node& node, const Uses& uses) {
  const auto update = match_update(node, uses);
  if (!update) return std::nullopt;
  const auto& [weight, scaled] = *update;
  std::vector<ir::Value*> inputs{weight, scaled.product->inputs[0], scaled.product->inputs[1]};
  if (scaled.rate != nullptr) inputs.push_back(scaled.rate);
  const auto gemm = opdef::Gemm::read(*scaled.product);
  const opdef::GemmUpdate fused{
      .transpose_a = gemm.transpose_a, .transpose_b = gemm.transpose_b, .scale = scaled.scale};
  return candidate(opdef::kGemmUpdate, std::move(inputs), {node.outputs[0]}, fused.attributes(),
                   node.name);
}

}  // namespace

bool fuse_gemm_updates(ir::Graph& graph, const PassContext& context) {
  const Uses uses(graph);
  bool changed = false;
  Rewriter out(graph);
  for (ir::Node* node : out.before()) {
    auto update = gemm_update_of(*node, uses);
    if (!update || !context.prefers(*update)) {
      out.keep(node);
      continue;
    }
    ir::Value* result = node->outputs[0];
    ir::Value* updated = out.emit(update->domain, update->op_type, std::move(update->inputs),
                                  result->type, std::move(update->attributes), node->name);
    Rewriter::take_over(result, updated);
    changed = true;
  }
  out.finish();
  if (changed) ir::eliminate_dead_nodes(graph);
  return changed;
}

}  // namespace onnxgrad::passes
