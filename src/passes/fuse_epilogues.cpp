#include <algorithm>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "ir/uses.h"
#include "opdef/fused.h"
#include "opdef/quantized_weight.h"
#include "passes/passes.h"

// Pattern: onnxgrad.fused.Gemm, or QuantizedGemm, whose product is read by one
// onnxgrad.fused.Elementwise only, which has one result, or that and the sums of its columns.

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

// True for a product of a packed matrix without an epilogue.
bool is_quantized_matmul(const ir::Node* node) {
  return opdef::is_fused(node, opdef::kQuantizedGemm) &&
         node->find_attribute("epilogue") == nullptr;
}

std::size_t find_matmul(const ir::Node& node, const ir::Uses& uses) {
  for (std::size_t i = 0; i < node.inputs.size(); ++i) {
    const ir::Value* input = node.inputs[i];
    const ir::Node* producer = input->producer;
    const bool is_matmul = opdef::is_plain_matmul(producer) || is_quantized_matmul(producer);
    if (is_matmul && uses.count(input) == 1) return i;
  }
  return node.inputs.size();
}

// `program` with operand `first` as operand 0.
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

// Whether the second result, and there is no other, is the sum of each column of the first, in its
// type.
bool sums_columns(const ir::Node& node, const opdef::Elementwise& elementwise, const Dims& space) {
  if (node.outputs[1] == nullptr || node.outputs[1]->dtype() != node.outputs[0]->dtype()) {
    return false;
  }
  const auto& results = elementwise.program.results;
  if (elementwise.stored != 1 || results.size() != 2 || results[0] != results[1] ||
      elementwise.folds.front() != opdef::Fold::kSum || elementwise.post || space.rank() < 2) {
    return false;
  }
  const auto& axes = elementwise.reduce_axes;
  for (std::size_t axis = 0; axis + 1 < space.rank(); ++axis) {
    const bool is_summed = std::ranges::find(axes, static_cast<std::int64_t>(axis)) != axes.end();
    if (!is_summed && space[axis] != 1) return false;
  }
  return axes.back() + 1 < static_cast<std::int64_t>(space.rank());
}

// Attributes of `product` with the epilogue.
std::vector<ir::Attribute> attributes_with(const ir::Node& product, ExprProgram epilogue,
                                           bool has_sums) {
  epilogue.results.resize(1);
  const auto completed = [&](auto gemm) {
    gemm.epilogue = std::move(epilogue);
    gemm.sums_columns = has_sums;
    return gemm.attributes();
  };
  if (is_quantized_matmul(&product)) return completed(opdef::QuantizedGemm::read(product));
  return completed(opdef::Gemm::read(product));
}

bool fuse(ir::Node& node, const ir::Uses& uses, const PassContext& context) {
  if (!opdef::is_fused(&node, opdef::kElementwise)) return false;
  const auto elementwise = opdef::Elementwise::read(node);
  const bool has_sums = !elementwise.folds.empty();
  if (node.outputs.size() != (has_sums ? 2 : 1) || node.outputs[0] == nullptr) return false;
  const std::size_t at = find_matmul(node, uses);
  if (at == node.inputs.size()) return false;
  ir::Value* product = node.inputs[at];
  ir::Value* result = node.outputs[0];
  // A product of 16-bit operands may be float32 here, and its result have 16 bits.
  const bool is_narrowed = is_f16(result->dtype()) && product->dtype() == DataType::kFloat32;
  const bool same_type = (result->dtype() == product->dtype() || is_narrowed) &&
                         elementwise.compute == product->dtype();
  const Dims space = result->type.fixed_dims();
  if (has_sums && (is_narrowed || !sums_columns(node, elementwise, space))) return false;
  if (!same_type || product->type.static_dims() != space ||
      !std::ranges::all_of(node.inputs, [&](const ir::Value* v) { return collapses(v, space); })) {
    return false;
  }
  auto completed = attributes_with(
      *product->producer, with_first_operand(elementwise.program, static_cast<std::int32_t>(at)),
      has_sums);
  std::vector<ir::Value*> inputs = product->producer->inputs;
  for (std::size_t i = 0; i < node.inputs.size(); ++i) {
    if (i != at) inputs.push_back(node.inputs[i]);
  }
  const ir::Node* const producer = product->producer;
  if (is_narrowed && !ir::holds_f16(producer->inputs[0])) return false;
  std::string op_type = std::exchange(node.op_type, producer->op_type);
  auto attributes = std::exchange(node.attributes, std::move(completed));
  node.inputs.swap(inputs);
  if (context.prefers(node)) return true;
  node.op_type = std::move(op_type);
  node.attributes = std::move(attributes);
  node.inputs.swap(inputs);
  return false;
}

}  // namespace

bool fuse_epilogues(ir::Graph& graph, const PassContext& context) {
  const ir::Uses uses(graph);
  bool changed = false;
  for (ir::Node* node : graph.nodes) changed = fuse(*node, uses, context) || changed;
  if (changed) ir::eliminate_dead_nodes(graph);
  return changed;
}

}  // namespace onnxgrad::passes
