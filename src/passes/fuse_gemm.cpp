#include "passes/fuse_gemm.h"

#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "opdef/fused.h"
#include "passes/candidate.h"
#include "passes/passes.h"
#include "passes/rewriter.h"

// Pattern: ai.onnx MatMul, Gemm, and Transpose [1, 0] before them.

namespace onnxgrad::passes {
namespace {

struct Operand {
  ir::Value* value;
  bool transposed;
};

bool is_matrix_transpose(const ir::Value* value) {
  const ir::Node* node = value->producer;
  if (node == nullptr || node->op_type != "Transpose" || !node->domain.empty()) return false;
  return value->type.rank() == 2 &&
         node->ints_attribute("perm", {1, 0}) == std::vector<std::int64_t>{1, 0};
}

Operand strip_transpose(ir::Value* value, bool transposed) {
  while (is_matrix_transpose(value)) {
    value = value->producer->inputs[0];
    transposed = !transposed;
  }
  return {value, transposed};
}

bool has_kernel_type(const ir::Node& node) {
  const ir::Value* output = node.outputs[0];
  const bool is_float =
      output->dtype() == DataType::kFloat32 || output->dtype() == DataType::kFloat64;
  return is_float && output->type.static_dims() && node.inputs[0]->type.static_dims() &&
         node.inputs[1]->type.static_dims();
}

bool is_matmul(const ir::Node& node) {
  return node.domain.empty() && node.op_type == "MatMul" && has_kernel_type(node) &&
         node.inputs[0]->type.rank() >= 2 && node.inputs[1]->type.rank() == 2;
}

bool is_gemm(const ir::Node& node) {
  return node.domain.empty() && node.op_type == "Gemm" && has_kernel_type(node);
}

// The product; that of a Gemm as y = alpha A B + beta C, the scaling and the sum as element-wise
// nodes that later passes fuse.
void rewrite(Rewriter& out, ir::Graph& graph, const ir::Node& node, ir::Node gemm) {
  ir::Value* result = node.outputs[0];
  ir::Value* last = out.emit(gemm.domain, gemm.op_type, std::move(gemm.inputs), result->type,
                             std::move(gemm.attributes), node.name);
  if (node.op_type == "Gemm") {
    const auto scaled = [&](ir::Value* x, float factor) {
      if (factor == 1.0F) return x;
      ir::Value* constant =
          graph.add_initializer("factor", Tensor::scalar_of(result->dtype(), factor));
      return out.emit("", "Mul", {x, constant}, x->type, {}, node.name);
    };
    last = scaled(last, node.float_attribute("alpha"));
    const float beta = node.float_attribute("beta");
    if (ir::Value* c = node.input(2); c != nullptr && beta != 0.0F) {
      last = out.emit("", "Add", {last, scaled(c, beta)}, result->type, {}, node.name);
    }
  }
  Rewriter::take_over(result, last);
}

}  // namespace

std::optional<ir::Node> gemm_of(const ir::Node& node) {
  if (!is_matmul(node) && !is_gemm(node)) return std::nullopt;
  const bool is_general = node.op_type == "Gemm";
  const bool is_matrix = node.inputs[0]->type.rank() == 2;
  Operand a{node.inputs[0], is_general && node.int_attribute("transA") != 0};
  if (is_matrix) a = strip_transpose(a.value, a.transposed);
  const Operand b =
      strip_transpose(node.inputs[1], is_general && node.int_attribute("transB") != 0);
  const opdef::Gemm gemm{.transpose_a = a.transposed, .transpose_b = b.transposed};
  return candidate(opdef::kGemm, {a.value, b.value}, {node.outputs[0]}, gemm.attributes(),
                   node.name);
}

bool fuse_gemm(ir::Graph& graph, const PassContext& context) {
  bool changed = false;
  Rewriter out(graph);
  for (ir::Node* node : out.before()) {
    auto gemm = gemm_of(*node);
    if (!gemm || !context.prefers(*gemm)) {
      out.keep(node);
      continue;
    }
    rewrite(out, graph, *node, *std::move(gemm));
    changed = true;
  }
  out.finish();
  if (changed) ir::eliminate_dead_nodes(graph);
  return changed;
}

}  // namespace onnxgrad::passes
