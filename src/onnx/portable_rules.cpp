#include "onnx/portable_rules.h"

namespace onnxgrad::onnx_io {
namespace {

using ir::GraphBuilder;
using ir::Value;

// Softplus has a kernel for float32 alone. log(1 + exp(x)) = (x + |x|) / 2 + log(1 + exp(-|x|)),
// where nothing overflows; with 0 as the derivative of |x| at 0 its gradient is right there, too.
Value* softplus(GraphBuilder& g, Value* x) {
  Value* size = g.abs(x);
  Value* bend = g.log(g.add(g.exp(g.neg(size)), g.scalar_like(x, 1)));
  return g.add(g.scale(g.add(x, size), 0.5), bend);
}

}  // namespace

std::optional<std::vector<Value*>> portable_form(const ir::Node& node, GraphBuilder& g) {
  Value* x = node.input(0);
  if (node.op_type != "Softplus" || x == nullptr) return std::nullopt;
  if (!x->type.is_tensor() || x->dtype() != DataType::kFloat64) return std::nullopt;
  return std::vector<Value*>{softplus(g, x)};
}

}  // namespace onnxgrad::onnx_io
