#include <utility>

#include "opdef/registry.h"
#include "ops/quantize/linear_quantization.h"
#include "ops/rules.h"

// MatMulInteger, ConvInteger (ai.onnx 10), QLinearMatMul (21) and QLinearConv (10) as
// floating-point products. Sums of products of 8-bit integers are integers: float32 represents
// those of up to 256 terms exactly, float64 all. Between QuantizeLinear and DequantizeLinear of
// QLinear products gradients go straight through; int32 results carry none.

namespace onnxgrad::ops::integer_matmul_op {
namespace {

DataType exact_type(std::optional<std::int64_t> terms) {
  constexpr std::int64_t kMostInFloat32 = 256;  // 256 * 255 * 255 < 2^24
  return terms && *terms <= kMostInFloat32 ? DataType::kFloat32 : DataType::kFloat64;
}

// Returns x - zero_point in dtype `dtype`; a zero point with several elements is reshaped to
// `shape`.
Value* shifted(GraphBuilder& g, Value* x, Value* zero_point, const std::vector<std::int64_t>& shape,
               DataType dtype) {
  Value* wide = g.cast(x, dtype);
  if (zero_point == nullptr) return wide;
  Value* zero = g.cast(zero_point, dtype);
  const auto rank = known_rank(zero_point);
  if (rank == std::size_t{1} && known_dim(zero_point, 0) != 1) zero = g.reshape(zero, shape);
  return g.sub(wide, zero);
}

std::optional<std::vector<Value*>> lower_matmul_integer(const Node& node, GraphBuilder& g) {
  // Zero points are per row of A and per column of B.
  const DataType dtype = exact_type(known_dim(node.input(0), -1));
  Value* a = shifted(g, node.input(0), node.input(2), {-1, 1}, dtype);
  Value* b = shifted(g, node.input(1), node.input(3), {1, -1}, dtype);
  return {{g.cast(g.matmul(a, b), DataType::kInt32)}};
}

std::vector<Attribute> window_of(const Node& node) {
  std::vector<Attribute> attributes;
  for (const std::string_view name :
       {"auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"}) {
    const ir::AttributeValue* value = node.find_attribute(name);
    if (value != nullptr) attributes.push_back({std::string(name), *value});
  }
  return attributes;
}

// Returns the shape [M, 1, ...] of one element per output channel.
std::optional<std::vector<std::int64_t>> channel_shape(const Value* weight) {
  const auto rank = known_rank(weight);
  if (!rank || *rank == 0) return std::nullopt;
  std::vector<std::int64_t> shape(*rank, 1);
  shape[0] = -1;
  return shape;
}

std::optional<std::vector<Value*>> lower_conv_integer(const Node& node, GraphBuilder& g) {
  const auto shape = channel_shape(node.input(1));
  if (!shape) return std::nullopt;
  std::optional<std::int64_t> terms = 1;
  for (std::size_t i = 1; i < shape->size() && terms; ++i) {
    const auto size = known_dim(node.input(1), static_cast<std::int64_t>(i));
    terms = size && *size < 1 << 20 ? std::optional(*terms * *size) : std::nullopt;
    if (terms && *terms > 1 << 20) terms.reset();
  }
  const DataType dtype = exact_type(terms);
  Value* x = shifted(g, node.input(0), node.input(2), {1}, dtype);
  Value* w = shifted(g, node.input(1), node.input(3), *shape, dtype);
  return {{g.cast(g.op("Conv", {x, w}, window_of(node)), DataType::kInt32)}};
}

// A scale with several elements has one per row of a (axis -2) or column of b (axis -1).
std::optional<std::vector<Value*>> lower_qlinear_matmul(const Node& node, GraphBuilder& g) {
  Value* a = dequantize(g, node.input(0), node.input(1), node.input(2), -2);
  Value* b = dequantize(g, node.input(3), node.input(4), node.input(5), -1);
  return {{quantize(g, g.matmul(a, b), node.input(6), node.input(7), node.input(7)->dtype())}};
}

// The bias is int32 with the scale x_scale w_scale.
std::optional<std::vector<Value*>> lower_qlinear_conv(const Node& node, GraphBuilder& g) {
  Value* x = dequantize(g, node.input(0), node.input(1), node.input(2), 1);
  Value* w = dequantize(g, node.input(3), node.input(4), node.input(5), 0);
  std::vector<Value*> inputs = {x, w};
  if (node.input(8) != nullptr) {
    inputs.push_back(
        g.mul(g.cast_like(node.input(8), node.input(1)), g.mul(node.input(1), node.input(4))));
  }
  Value* y = g.op("Conv", std::move(inputs), window_of(node));
  return {{quantize(g, y, node.input(6), node.input(7), node.input(7)->dtype())}};
}

std::vector<AttributeSpec> window_attributes() {
  using Type = AttributeType;
  return {choice_attribute("auto_pad", {"NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"}),
          {.name = "dilations", .type = Type::kInts},
          {.name = "group",
           .type = Type::kInt,
           .min = 1,
           .max = std::int64_t{1} << 31,
           .default_value = std::int64_t{1}},
          {.name = "kernel_shape", .type = Type::kInts},
          {.name = "pads", .type = Type::kInts},
          {.name = "strides", .type = Type::kInts}};
}

}  // namespace

void register_integer_matmul(opdef::OpRegistry& registry) {
  registry.add({.op_type = "MatMulInteger", .since_version = 10, .lower = lower_matmul_integer});
  registry.add({.op_type = "ConvInteger",
                .since_version = 10,
                .attributes = window_attributes(),
                .lower = lower_conv_integer});
  registry.add({.op_type = "QLinearMatMul", .since_version = 21, .lower = lower_qlinear_matmul});
  registry.add({.op_type = "QLinearConv",
                .since_version = 10,
                .attributes = window_attributes(),
                .lower = lower_qlinear_conv});
}

}  // namespace onnxgrad::ops::integer_matmul_op
