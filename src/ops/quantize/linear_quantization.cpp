#include "ops/quantize/linear_quantization.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "ir/pattern.h"
#include "opdef/function_body.h"
#include "opdef/registry.h"
#include "ops/quantize/quantized_number.h"
#include "ops/quantize/small_types.h"

// QuantizeLinear and DequantizeLinear (ai.onnx 25). Quantized values carry no gradient, so when a
// model is loaded a DequantizeLinear after a QuantizeLinear with equal scale becomes a call of the
// function `FakeQuantize`, whose body is the two nodes: it rounds, and passes gradients straight
// through (Bengio, Leonard and Courville, Estimating or Propagating Gradients Through Stochastic
// Neurons, 2013) where nothing is clipped. The gradient of the scale follows Esser et al., Learned
// Step Size Quantization, 2020. Integers with other floating-point consumers, such as a Cast or a
// DequantizeLinear with another scale, become `QuantizedNumber`: see quantized_number.h. A bias of
// 32 bits, which QuantizeLinear does not make, is `RoundedBias` while it is trained.

namespace onnxgrad::ops {
namespace {

using ir::Attribute;
using opdef::AttributeSpec;
using opdef::FunctionBody;
using opdef::VjpContext;

// Mapping of the elements of a scale to those of x.
struct Groups {
  std::int64_t axis = 0;        // not negative
  std::int64_t block_size = 0;  // 0: one scale per element of the axis
  std::size_t rank = 0;
  bool is_single = false;  // one scale for all
};

Groups groups_of(const Node& node, std::size_t rank, const Value* scale) {
  const auto scale_rank = known_rank(scale);
  Groups groups{.axis = node.int_attribute("axis"),
                .block_size = node.int_attribute("block_size"),
                .rank = rank,
                .is_single = scale_rank == std::size_t{0}};
  if (groups.axis < 0) groups.axis += static_cast<std::int64_t>(rank);
  if (scale_rank == std::size_t{1} && known_dim(scale, 0) == 1 && groups.block_size == 0) {
    groups.is_single = true;
  }
  return groups;
}

// Expands the scale to a shape that broadcasts to x's.
Value* spread_scale(GraphBuilder& g, Value* scale, Value* x, const Groups& groups) {
  if (groups.is_single) return g.reshape(scale, std::vector<std::int64_t>{1});
  Value* ones = g.expand(g.constant(Tensor::scalar(std::uint8_t{1})), shape_value(g, x));
  return g.op("DequantizeLinear", {ones, scale},
              {{"axis", groups.axis}, {"block_size", groups.block_size}});
}

// Sums v, of x's shape, over the elements that share a scale: the result has the shape of `scale`.
Value* sum_groups(GraphBuilder& g, Value* v, Value* scale, const Groups& groups) {
  if (groups.is_single) {
    return g.reshape(g.reduce_sum(v, {}, /*keepdims=*/false), shape_value(g, scale));
  }
  const auto rank = static_cast<std::int64_t>(groups.rank);
  if (groups.block_size == 0) {
    std::vector<std::int64_t> axes;
    for (std::int64_t i = 0; i < rank; ++i) {
      if (i != groups.axis) axes.push_back(i);
    }
    return axes.empty() ? v : g.reduce_sum(v, axes, /*keepdims=*/false);
  }
  Value* blocks = dim_value(g, scale, groups.axis);
  Value* length = g.mul(blocks, g.ints({groups.block_size}));
  const auto size = known_dim(v, groups.axis);
  if (!size || *size % groups.block_size != 0) {  // the last block may be short
    Value* missing = g.sub(length, dim_value(g, v, groups.axis));
    v = g.op("Pad",
             {v, g.concat({g.ints({0}), missing}, 0), g.scalar_like(v, 0), g.ints({groups.axis})});
  }
  std::vector<Value*> shape;
  if (groups.axis > 0) shape.push_back(g.dims_of(scale, 0, groups.axis));
  shape.push_back(blocks);
  shape.push_back(g.ints({groups.block_size}));
  if (groups.axis + 1 < rank) shape.push_back(g.dims_of(scale, groups.axis + 1, rank));
  return g.reduce_sum(g.reshape(v, g.concat(shape, 0)), {groups.axis + 1}, /*keepdims=*/false);
}

// y = (x - zero_point) scale;  dscale = sum of dy (x - zero_point)
std::vector<Value*> dequantize_vjp(VjpContext& ctx, GraphBuilder& g) {
  std::vector<Value*> grads(ctx.num_inputs(), nullptr);
  if (!ctx.needs(1)) return grads;
  Value* scale = ctx.input(1);
  const Groups groups = groups_of(ctx.node(), required_rank(ctx, 0), scale);
  std::vector<Value*> inputs = {ctx.input(0), g.ones_like(scale)};
  if (ctx.input(2) != nullptr) inputs.push_back(ctx.input(2));
  Value* steps = g.op("DequantizeLinear", std::move(inputs), ctx.node().attributes);
  grads[1] = sum_groups(g, g.mul(ctx.cotangent(0), steps), scale, groups);
  return grads;
}

constexpr double kHalfStep = 0.500001;  // half a step plus the rounding of the quotient

// Returns the largest value of a floating-point type of 4 or 8 bits.
double largest_of(DataType dtype) {
  std::array<std::byte, 1> code{};
  store_small(dtype, code.data(), 0, 3e38F, /*saturate=*/true);
  return static_cast<double>(load_small(dtype, code.data(), 0));
}

// y = quantized x:  dx = dy where x is not clipped, else 0;
// dscale = sum of dy (y - x) / scale where x is not clipped, else of dy y / scale.
// Elements that are not clipped move by at most half a step.
std::vector<Value*> fake_quantize_vjp(VjpContext& ctx, GraphBuilder& g) {
  Value* x = ctx.input(0);
  Value* scale = ctx.input(1);
  Value* y = ctx.output(0);
  Value* dy = ctx.cotangent(0);
  const Groups groups = groups_of(ctx.node(), required_rank(ctx, 0), scale);
  Value* step = spread_scale(g, scale, x, groups);
  const auto dtype = static_cast<DataType>(ctx.node().int_attribute("quantized_dtype"));
  Value* is_kept = nullptr;
  if (is_small_float(dtype)) {
    is_kept = g.op("LessOrEqual", {g.abs(x), g.scale(g.abs(step), largest_of(dtype))});
  } else {
    is_kept = g.op("LessOrEqual", {g.abs(g.sub(x, y)), g.scale(g.abs(step), kHalfStep)});
  }
  std::vector<Value*> grads(ctx.num_inputs(), nullptr);
  if (ctx.needs(0)) grads[0] = keep_where(g, is_kept, dy);
  if (ctx.needs(1)) {
    Value* change = g.div(g.sub(y, keep_where(g, is_kept, x)), step);
    grads[1] = sum_groups(g, g.mul(dy, change), scale, groups);
  }
  return grads;
}

// y = float(q), q = x / scale + zero_point rounded and clipped:
// dx = dy / scale where x is not clipped, else 0;  dscale = sum of -dy x / scale^2 there.
std::vector<Value*> quantized_number_vjp(VjpContext& ctx, GraphBuilder& g) {
  const Groups groups = groups_of(ctx.node(), required_rank(ctx, 0), ctx.input(1));
  Value* x = g.cast(ctx.input(0), DataType::kFloat32);
  Value* step = spread_scale(g, g.cast(ctx.input(1), DataType::kFloat32), x, groups);
  Value* steps = g.div(x, step);
  const auto dtype = static_cast<DataType>(ctx.node().int_attribute("quantized_dtype"));
  Value* is_kept = nullptr;
  if (is_small_float(dtype)) {
    is_kept = g.op("LessOrEqual", {g.abs(steps), g.scalar_like(steps, largest_of(dtype))});
  } else {
    Value* rounded = ctx.output(0);
    if (Value* zero_point = ctx.input(2)) {
      Value* zero = g.cast(zero_point, DataType::kFloat32);
      rounded = g.sub(rounded, spread_scale(g, zero, x, groups));
    }
    is_kept = g.op("LessOrEqual", {g.abs(g.sub(steps, rounded)), g.scalar_like(x, kHalfStep)});
  }
  Value* slope = keep_where(g, is_kept, g.div(ctx.cotangent(0), step));
  std::vector<Value*> grads(ctx.num_inputs(), nullptr);
  if (ctx.needs(0)) grads[0] = g.cast_like(slope, ctx.input(0));
  if (ctx.needs(1)) {
    Value* change = g.neg(g.mul(slope, steps));
    grads[1] = g.cast_like(sum_groups(g, change, ctx.input(1), groups), ctx.input(1));
  }
  return grads;
}

// Body of FakeQuantize and of QuantizedNumber.
ir::Function straight_through_body(std::string_view base_name, const std::vector<Value*>& inputs,
                                   const std::vector<Attribute>& attributes) {
  ir::Node node;
  node.attributes = attributes;
  const bool is_number = base_name == "QuantizedNumber";
  const std::int64_t axis = node.int_attribute("axis");
  const std::int64_t block_size = node.int_attribute("block_size");
  const std::int64_t dtype = node.int_attribute("quantized_dtype");
  const std::int64_t saturate = node.int_attribute("saturate");
  const bool has_zero_point = inputs.size() > 2;
  const DataType result = is_number ? DataType::kFloat32 : inputs.at(1)->dtype();
  const auto to = static_cast<std::int64_t>(result);
  FunctionBody f(
      base_name,
      fmt::format("axis{}_block{}_type{}_to{}_{}{}", opdef::key_of(std::array{axis}), block_size,
                  dtype, to, saturate != 0 ? "saturate" : "exact", has_zero_point ? "_zero" : ""),
      attributes);
  std::vector<Value*> operands = {f.input("x"), f.input("scale")};
  if (has_zero_point) operands.push_back(f.input("zero_point"));
  std::vector<Attribute> how = {{"axis", axis}, {"block_size", block_size}, {"saturate", saturate}};
  if (!has_zero_point) how.push_back({"output_dtype", dtype});
  operands[0] = f.op("QuantizeLinear", operands, std::move(how));
  // The type is explicit, so that the pair is not matched again when it is inlined in a plan.
  std::vector<Attribute> back = {{"output_dtype", to}};
  if (is_number) {
    operands = {operands[0], f.constant(Tensor::scalar(1.0F))};
  } else {
    back.push_back({"axis", axis});
    back.push_back({"block_size", block_size});
  }
  return std::move(f).finish({f.op("DequantizeLinear", operands, std::move(back))});
}

constexpr double kMostSteps = 2147483648.0;  // of a bias: all float32 below are numbers of 32 bits

// Body of RoundedBias.
ir::Function rounded_bias_body(std::string_view base_name, const std::vector<Value*>& /*inputs*/,
                               const std::vector<Attribute>& attributes) {
  FunctionBody f(base_name, "steps", attributes);
  Value* bias = f.input("bias");
  Value* scale = f.input("scale");
  const auto limit = [&](double steps) {
    return f.op("CastLike", {f.constant(Tensor::scalar(steps)), bias});
  };
  Value* codes = f.op("Round", {f.op("Div", {bias, scale})});
  codes = f.op("Clip", {codes, limit(-kMostSteps), limit(kMostSteps)});
  return std::move(f).finish({f.op("Mul", {codes, scale})});
}

// y = bias rounded to whole numbers of the scale:  dbias = dy;  dscale = dy (y - bias) / scale;
// where it is clipped,  dbias = 0;  dscale = dy y / scale
std::vector<Value*> rounded_bias_vjp(VjpContext& ctx, GraphBuilder& g) {
  Value* bias = ctx.input(0);
  Value* steps = g.abs(g.div(bias, ctx.input(1)));
  Value* is_kept = g.op("LessOrEqual", {steps, g.scalar_like(bias, kMostSteps)});
  std::vector<Value*> grads = {keep_where(g, is_kept, ctx.cotangent(0)), nullptr};
  if (ctx.needs(1)) {
    Value* change = g.div(g.sub(ctx.output(0), keep_where(g, is_kept, bias)), ctx.input(1));
    grads[1] = g.sum_to(g.mul(ctx.cotangent(0), change), ctx.input(1));
  }
  return grads;
}

bool is_same(const Value* a, const Value* b) {
  if (a != nullptr) a = ir::look_through_identities(a);
  if (b != nullptr) b = ir::look_through_identities(b);
  if (a == b) return true;
  return a != nullptr && b != nullptr && a->is_constant() && b->is_constant() &&
         a->initializer.equals(b->initializer);
}

std::int64_t attribute_or(const Node& node, std::string_view name, std::int64_t fallback) {
  return node.int_attribute(name, fallback);
}

DataType quantized_type(const Node& quantize) {
  if (quantize.input(2) != nullptr) return quantize.input(2)->dtype();
  const auto dtype = static_cast<DataType>(attribute_or(quantize, "output_dtype", 0));
  return dtype == DataType::kUndefined ? DataType::kUint8 : dtype;
}

bool is_straight(const Node& quantize, const Value* scale, const Value* zero_point,
                 std::int64_t axis, std::int64_t block_size, bool is_single) {
  if (quantize.op_type != "QuantizeLinear" || !quantize.domain.empty()) return false;
  if (!is_same(quantize.input(1), scale) || !is_same(quantize.input(2), zero_point)) return false;
  if (!is_floating(quantize.input(0)->dtype())) return false;
  return is_single || (attribute_or(quantize, "axis", 1) == axis &&
                       attribute_or(quantize, "block_size", 0) == block_size);
}

Value* call_straight_through(GraphBuilder& g, std::string_view function, const Node& quantize) {
  std::vector<Value*> inputs = {quantize.input(0), quantize.input(1)};
  if (quantize.input(2) != nullptr) inputs.push_back(quantize.input(2));
  return g.call(function, std::move(inputs), 1,
                {{"axis", attribute_or(quantize, "axis", 1)},
                 {"block_size", attribute_or(quantize, "block_size", 0)},
                 {"quantized_dtype", static_cast<std::int64_t>(quantized_type(quantize))},
                 {"saturate", attribute_or(quantize, "saturate", 1)}})[0];
}

// Operators that move elements, or take maxima, which commute with rounding.
bool commutes(const Node& node) {
  constexpr std::array<std::string_view, 8> kMoving = {
      "Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Slice", "MaxPool"};
  return node.domain.empty() && node.output(1) == nullptr &&
         std::ranges::find(kMoving, node.op_type) != kMoving.end();
}

// Returns the value that quantized x represents, with a gradient; nullptr if x comes from
// elsewhere.
Value* straight_through(GraphBuilder& g, Value* x, const Value* scale, const Value* zero_point,
                        std::int64_t axis, std::int64_t block_size) {
  const bool is_single = known_rank(scale) == std::size_t{0} ||
                         (known_rank(scale) == std::size_t{1} && known_dim(scale, 0) == 1);
  std::vector<const Node*> moves;
  const Node* producer = x->producer;
  while (producer != nullptr && is_single && commutes(*producer)) {
    moves.push_back(producer);
    producer = producer->input(0)->producer;
  }
  if (producer == nullptr ||
      !is_straight(*producer, scale, zero_point, axis, block_size, is_single)) {
    return nullptr;
  }
  Value* y = call_straight_through(g, "FakeQuantize", *producer);
  for (auto move = moves.rbegin(); move != moves.rend(); ++move) {
    std::vector<Value*> inputs = (*move)->inputs;
    inputs[0] = y;
    y = g.op((*move)->op_type, std::move(inputs), (*move)->attributes);
  }
  return y;
}

// Dequantizes with another scale than that of the QuantizeLinear: y = (number - zero_point) scale.
Value* dequantize_number(GraphBuilder& g, const Node& node) {
  Value* scale = node.input(1);
  const auto rank = known_rank(node.input(0));
  if (!rank || !is_floating(scale->dtype())) return nullptr;
  Value* number = quantized_number(g, node.input(0));
  if (number == nullptr) return nullptr;
  number = g.cast(number, DataType::kFloat32);
  const Groups groups = groups_of(node, *rank, scale);
  if (Value* zero_point = node.input(2)) {
    Value* zero = g.cast(zero_point, DataType::kFloat32);
    number = g.sub(number, spread_scale(g, zero, number, groups));
  }
  Value* step = spread_scale(g, g.cast(scale, DataType::kFloat32), number, groups);
  return g.cast(g.mul(number, step), scale->dtype());
}

std::optional<std::vector<Value*>> lower_dequantize(const Node& node, GraphBuilder& g) {
  if (node.int_attribute("output_dtype") != 0) return std::nullopt;
  Value* y = straight_through(g, node.input(0), node.input(1), node.input(2),
                              node.int_attribute("axis"), node.int_attribute("block_size"));
  if (y == nullptr) y = dequantize_number(g, node);
  if (y == nullptr) return std::nullopt;
  return {{y}};
}

AttributeSpec dtype_attribute(std::string_view name) {
  return {.name = name,
          .type = opdef::AttributeType::kInt,
          .min = 0,
          .max = static_cast<std::int64_t>(DataType::kInt2),
          .default_value = std::int64_t{0}};
}

AttributeSpec block_attribute() {
  return {.name = "block_size",
          .type = opdef::AttributeType::kInt,
          .min = 0,
          .max = std::int64_t{1} << 40,
          .default_value = std::int64_t{0}};
}

}  // namespace

Value* dequantize(GraphBuilder& g, Value* x, Value* scale, Value* zero_point, std::int64_t axis) {
  const auto as_scalar = [&](Value* value) {
    const bool is_one =
        value != nullptr && known_rank(value) == std::size_t{1} && known_dim(value, 0) == 1;
    return is_one ? g.squeeze(value, {0}) : value;
  };
  if (Value* y = straight_through(g, x, scale, zero_point, axis, 0)) return y;
  std::vector<Value*> inputs = {x, as_scalar(scale)};
  if (zero_point != nullptr) inputs.push_back(as_scalar(zero_point));
  return g.op("DequantizeLinear", std::move(inputs), {{"axis", axis}});
}

Value* quantize(GraphBuilder& g, Value* x, Value* scale, Value* zero_point, DataType dtype) {
  const auto as_scalar = [&](Value* value) {
    return known_rank(value) == std::size_t{1} ? g.squeeze(value, {0}) : value;
  };
  std::vector<Value*> inputs = {x, as_scalar(scale)};
  if (zero_point != nullptr) {
    inputs.push_back(as_scalar(zero_point));
    return g.op("QuantizeLinear", std::move(inputs));
  }
  return g.op("QuantizeLinear", std::move(inputs),
              {{"output_dtype", static_cast<std::int64_t>(dtype)}});
}

Value* number_of_quantize(GraphBuilder& g, const Node& quantize) {
  const Value* scale = quantize.input(1);
  const bool is_known = is_floating(quantize.input(0)->dtype()) && known_rank(quantize.input(0)) &&
                        scale != nullptr && known_rank(scale);
  return is_known ? call_straight_through(g, "QuantizedNumber", quantize) : nullptr;
}

}  // namespace onnxgrad::ops

namespace onnxgrad::ops::linear_quantization_op {

void register_linear_quantization(opdef::OpRegistry& registry) {
  registry.add(
      {.op_type = "QuantizeLinear",
       .since_version = 25,
       .attributes = {axis_attribute("axis", 1), block_attribute(), dtype_attribute("output_dtype"),
                      dtype_attribute("precision"), flag_attribute("saturate", true)}});
  registry.add({.op_type = "DequantizeLinear",
                .since_version = 25,
                .differentiable_inputs = {1},
                .attributes = {axis_attribute("axis", 1), block_attribute(),
                               dtype_attribute("output_dtype")},
                .vjp = dequantize_vjp,
                .lower = lower_dequantize});
  opdef::OpDef straight_through{
      .domain = ir::kFunctionDomain,
      .op_type = "FakeQuantize",
      .differentiable_inputs = {0, 1},
      .attributes = {axis_attribute("axis", 1), block_attribute(),
                     dtype_attribute("quantized_dtype"), flag_attribute("saturate", true)},
      .vjp = fake_quantize_vjp,
      .function_body = straight_through_body};
  registry.add(straight_through);
  straight_through.op_type = "QuantizedNumber";
  straight_through.vjp = quantized_number_vjp;
  registry.add(std::move(straight_through));
  registry.add({.domain = ir::kFunctionDomain,
                .op_type = "RoundedBias",
                .differentiable_inputs = {0, 1},
                .vjp = rounded_bias_vjp,
                .function_body = rounded_bias_body});
}

}  // namespace onnxgrad::ops::linear_quantization_op
