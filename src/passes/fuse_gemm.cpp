#include <cstdint>
#include <optional>
#include <vector>

#include "opdef/fused.h"
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

ir::Value* emit_matmul(Rewriter& out, const Operand& a, const Operand& b, const ir::Type& type,
                       std::string_view hint) {
  const opdef::Gemm gemm{.transpose_a = a.transposed, .transpose_b = b.transposed};
  return out.emit(ir::kFusedDomain, opdef::kGemm, {a.value, b.value}, type, gemm.attributes(),
                  hint);
}

bool is_matmul(const ir::Node& node) {
  return node.domain.empty() && node.op_type == "MatMul" && has_kernel_type(node) &&
         node.inputs[0]->type.rank() >= 2 && node.inputs[1]->type.rank() == 2;
}

bool is_gemm(const ir::Node& node) {
  return node.domain.empty() && node.op_type == "Gemm" && has_kernel_type(node);
}

void rewrite_matmul(Rewriter& out, const ir::Node& node) {
  const bool is_matrix = node.inputs[0]->type.rank() == 2;
  const Operand a =
      is_matrix ? strip_transpose(node.inputs[0], false) : Operand{node.inputs[0], false};
  const Operand b = strip_transpose(node.inputs[1], false);
  ir::Value* result = node.outputs[0];
  Rewriter::take_over(result, emit_matmul(out, a, b, result->type, node.name));
}

// y = alpha A B + beta C, the scaling and the sum as element-wise nodes that later passes fuse.
void rewrite_gemm(Rewriter& out, ir::Graph& graph, const ir::Node& node) {
  const Operand a = strip_transpose(node.inputs[0], node.int_attribute("transA") != 0);
  const Operand b = strip_transpose(node.inputs[1], node.int_attribute("transB") != 0);
  ir::Value* result = node.outputs[0];
  const auto scaled = [&](ir::Value* x, float factor) {
    if (factor == 1.0F) return x;
    ir::Value* constant =
        graph.add_initializer("factor", Tensor::scalar_of(result->dtype(), factor));
    return out.emit("", "Mul", {x, constant}, x->type, {}, node.name);
  };
  const float beta = node.float_attribute("beta");
  ir::Value* last =
      scaled(emit_matmul(out, a, b, result->type, node.name), node.float_attribute("alpha"));
  if (ir::Value* c = node.input(2); c != nullptr && beta != 0.0F) {
    last = out.emit("", "Add", {last, scaled(c, beta)}, result->type, {}, node.name);
  }
  Rewriter::take_over(result, last);
}

}  // namespace

bool fuse_gemm(ir::Graph& graph, const PassContext&) {
  bool changed = false;
  Rewriter out(graph);
  for (ir::Node* node : out.before()) {
    if (is_matmul(*node)) {
      rewrite_matmul(out, *node);
      changed = true;
    } else if (is_gemm(*node)) {
      rewrite_gemm(out, graph, *node);
      changed = true;
    } else {
      out.keep(node);
    }
  }
  out.finish();
  if (changed) ir::eliminate_dead_nodes(graph);
  return changed;
}

}  // namespace onnxgrad::passes
