#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "ir/inline.h"
#include "passes/passes.h"

namespace onnxgrad::passes {
namespace {

// A folded value uses memory for the life of the plan; a larger one is cheaper to recompute.
constexpr std::int64_t kMaxFoldedBytes = std::int64_t{1} << 16;

// True also for a value whose size is known only by computing it.
bool can_be_small(const ir::Value* value) {
  const auto dims = value->type.static_dims();
  return !dims || dims->size_bytes(value->dtype()) <= kMaxFoldedBytes;
}

bool is_static(const ir::Node& node) {
  return node.subgraphs().empty() && std::ranges::all_of(node.outputs, [](const ir::Value* output) {
           return output == nullptr ||
                  (output->type.is_tensor() && output->type.has_rank() &&
                   std::ranges::all_of(*output->type.shape, &ir::Dim::is_static));
         });
}

void make_constant(ir::Graph& graph, ir::Value* value, Tensor tensor) {
  value->type = ir::Type::tensor(tensor.dtype(), tensor.dims());
  value->initializer = std::move(tensor);
  value->producer = nullptr;
  graph.initializers.push_back(value);
}

bool can_evaluate(const ir::Node& node, const opdef::OpDef* def) {
  if (def == nullptr || def->is_random || !node.subgraphs().empty()) return false;
  const bool all_known = std::ranges::all_of(
      node.inputs, [](const ir::Value* input) { return input == nullptr || input->is_constant(); });
  return all_known && std::ranges::all_of(node.outputs, [](const ir::Value* output) {
           return output == nullptr || can_be_small(output);
         });
}

bool fold_by_types(ir::Graph& graph, const ir::Node& node, const opdef::OpDef* def) {
  if (def == nullptr || def->fold_types == nullptr) return false;
  std::optional<Tensor> tensor = def->fold_types(node);
  if (!tensor) return false;
  make_constant(graph, node.outputs[0], *std::move(tensor));
  return true;
}

bool fold_by_value(ir::Graph& graph, const ir::Node& node, const opdef::OpDef* def,
                   const opdef::Evaluator& evaluator) {
  if (!can_evaluate(node, def)) return false;
  std::vector<Tensor> inputs;
  inputs.reserve(node.inputs.size());
  for (const ir::Value* input : node.inputs) {
    inputs.push_back(input == nullptr ? Tensor() : input->initializer);
  }
  std::optional<std::vector<Tensor>> results = evaluator.evaluate(node, inputs);
  if (!results) return false;
  for (std::size_t i = 0; i < node.outputs.size(); ++i) {
    if (node.outputs[i] != nullptr) make_constant(graph, node.outputs[i], std::move((*results)[i]));
  }
  return true;
}

// The subgraph that replaces a node whose inputs are all constants.
const ir::Graph* taken_body(const ir::Node& node, const opdef::OpDef* def) {
  if (def == nullptr || def->taken_body == nullptr) return nullptr;
  std::vector<Tensor> inputs;
  for (const ir::Value* input : node.inputs) {
    if (input != nullptr && !input->is_constant()) return nullptr;
    inputs.push_back(input == nullptr ? Tensor() : input->initializer);
  }
  return def->taken_body(node, inputs);
}

}  // namespace

bool fold_constants(ir::Graph& graph, const PassContext& context) {
  std::vector<ir::Node*> stack = std::exchange(graph.nodes, {});
  std::ranges::reverse(stack);
  std::vector<ir::Node*> kept;
  kept.reserve(stack.size());
  bool changed = false;
  while (!stack.empty()) {
    ir::Node* node = stack.back();
    stack.pop_back();
    const opdef::OpDef* def = context.ops.find(*node);
    if (const ir::Graph* body = taken_body(*node, def)) {
      const std::vector<ir::Node*> inner = ir::expand_body(*node, *body);
      stack.insert(stack.end(), inner.rbegin(), inner.rend());
      changed = true;
      continue;
    }
    if (def != nullptr) opdef::complete_attributes(*node, *def);
    const bool is_known = context.inferred != nullptr && context.inferred->contains(node);
    if (!is_known && (!context.is_inferred || !is_static(*node))) context.inferer.infer(*node);
    if (fold_by_types(graph, *node, def) || fold_by_value(graph, *node, def, context.evaluator)) {
      changed = true;
    } else {
      kept.push_back(node);
    }
  }
  graph.nodes = std::move(kept);
  return changed;
}

}  // namespace onnxgrad::passes
