#include <utility>

#include "ops/contrib/contrib.h"
#include "ops/quantize/linear_quantization.h"

// QuantizeLinear and DequantizeLinear of com.microsoft, which allow more types than those of ONNX,
// and the operators on quantized tensors that onnxruntime's quantizers write: each is the
// floating-point operator between DequantizeLinear and QuantizeLinear.

namespace onnxgrad::ops::quantized_layer_op {
namespace {

Lowered lower_quantize(const Node& node, GraphBuilder& g) {
  check_inputs(node, 2, {"x", "y_scale", "y_zero_point"});
  std::vector<Value*> inputs = {node.input(0), node.input(1)};
  if (node.input(2) != nullptr) inputs.push_back(node.input(2));
  return {{g.op("QuantizeLinear", std::move(inputs), {{"axis", node.int_attribute("axis", 1)}})}};
}

Lowered lower_dequantize(const Node& node, GraphBuilder& g) {
  check_inputs(node, 2, {"x", "x_scale", "x_zero_point"});
  return {
      {dequantize(g, node.input(0), node.input(1), node.input(2), node.int_attribute("axis", 1))}};
}

// Dequantizes inputs `first` to `first` + 2: quantized tensor, scale, zero point.
Value* operand(const Node& node, GraphBuilder& g, std::size_t first) {
  return dequantize(g, node.input(first), node.input(first + 1), node.input(first + 2), 1);
}

// Quantizes y with the scale at input `first` and the zero point at input `first` + 1.
Lowered result(const Node& node, GraphBuilder& g, Value* y, std::size_t first, DataType dtype) {
  return {{quantize(g, y, node.input(first), node.input(first + 1), dtype)}};
}

Lowered lower_add(const Node& node, GraphBuilder& g) {
  check_inputs(node, 7,
               {"A", "A_scale", "A_zero_point?", "B", "B_scale", "B_zero_point?", "C_scale",
                "C_zero_point"});
  return result(node, g, g.add(operand(node, g, 0), operand(node, g, 3)), 6,
                node.input(0)->dtype());
}

Lowered lower_mul(const Node& node, GraphBuilder& g) {
  check_inputs(node, 7,
               {"A", "A_scale", "A_zero_point?", "B", "B_scale", "B_zero_point?", "C_scale",
                "C_zero_point"});
  return result(node, g, g.mul(operand(node, g, 0), operand(node, g, 3)), 6,
                node.input(0)->dtype());
}

void check_unary(const Node& node) {
  check_inputs(node, 4, {"X", "X_scale", "X_zero_point?", "Y_scale", "Y_zero_point"});
}

Lowered lower_sigmoid(const Node& node, GraphBuilder& g) {
  check_unary(node);
  return result(node, g, g.op("Sigmoid", {operand(node, g, 0)}), 3, node.input(0)->dtype());
}

Lowered lower_leaky_relu(const Node& node, GraphBuilder& g) {
  check_unary(node);
  Value* y = g.op("LeakyRelu", {operand(node, g, 0)}, {{"alpha", node.float_attribute("alpha")}});
  return result(node, g, y, 3, node.input(0)->dtype());
}

// Before opset 13 Softmax flattens all axes from `axis` on into one.
Lowered lower_softmax(const Node& node, GraphBuilder& g) {
  check_unary(node);
  const std::int64_t axis = node.int_attribute("axis");
  const auto rank = known_rank(node.input(0));
  const bool is_last = axis == -1 || (rank && axis + 1 == static_cast<std::int64_t>(*rank));
  if (node.int_attribute("opset") < 13 && !is_last) {
    refuse_form(node, "it is of an opset below 13 and not along the last axis",
                "Raise the model to opset 13 before it is quantized.");
  }
  Value* y = g.op("Softmax", {operand(node, g, 0)}, {{"axis", axis}});
  return result(node, g, y, 3, node.input(0)->dtype());
}

void refuse_channels_last(const Node& node) {
  if (node.int_attribute("channels_last") == 0) return;
  refuse_form(node, "channels_last = 1 has no form in standard operators",
              "Save the model from onnxruntime without layout optimization.");
}

Lowered lower_global_average_pool(const Node& node, GraphBuilder& g) {
  check_unary(node);
  refuse_channels_last(node);
  return result(node, g, g.op("GlobalAveragePool", {operand(node, g, 0)}), 3,
                node.input(0)->dtype());
}

Lowered lower_average_pool(const Node& node, GraphBuilder& g) {
  check_unary(node);
  refuse_channels_last(node);
  std::vector<ir::Attribute> attributes;
  for (const ir::Attribute& attribute : node.attributes) {
    if (attribute.name != "channels_last") attributes.push_back(attribute);
  }
  return result(node, g, g.op("AveragePool", {operand(node, g, 0)}, std::move(attributes)), 3,
                node.input(0)->dtype());
}

// Inputs: Y_scale, Y_zero_point, then tensor, scale and zero point of each part.
Lowered lower_concat(const Node& node, GraphBuilder& g) {
  if (node.inputs.size() < 5 || (node.inputs.size() - 2) % 3 != 0) {
    throw ModelError({.what = std::to_string(node.inputs.size()) + " inputs",
                      .where = {.node = node.name, .op_type = node.op_type},
                      .hint = "Give a scale and a zero point for the result and for each tensor."});
  }
  for (const Value* input : node.inputs) {
    if (input == nullptr) {
      throw ModelError({.what = "one of the inputs is missing",
                        .where = {.node = node.name, .op_type = node.op_type},
                        .hint = "Name a value for each, or export the model again."});
    }
  }
  std::vector<Value*> parts;
  for (std::size_t i = 2; i < node.inputs.size(); i += 3) parts.push_back(operand(node, g, i));
  return result(node, g, g.concat(parts, node.int_attribute("axis")), 0, node.input(1)->dtype());
}

}  // namespace

void register_quantized_layer(opdef::OpRegistry& registry) {
  const LoweredOps add{registry};
  const auto required = [](opdef::AttributeSpec spec) {
    spec.required = true;
    return spec;
  };
  add("QuantizeLinear", lower_quantize, {axis_attribute("axis")});
  add("DequantizeLinear", lower_dequantize, {axis_attribute("axis")});
  add("QLinearAdd", lower_add);
  add("QLinearMul", lower_mul);
  add("QLinearSigmoid", lower_sigmoid);
  add("QLinearLeakyRelu", lower_leaky_relu, {float_attribute("alpha", 0.01F)});
  add("QLinearSoftmax", lower_softmax,
      {axis_attribute("axis", -1), required(int_attribute("opset", 1, 100))});
  add("QLinearGlobalAveragePool", lower_global_average_pool,
      {flag_attribute("channels_last", false)});
  add("QLinearAveragePool", lower_average_pool,
      {choice_attribute("auto_pad", {"NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"}),
       flag_attribute("ceil_mode", false), flag_attribute("channels_last", false),
       flag_attribute("count_include_pad", false), required(ints_attribute("kernel_shape")),
       ints_attribute("pads"), ints_attribute("strides")});
  add("QLinearConcat", lower_concat, {required(axis_attribute("axis"))});
}

}  // namespace onnxgrad::ops::quantized_layer_op
