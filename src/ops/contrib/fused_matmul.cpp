#include <algorithm>
#include <numeric>
#include <utility>

#include "ops/contrib/contrib.h"
#include "ops/nn/window.h"

// FusedMatMul, TransposeMatMul, FusedGemm, GemmFastGelu, FusedConv and NhwcConv (com.microsoft 1).

namespace onnxgrad::ops::fused_matmul_op {
namespace {

// Transposes input `i` of FusedMatMul for MatMul: if `rotated`, axis 0 moves behind the other batch
// axes; if `transposed`, the last two axes are then exchanged.
Value* matmul_operand(const Node& node, GraphBuilder& g, std::size_t i, bool transposed,
                      bool rotated) {
  Value* x = node.input(i);
  if (!transposed && !rotated) return x;
  const auto rank = known_rank(x);
  if (!rank) {
    refuse_form(node, "the rank of '" + x->name + "' is not known",
                "Give the value a shape in the model; its dimensions may be symbols.");
  }
  if (*rank < 2) return x;  // vectors stay as they are
  std::vector<std::int64_t> perm(*rank);
  std::iota(perm.begin(), perm.end(), 0);
  if (rotated) std::rotate(perm.begin(), perm.begin() + 1, perm.end() - 1);
  if (transposed) std::swap(perm[*rank - 1], perm[*rank - 2]);
  return g.transpose(x, perm);
}

Lowered lower_fused_matmul(const Node& node, GraphBuilder& g) {
  check_inputs(node, 2, {"A", "B"});
  const auto is_set = [&](std::string_view name) { return node.int_attribute(name, 0) != 0; };
  Value* a = matmul_operand(node, g, 0, is_set("transA"), is_set("transBatchA"));
  Value* b = matmul_operand(node, g, 1, is_set("transB"), is_set("transBatchB"));
  Value* y = g.matmul(a, b);
  const float alpha = node.float_attribute("alpha");
  return {{alpha == 1 ? y : g.scale(y, static_cast<double>(alpha))}};
}

// Returns the attributes of `node` that have one of these names.
std::vector<ir::Attribute> some_attributes(const Node& node,
                                           std::initializer_list<std::string_view> names) {
  std::vector<ir::Attribute> attributes;
  for (const std::string_view name : names) {
    const ir::AttributeValue* value = node.find_attribute(name);
    if (value != nullptr) attributes.push_back({std::string(name), *value});
  }
  return attributes;
}

// Activation of onnxruntime's fused operators: an operator of ai.onnx and the names of its
// parameters, in the order of `activation_params`.
struct Activation {
  std::string_view op_type;
  std::vector<std::string_view> names;
};

const std::vector<Activation>& activations() {
  static const std::vector<Activation> all = {
      {"Relu", {}},
      {"Sigmoid", {}},
      {"Tanh", {}},
      {"Softplus", {}},
      {"Softsign", {}},
      {"LeakyRelu", {"alpha"}},
      {"Elu", {"alpha"}},
      {"ThresholdedRelu", {"alpha"}},
      {"HardSigmoid", {"alpha", "beta"}},
      {"Selu", {"alpha", "gamma"}},
      {"Clip", {}},
  };
  return all;
}

const Activation& find_activation(const Node& node, const std::string& name) {
  for (const Activation& one : activations()) {
    if (one.op_type == name) return one;
  }
  refuse_form(node, "activation '" + name + "' is unknown",
              "Save the model from onnxruntime without fusion of activations.");
}

Lowered lower_fused_gemm(const Node& node, GraphBuilder& g) {
  check_inputs(node, 2, {"A", "B", "C"});
  std::vector<Value*> inputs = {node.input(0), node.input(1)};
  if (node.input(2) != nullptr) inputs.push_back(node.input(2));
  Value* y = g.op("Gemm", inputs, some_attributes(node, {"alpha", "beta", "transA", "transB"}));
  if (node.find_attribute("activation") == nullptr) return {{y}};
  const std::string name = node.string_attribute("activation");
  std::vector<ir::Attribute> attributes;
  for (const std::string_view number : find_activation(node, name).names) {
    const std::string given = "activation_" + std::string(number);
    const ir::AttributeValue* value = node.find_attribute(given);
    if (value != nullptr) attributes.push_back({std::string(number), *value});
  }
  return {{g.op(name, {y}, std::move(attributes))}};
}

// tanh_gelu(X W + bias)
Lowered lower_gemm_fast_gelu(const Node& node, GraphBuilder& g) {
  check_inputs(node, 2, {"X", "W", "bias"});
  return {{tanh_gelu(g, add_if(g, g.matmul(node.input(0), node.input(1)), node.input(2)))}};
}

Value* convolve(const Node& node, GraphBuilder& g, Value* x) {
  std::vector<Value*> inputs = {x, node.input(1)};
  if (node.input(2) != nullptr) inputs.push_back(node.input(2));
  return g.op(
      "Conv", inputs,
      some_attributes(node, {"auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"}));
}

// activation(Conv(X, W, B) + Z)
Lowered lower_fused_conv(const Node& node, GraphBuilder& g) {
  check_inputs(node, 2, {"X", "W", "B", "Z"});
  Value* y = add_if(g, convolve(node, g, node.input(0)), node.input(3));
  if (node.find_attribute("activation") == nullptr) return {{y}};
  const std::string name = node.string_attribute("activation");
  const Activation& activation = find_activation(node, name);
  const std::vector<float> numbers = node.floats_attribute("activation_params");
  const std::size_t wanted = name == "Clip" ? 2 : activation.names.size();
  if (numbers.size() != wanted) {
    throw ModelError({.what = "activation_params has " + std::to_string(numbers.size()) +
                              " elements, expected " + std::to_string(wanted) + " for " + name,
                      .where = {.node = node.name, .op_type = node.op_type},
                      .hint = "Save the model from onnxruntime again."});
  }
  if (name == "Clip") {
    return {{g.op("Clip", {y, g.scalar_like(y, static_cast<double>(numbers[0])),
                           g.scalar_like(y, static_cast<double>(numbers[1]))})}};
  }
  std::vector<ir::Attribute> attributes;
  for (std::size_t i = 0; i < wanted; ++i) {
    attributes.push_back({std::string(activation.names[i]), numbers[i]});
  }
  return {{g.op(name, {y}, std::move(attributes))}};
}

// Conv with X and Y channels-last (NHWC); W has the layout that Conv expects.
Lowered lower_nhwc_conv(const Node& node, GraphBuilder& g) {
  check_inputs(node, 2, {"X", "W", "B"});
  const auto rank = known_rank(node.input(0));
  if (!rank || *rank < 3) {
    refuse_form(node, "input X '" + node.input(0)->name + "' has no known rank of 3 or more",
                "Give it a shape in the model; its dimensions may be symbols.");
  }
  std::vector<std::int64_t> to_front = {0, static_cast<std::int64_t>(*rank) - 1};
  std::vector<std::int64_t> to_back = {0};
  for (std::size_t i = 1; i + 1 < *rank; ++i) {
    to_front.push_back(static_cast<std::int64_t>(i));
    to_back.push_back(static_cast<std::int64_t>(i) + 1);
  }
  to_back.push_back(1);
  return {{g.transpose(convolve(node, g, g.transpose(node.input(0), to_front)), to_back)}};
}

// Attribute specifications of Conv.
std::vector<opdef::AttributeSpec> window_attributes() {
  auto attributes = window_attribute_specs(/*kernel_required=*/false);
  attributes.push_back(int_attribute("group", 1, std::int64_t{1} << 31, 1));
  return attributes;
}

}  // namespace

void register_fused_matmul(opdef::OpRegistry& registry) {
  const LoweredOps add{registry};
  const std::vector<opdef::AttributeSpec> product = {float_attribute("alpha", 1.0F),
                                                     flag_attribute("transA", false),
                                                     flag_attribute("transB", false)};
  add("TransposeMatMul", lower_fused_matmul, product);
  std::vector<opdef::AttributeSpec> batched = product;
  batched.push_back(flag_attribute("transBatchA", false));
  batched.push_back(flag_attribute("transBatchB", false));
  add("FusedMatMul", lower_fused_matmul, std::move(batched));
  std::vector<opdef::AttributeSpec> gemm = product;
  gemm.push_back(float_attribute("beta", 1.0F));
  gemm.push_back(string_attribute("activation"));
  for (const std::string_view name : {"activation_alpha", "activation_beta", "activation_gamma"}) {
    gemm.push_back(float_attribute(name));
  }
  add("FusedGemm", lower_fused_gemm, std::move(gemm));
  add("GemmFastGelu", lower_gemm_fast_gelu, {});
  std::vector<opdef::AttributeSpec> conv = window_attributes();
  conv.push_back(string_attribute("activation"));
  conv.push_back(floats_attribute("activation_params"));
  add("FusedConv", lower_fused_conv, std::move(conv));
  add("NhwcConv", lower_nhwc_conv, window_attributes());
}

}  // namespace onnxgrad::ops::fused_matmul_op
