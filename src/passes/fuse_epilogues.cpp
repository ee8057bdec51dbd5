#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "opdef/expr.h"
#include "passes/passes.h"

// Pattern: onnxgrad.fused.Gemm whose product is read by one onnxgrad.fused.Elementwise only.

namespace onnxgrad::passes {
namespace {

using opdef::ExprOp;
using opdef::ExprProgram;

// An operand that broadcasts to the [M, N] into which the leading axes of `space` collapse.
bool collapses(const ir::Value* operand, const Dims& space) {
  const auto dims = operand->type.static_dims();
  if (!dims) return false;
  if (space.rank() == 2 || dims->num_elements() == 1 || *dims == space) return true;
  return dims->rank() > 0 && dims->num_elements() == (*dims)[dims->rank() - 1];
}

std::size_t find_product(const ir::Node& node,
                         const std::unordered_map<const ir::Value*, int>& uses) {
  for (std::size_t i = 0; i < node.inputs.size(); ++i) {
    const ir::Node* producer = node.inputs[i]->producer;
    if (producer != nullptr && producer->domain == ir::kFusedDomain &&
        producer->op_type == "Gemm" && producer->find_attribute("epilogue") == nullptr &&
        uses.at(node.inputs[i]) == 1) {
      return i;
    }
  }
  return node.inputs.size();
}

// The same program with operand `first` as operand 0.
ExprProgram with_first_operand(ExprProgram program, std::int32_t first) {
  for (opdef::ExprInstruction& instruction : program.instructions) {
    if (instruction.op != ExprOp::kInput) continue;
    if (instruction.a == first) {
      instruction.a = 0;
    } else if (instruction.a < first) {
      ++instruction.a;
    }
  }
  return program;
}

bool fuse(ir::Node& node, const std::unordered_map<const ir::Value*, int>& uses) {
  if (node.domain != ir::kFusedDomain || node.op_type != "Elementwise" ||
      node.outputs.size() != 1 || node.find_attribute("reduce") != nullptr) {
    return false;
  }
  const std::size_t at = find_product(node, uses);
  if (at == node.inputs.size()) return false;
  ir::Value* product = node.inputs[at];
  ir::Value* result = node.outputs[0];
  const bool same_type =
      result->dtype() == product->dtype() &&
      node.int_attribute("compute", 0) == static_cast<std::int64_t>(result->dtype());
  const Dims space = *result->type.static_dims();
  if (!same_type || product->type.static_dims() != space ||
      !std::ranges::all_of(node.inputs, [&](const ir::Value* v) { return collapses(v, space); })) {
    return false;
  }
  const ExprProgram program = with_first_operand(
      ExprProgram::from_ints(node.ints_attribute("program")), static_cast<std::int32_t>(at));
  ir::Node& gemm = *product->producer;
  std::vector<ir::Value*> inputs{gemm.inputs[0], gemm.inputs[1]};
  for (std::size_t i = 0; i < node.inputs.size(); ++i) {
    if (i != at) inputs.push_back(node.inputs[i]);
  }
  node.op_type = "Gemm";
  node.attributes = gemm.attributes;
  node.set_attribute("epilogue", program.to_ints());
  node.inputs = std::move(inputs);
  return true;
}

}  // namespace

bool fuse_epilogues(ir::Graph& graph, const PassContext&) {
  const auto uses = ir::count_uses(graph);
  bool changed = false;
  for (ir::Node* node : graph.nodes) changed = fuse(*node, uses) || changed;
  if (changed) ir::eliminate_dead_nodes(graph);
  return changed;
}

}  // namespace onnxgrad::passes
