#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>

#include "base/rounding.h"
#include "ops/contrib/attention.h"
#include "ops/contrib/contrib.h"
#include "ops/quantize/linear_quantization.h"

// MatMulNBits, QAttention, MatMulIntegerToFloat, DynamicQuantizeMatMul and QGemm (com.microsoft 1):
// matrix products with integer weights. The integers are constant; the scales and all other
// floating-point operands have gradients.

namespace onnxgrad::ops::quantized_matmul_op {
namespace {

// The weights of MatMulNBits: [N, blocks * block_size] integers of 2, 4 or 8 bits along K.
struct BlockWeights {
  std::int64_t n = 0;
  std::int64_t k = 0;
  std::int64_t bits = 4;
  std::int64_t block = 32;
  std::int64_t blocks() const { return base::ceil_div(k, block); }
};

BlockWeights read_blocks(const Node& node) {
  return {.n = node.int_attribute("N"),
          .k = node.int_attribute("K"),
          .bits = node.int_attribute("bits"),
          .block = node.int_attribute("block_size")};
}

DataType code_type(std::int64_t bits) {
  if (bits == 8) return DataType::kUint8;
  return bits == 4 ? DataType::kUint4 : DataType::kUint2;
}

void expect_bytes(const Node& node, const Tensor& packed, std::int64_t bytes) {
  if (packed.size_bytes() == bytes) return;
  throw ShapeError(
      {.what = fmt::format("{} bytes of integers, expected {}", packed.size_bytes(), bytes),
       .where = {.node = node.name, .op_type = node.op_type},
       .hint = "Quantize the model again: N, K and block_size do not fit B."});
}

// Integers [rows, count] of `bits` bits, whose rows begin whole bytes: the bytes themselves where
// they have the layout of a tensor.
Tensor as_tensor(const Node& node, const Tensor& packed, std::int64_t rows, std::int64_t count,
                 std::int64_t bits) {
  const std::int64_t per_byte = 8 / bits;
  const std::int64_t row_bytes = base::ceil_div(count, per_byte);
  expect_bytes(node, packed, rows * row_bytes);
  const auto owner = std::make_shared<Tensor>(packed);
  if (count % per_byte == 0) {
    return Tensor::view(code_type(bits), Dims{rows, count}, owner->mutable_raw(), owner);
  }
  Tensor whole = Tensor::zeros(code_type(bits), Dims{rows, count});
  const unsigned mask = (1U << bits) - 1;
  std::byte* to = whole.mutable_raw();
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::byte* from = packed.raw() + r * row_bytes;
    for (std::int64_t i = 0; i < count; ++i) {
      const auto byte = std::to_integer<unsigned>(from[i / per_byte]);
      const unsigned code = (byte >> (i % per_byte * bits)) & mask;
      const std::int64_t at = r * count + i;
      to[at / per_byte] |= static_cast<std::byte>(code << (at % per_byte * bits));
    }
  }
  return whole;
}

const Tensor& constant_operand(const Node& node, std::size_t input, std::string_view name) {
  const Value* value = node.input(input);
  if (value->is_constant()) return value->initializer;
  refuse_form(node, fmt::format("input {} '{}' is not constant", name, value->name),
              "Give the quantized weights as initializers.");
}

// Returns the zero points [N, blocks] in the type of the integers, or in that of the scales if they
// have it.
Value* zero_points(const Node& node, GraphBuilder& g, const BlockWeights& w) {
  Value* given = node.input(3);
  if (given == nullptr) {
    Tensor middle = Tensor::empty(code_type(w.bits), Dims{w.n, w.blocks()});
    constexpr std::int64_t kEach = 0x55;  // bit 0 of each 2 bits
    const auto byte = w.bits == 8 ? 0x80 : w.bits == 4 ? 0x88 : 2 * kEach;
    std::fill_n(middle.mutable_raw(), middle.size_bytes(), static_cast<std::byte>(byte));
    return g.constant(std::move(middle));
  }
  if (given->dtype() != DataType::kUint8) return g.reshape(given, {w.n, w.blocks()});
  const Tensor& packed = constant_operand(node, 3, "zero_points");
  return g.constant(as_tensor(node, packed, w.n, w.blocks(), w.bits));
}

// The integers as floating-point numbers of the type of `scales`.
Value* numbers(GraphBuilder& g, Value* integers, const Value* scales) {
  return g.op("DequantizeLinear", {integers, g.constant(Tensor::scalar_of(scales->dtype(), 1))});
}

// y = A W' + bias with W[n, k] = (B[n, k] - zero[n, block of k]) scale[n, block of k]. The integers
// stay packed: opdef/quantized_weight.h recognises these nodes.
Lowered lower_matmul_n_bits(const Node& node, GraphBuilder& g) {
  check_inputs(node, 3, {"A", "B", "scales", "zero_points", "g_idx", "bias"});
  refuse_attribute(node, "weight_prepacked");
  const BlockWeights w = read_blocks(node);
  if (w.bits != 2 && w.bits != 4 && w.bits != 8) {
    refuse_form(node, fmt::format("bits = {}", w.bits), "Quantize the model to 2, 4 or 8 bits.");
  }
  const Tensor& packed = constant_operand(node, 1, "B");
  const std::int64_t stored = w.blocks() * w.block;
  const std::int64_t per_byte = 8 / w.bits;
  expect_bytes(node, packed, w.n * w.blocks() * base::ceil_div(w.block, per_byte));
  Tensor integers = as_tensor(node, packed, w.n * w.blocks(), w.block, w.bits);
  Value* b = g.constant(integers.reshaped(Dims{w.n, stored}), node.input(1)->name);
  Value* scales = g.reshape(node.input(2), {w.n, w.blocks()});
  Value* zeros = zero_points(node, g, w);
  const bool has_integers = !is_floating(zeros->dtype());
  Value* weight = nullptr;
  if (node.input(4) == nullptr && has_integers) {
    weight = g.op("DequantizeLinear", {b, scales, zeros},
                  {{"axis", std::int64_t{1}}, {"block_size", w.block}});
    if (stored != w.k) weight = g.slice(weight, {0}, {w.k}, {1});
  } else {  // g_idx: the block of each k
    Value* index = nullptr;
    if (node.input(4) != nullptr) {
      index = g.cast(node.input(4), DataType::kInt64);
    } else {
      std::vector<std::int64_t> of_columns;
      for (std::int64_t k = 0; k < w.k; ++k) of_columns.push_back(k / w.block);
      index = g.ints(of_columns);
    }
    Value* kept = numbers(g, b, scales);
    if (stored != w.k) kept = g.slice(kept, {0}, {w.k}, {1});
    Value* zero = has_integers ? numbers(g, zeros, scales) : zeros;
    weight = g.mul(g.sub(kept, g.gather(zero, index, 1)), g.gather(scales, index, 1));
  }
  Value* y = g.matmul(node.input(0), g.transpose(weight, {1, 0}));
  return {{add_if(g, y, node.input(5))}};
}

// Attention of a quantized input projected with quantized weights.
Lowered lower_qattention(const Node& node, GraphBuilder& g) {
  check_inputs(node, 5,
               {"input", "weight", "bias", "input_scale", "weight_scale", "mask_index",
                "input_zero_point", "weight_zero_point", "past"});
  Value* x = dequantize(g, node.input(0), node.input(3), node.input(6), -1);
  Value* w = dequantize(g, node.input(1), node.input(4), node.input(7), -1);
  return attend_projected(node, g,
                          {.qkv = g.add(g.matmul(x, w), node.input(2)),
                           .width = required_dim(node, node.input(1), 1, "weight"),
                           .mask = 5,
                           .past = 8});
}

Lowered lower_matmul_to_float(const Node& node, GraphBuilder& g) {
  check_inputs(node, 4, {"A", "B", "a_scale", "b_scale", "a_zero_point", "b_zero_point", "bias"});
  Value* a = dequantize(g, node.input(0), node.input(2), node.input(4), -2);
  Value* b = dequantize(g, node.input(1), node.input(3), node.input(5), -1);
  return {{add_if(g, g.matmul(a, b), node.input(6))}};
}

// A is quantized to 8 bits over its own range; the gradient passes straight through the rounding.
Lowered lower_dynamic_matmul(const Node& node, GraphBuilder& g) {
  check_inputs(node, 3, {"A", "B", "b_scale", "b_zero_point", "bias"});
  const std::vector<Value*> quantized = g.ops("DynamicQuantizeLinear", {node.input(0)}, 3);
  Value* rounded = g.op("QuantizeLinear", {node.input(0), quantized[1], quantized[2]});
  Value* a = dequantize(g, rounded, quantized[1], quantized[2], -2);
  Value* b = dequantize(g, node.input(1), node.input(2), node.input(3), -1);
  return {{add_if(g, g.matmul(a, b), node.input(4))}};
}

// y = alpha op(A) op(B) + C, quantized if there is an output scale. C has the scale alpha a_scale
// b_scale.
Lowered lower_qgemm(const Node& node, GraphBuilder& g) {
  check_inputs(node, 6,
               {"A", "a_scale", "a_zero_point", "B", "b_scale", "b_zero_point", "C", "y_scale",
                "y_zero_point"});
  const auto alpha = static_cast<double>(node.float_attribute("alpha"));
  const bool turns_b = node.int_attribute("transB") != 0;
  Value* a = dequantize(g, node.input(0), node.input(1), node.input(2), -1);
  Value* b = dequantize(g, node.input(3), node.input(4), node.input(5), turns_b ? 0 : 1);
  if (node.int_attribute("transA") != 0) a = g.transpose(a, {1, 0});
  if (turns_b) b = g.transpose(b, {1, 0});
  Value* y = g.scale(g.matmul(a, b), alpha);
  if (node.input(6) != nullptr) {
    Value* step = g.scale(g.mul(node.input(1), node.input(4)), alpha);
    y = g.add(y, g.mul(g.cast_like(node.input(6), step), step));
  }
  if (node.input(7) == nullptr) return {{y}};
  const Value* zero = node.input(8);
  return {{quantize(g, y, node.input(7), node.input(8),
                    zero == nullptr ? DataType::kUint8 : zero->dtype())}};
}

opdef::AttributeSpec required_int(std::string_view name, std::int64_t max) {
  opdef::AttributeSpec spec = int_attribute(name, 1, max);
  spec.required = true;
  return spec;
}

}  // namespace

void register_quantized_matmul(opdef::OpRegistry& registry) {
  const LoweredOps add{registry};
  constexpr std::int64_t kMaxSize = std::int64_t{1} << 31;
  add("MatMulNBits", lower_matmul_n_bits,
      {required_int("K", kMaxSize), required_int("N", kMaxSize),
       required_int("block_size", 1 << 20), int_attribute("accuracy_level", 0, 4, 0),
       int_attribute("bits", 1, 8, 4), int_attribute("weight_prepacked", 0, 3, 0)});
  add("QAttention", lower_qattention,
      {required_int("num_heads", 1 << 16), flag_attribute("unidirectional", false),
       int_attribute("do_rotary", 0, 1), int_attribute("past_present_share_buffer", 0, 1),
       float_attribute("mask_filter_value"), float_attribute("scale")});
  add("MatMulIntegerToFloat", lower_matmul_to_float, {});
  add("DynamicQuantizeMatMul", lower_dynamic_matmul, {});
  add("QGemm", lower_qgemm,
      {float_attribute("alpha", 1.0F), flag_attribute("transA", false),
       flag_attribute("transB", false)});
}

}  // namespace onnxgrad::ops::quantized_matmul_op
