#include "train/quantization/float_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "base/check.h"
#include "ir/pattern.h"
#include "ir/uses.h"
#include "opdef/registry.h"
#include "train/graphs/step_parts.h"
#include "train/quantization/weight_codes.h"
#include "train/tools/engine.h"
#include "train/weights/adapter_record.h"

namespace onnxgrad::train {
namespace {

using ir::is_op;
using ir::Node;
using ir::Value;

// The initializer whose numbers `value` has, in order; nullptr: none.
const Value* numbers_of(const Value* value) {
  if (value == nullptr) return nullptr;
  const Value* root = ir::look_through(value, [](const Node& node) {
    return is_op(node, {"Identity", "Squeeze", "Unsqueeze", "Reshape"});
  });
  return root != nullptr && root->is_constant() ? root : nullptr;
}

// Scales of symmetric blocks may be negative: the largest number has the lowest code.
bool has_steps(const Tensor& scale) {
  return std::ranges::all_of(scale.to_doubles(),
                             [](double s) { return s != 0 && std::isfinite(s); });
}

bool is_of_file(const Value& value) {
  return value.origin == nullptr ||
         (value.origin->kind != ir::WeightOrigin::Kind::kDefinition && value.origin->index.empty());
}

// A scale as QuantizeLinear takes it.
Tensor as_scale(const Tensor& numbers, std::int64_t block_size) {
  return numbers.num_elements() == 1 && block_size == 0 ? numbers.reshaped(Dims{}) : numbers;
}

// The result has the shape of the first input.
Tensor evaluated(std::string_view op_type, std::vector<ir::Attribute> attributes,
                 const std::vector<Tensor>& inputs, DataType dtype) {
  Value result;
  result.type = ir::Type::tensor(dtype, inputs.front().dims());
  Node node;
  node.op_type = op_type;
  node.attributes = std::move(attributes);
  node.outputs = {&result};
  auto results = builtin_evaluator().evaluate(complete_node(node), inputs);
  ONNXGRAD_ASSERT(results && !results->empty());
  return results->front();
}

std::vector<ir::Attribute> places(const FloatWeight& weight) {
  return {{"axis", weight.axis}, {"block_size", weight.block_size}};
}

Tensor dequantized(const FloatWeight& weight, const Tensor& integers, const Tensor& scale,
                   const Tensor& zero) {
  std::vector<Tensor> inputs{integers, as_scale(scale, weight.block_size)};
  if (zero.is_defined()) inputs.push_back(as_scale(zero, weight.block_size));
  return evaluated("DequantizeLinear", places(weight), inputs, scale.dtype());
}

Tensor quantized(const FloatWeight& weight, const Tensor& numbers, const Tensor& scale,
                 const Tensor& zero) {
  std::vector<ir::Attribute> how = places(weight);
  std::vector<Tensor> inputs{numbers, as_scale(scale, weight.block_size)};
  if (zero.is_defined()) {
    inputs.push_back(as_scale(zero, weight.block_size));
  } else {
    how.push_back({"output_dtype", static_cast<std::int64_t>(weight.dtype)});
  }
  return evaluated("QuantizeLinear", std::move(how), inputs, weight.dtype);
}

// Scale and zero point of a node as initializers; nullopt: they are computed.
struct Constants {
  const Value* scale = nullptr;
  const Value* zero = nullptr;
};
std::optional<Constants> constants_of(const Node& node) {
  Constants found{.scale = numbers_of(node.input(1))};
  if (found.scale == nullptr || !is_floating(found.scale->dtype())) return std::nullopt;
  if (!has_steps(found.scale->initializer)) return std::nullopt;
  if (node.input(2) != nullptr) {
    found.zero = numbers_of(node.input(2));
    if (found.zero == nullptr) return std::nullopt;
  }
  return found;
}

class Replacer {
 public:
  Replacer(Draft& draft, const NamedTensors& given)
      : draft_(draft), graph_(draft.graph()), uses_(draft.graph()), given_(given) {}

  std::vector<FloatWeight> run() {
    // Biases first: their scales are compared with those of the weights.
    const std::vector<Value*> initializers = graph_.initializers;
    std::vector<FloatWeight> found;
    for (const bool is_bias : {true, false}) {
      for (Value* value : initializers) {
        const DataType dtype = value->dtype();
        if (!value->is_constant() || !is_of_file(*value)) continue;
        if (value->initializer.num_elements() == 0) continue;
        const bool is_small =
            dtype != DataType::kBool && !is_floating(dtype) && size_bits(dtype) <= 8 &&
            (is_integer(dtype) || dtype == DataType::kInt4 || dtype == DataType::kUint4 ||
             dtype == DataType::kInt2 || dtype == DataType::kUint2);
        auto weight = is_bias ? (dtype == DataType::kInt32 ? bias(value) : std::nullopt)
                              : (is_small ? this->weight(value) : std::nullopt);
        if (weight) found.push_back(std::move(*weight));
      }
    }
    return found;
  }

 private:
  // The only reader of `value`, in its own graph.
  Node* only_reader(const Value* value) const {
    Node* node = uses_.only_reader(value);
    return node != nullptr && node->graph == &graph_ ? node : nullptr;
  }

  void make_float(Value* value, Tensor numbers) {
    const auto known = std::ranges::find(given_, value->name, &NamedTensor::name);
    if (known != given_.end() && known->tensor.dims() == numbers.dims()) {
      numbers = known->tensor.cast(numbers.dtype());
    }
    value->type = ir::Type::tensor(numbers.dtype(), numbers.dims());
    value->initializer = std::move(numbers);
  }

  std::optional<FloatWeight> weight(Value* value) {
    std::vector<Node*> readers;
    std::optional<Constants> constants;
    FloatWeight found{
        .name = value->name, .dtype = value->dtype(), .dims = value->initializer.dims()};
    for (const ir::Use& use : uses_.of(value)) {
      Node* node = use.node;
      if (node == nullptr || node->graph != &graph_ || use.input != 0) return std::nullopt;
      if (!is_op(*node, {"DequantizeLinear"}) || node->int_attribute("output_dtype", 0) != 0) {
        return std::nullopt;
      }
      const auto now = constants_of(*node);
      const std::int64_t axis = node->int_attribute("axis", 1);
      const std::int64_t block_size = node->int_attribute("block_size", 0);
      const bool is_first = readers.empty();
      if (!now || (!is_first && (now->scale != constants->scale || now->zero != constants->zero ||
                                 axis != found.axis || block_size != found.block_size))) {
        return std::nullopt;
      }
      constants = now;
      found.axis = axis;
      found.block_size = block_size;
      readers.push_back(node);
    }
    if (!constants) return std::nullopt;
    found.scale = constants->scale->name;
    if (constants->zero != nullptr) found.zero_point = constants->zero->name;
    make_float(value,
               dequantized(found, value->initializer, constants->scale->initializer,
                           constants->zero == nullptr ? Tensor() : constants->zero->initializer));
    for (Node* reader : readers) round(value, reader, found);
    return found;
  }

  // Replaces a DequantizeLinear by FakeQuantize.
  void round(Value* value, Node* reader, const FloatWeight& weight) {
    std::vector<Value*> inputs{value, reader->input(1)};
    if (reader->input(2) != nullptr) inputs.push_back(reader->input(2));
    const Value* result =
        draft_.g().call("FakeQuantize", std::move(inputs), 1,
                        {{"axis", weight.axis},
                         {"block_size", weight.block_size},
                         {"quantized_dtype", static_cast<std::int64_t>(weight.dtype)},
                         {"saturate", std::int64_t{1}}})[0];
    Node* call = result->producer;
    std::erase(graph_.nodes, call);
    std::ranges::replace(graph_.nodes, reader, call);
    ir::Graph::set_output(call, 0, reader->output(0));
  }

  std::optional<FloatWeight> bias(Value* value) {
    Node* reader = only_reader(value);
    if (reader == nullptr) return std::nullopt;
    for (const double code : value->initializer.to_doubles()) {
      if (std::fabs(code) > kLargestBias) return std::nullopt;
    }
    if (is_op(*reader, {"Cast", "CastLike"})) return bias_of_operator(value, reader);
    if (!is_op(*reader, {"DequantizeLinear"}) || reader->input(0) != value) return std::nullopt;
    const auto constants = constants_of(*reader);
    if (!constants) return std::nullopt;  // the zero point of int32 is 0
    FloatWeight found{.name = value->name,
                      .dtype = DataType::kInt32,
                      .scale = constants->scale->name,
                      .axis = reader->int_attribute("axis", 1),
                      .dims = value->initializer.dims()};
    if (found.dims.rank() == 1) found.axis = 0;
    const auto factors = name_factors(*reader, *constants->scale, found);
    make_float(value, dequantized(found, value->initializer, constants->scale->initializer, {}));
    round_bias(value, reader, factors.empty() ? reader->input(1) : nullptr, factors);
    return found;
  }

  // Cast(q) * (input scale * weight scale), as QLinearConv is expressed.
  std::optional<FloatWeight> bias_of_operator(Value* value, Node* cast) {
    Node* product = only_reader(cast->output(0));
    if (product == nullptr || !is_op(*product, {"Mul"})) return std::nullopt;
    const Value* other =
        product->input(0) == cast->output(0) ? product->input(1) : product->input(0);
    if (!is_op(other->producer, "Mul")) return std::nullopt;
    const Node* scaled = other->producer;
    if (ir::is_number(scaled->input(1), 1)) scaled = scaled->input(0)->producer;  // QGemm's alpha
    if (scaled == nullptr || !is_op(*scaled, {"Mul"})) return std::nullopt;
    const Value* input = numbers_of(scaled->input(0));
    const Value* weight = numbers_of(scaled->input(1));
    if (input == nullptr || weight == nullptr || !has_steps(input->initializer) ||
        !has_steps(weight->initializer) || input->initializer.num_elements() != 1) {
      return std::nullopt;
    }
    FloatWeight found{.name = value->name,
                      .dtype = DataType::kInt32,
                      .axis = 0,
                      .dims = value->initializer.dims(),
                      .input_scale = input->name,
                      .weight_scale = weight->name};
    std::vector<double> numbers = value->initializer.to_doubles();
    const std::vector<double> scale = products(input->initializer, weight->initializer);
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] *= scale[scale.size() == 1 ? 0 : i];
    make_float(value, Tensor::from(numbers, found.dims).cast(input->dtype()));
    round_bias(value, product, other->producer->output(0), {});
    return found;
  }

  static std::vector<double> products(const Tensor& input, const Tensor& weight) {
    std::vector<double> scale = weight.to_doubles();
    for (double& one : scale) one *= input.to_doubles().front();
    return scale;
  }

  // The scales of the layer, if that of its bias is their product.
  std::vector<Value*> name_factors(const Node& dequantize, const Value& scale,
                                   FloatWeight& found) const {
    const Node* layer = only_reader(dequantize.output(0));
    if (layer == nullptr) return {};
    if (is_op(*layer, {"Add"})) {
      const Value* sum = layer->input(layer->input(0) == dequantize.output(0) ? 1 : 0);
      if (sum == nullptr || !is_op(sum->producer, "MatMul")) return {};
      layer = sum->producer;
    } else if (!is_op(*layer, {"Conv", "ConvTranspose", "Gemm"})) {
      return {};
    }
    const Value* input = scale_read(layer->input(0));
    const Value* weight = scale_read(layer->input(1));
    if (input == nullptr || weight == nullptr || input->initializer.num_elements() != 1 ||
        weight->initializer.dims().rank() > 1) {
      return {};
    }
    const std::vector<double> product = products(input->initializer, weight->initializer);
    const std::vector<double> own = scale.initializer.to_doubles();
    if (own.size() != product.size()) return {};
    for (std::size_t i = 0; i < own.size(); ++i) {
      if (std::fabs(own[i] - product[i]) > 1e-4 * std::fabs(own[i])) return {};
    }
    found.input_scale = input->name;
    found.weight_scale = weight->name;
    return {const_cast<Value*>(input), const_cast<Value*>(weight)};  // of the draft
  }

  // The scale of the quantized values that a layer reads.
  static const Value* scale_read(const Value* value) {
    const Value* root = ir::look_through(value, builtin_ops().passing(opdef::Passage::kPermuted));
    const Node* node = root == nullptr ? nullptr : root->producer;
    if (node == nullptr) return nullptr;
    const bool is_quantized = is_op(*node, {"DequantizeLinear"}) ||
                              opdef::base_name(node->domain, node->op_type) == "FakeQuantize";
    return is_quantized ? numbers_of(node->input(1)) : nullptr;
  }

  // Replaces the node that computes a bias from integers by a rounding to steps of `scale`, or of
  // the product of `factors`.
  void round_bias(Value* value, Node* node, Value* scale, const std::vector<Value*>& factors) {
    ir::GraphBuilder& g = draft_.g();
    const std::size_t before = graph_.nodes.size();
    if (scale == nullptr) scale = g.mul(factors[0], factors[1]);
    Node* call = g.call("RoundedBias", {value, scale}, 1)[0]->producer;
    const auto first = graph_.nodes.begin() + static_cast<std::ptrdiff_t>(before);
    const std::vector<Node*> added(first, graph_.nodes.end());
    graph_.nodes.erase(first, graph_.nodes.end());
    const auto place = graph_.nodes.erase(std::ranges::find(graph_.nodes, node));
    graph_.nodes.insert(place, added.begin(), added.end());
    ir::Graph::set_output(call, 0, node->output(0));
  }

  Draft& draft_;
  ir::Graph& graph_;
  ir::Uses uses_;
  const NamedTensors& given_;
};

const Tensor* find_tensor(const NamedTensors& weights, const std::string& name) {
  const auto found = std::ranges::find(weights, name, &NamedTensor::name);
  return found == weights.end() ? nullptr : &found->tensor;
}

// The current value of a weight or constant.
Tensor value_of(const FloatForm& form, const NamedTensors& weights, const std::string& name) {
  if (name.empty()) return {};
  const Tensor& old = form.model->graph->find(name)->initializer;
  const Tensor* given = find_tensor(weights, name);
  return given == nullptr ? old : given->cast(old.dtype());  // a master weight is float32
}

Tensor bias_integers(const Tensor& numbers, const Tensor& scale) {
  const std::vector<double> from = numbers.to_doubles();
  const std::vector<double> steps = scale.to_doubles();
  std::vector<std::int32_t> codes(from.size());
  constexpr double kLow = std::numeric_limits<std::int32_t>::min();
  constexpr double kHigh = std::numeric_limits<std::int32_t>::max();
  for (std::size_t i = 0; i < from.size(); ++i) {
    const double step = steps[steps.size() == 1 ? 0 : i];
    double quotient = from[i] / step;
    if (numbers.dtype() == DataType::kFloat32) quotient = static_cast<float>(quotient);  // as Div
    codes[i] = static_cast<std::int32_t>(std::clamp(std::nearbyint(quotient), kLow, kHigh));
  }
  return Tensor::from(codes, numbers.dims());
}

Tensor product(const Tensor& input, const Tensor& weight) {
  std::vector<double> scale = weight.to_doubles();
  for (double& one : scale) one *= input.to_doubles().front();
  return Tensor::from(scale, weight.dims()).cast(weight.dtype());
}

}  // namespace

FloatForm with_float_weights(std::shared_ptr<const ir::Model> working, const NamedTensors& given) {
  const auto is_whole = [](const Value* value) { return !is_floating(value->dtype()); };
  const bool any = std::ranges::any_of(working->graph->nodes, [&](const Node* node) {
    return is_op(*node, {"DequantizeLinear"}) && node->input(0)->is_constant() &&
           is_whole(node->input(0));
  });
  if (!any || has_adapters(*working)) return {.model = std::move(working)};
  Draft draft(*working, builtin_ops());
  std::vector<FloatWeight> weights = Replacer(draft, given).run();
  if (weights.empty()) return {.model = std::move(working)};
  return {.model = draft.model(), .weights = std::move(weights)};
}

void to_integers(const FloatForm& form, NamedTensors& weights) {
  NamedTensors integers;
  NamedTensors scales;
  for (const FloatWeight& weight : form.weights) {
    const Tensor* given = find_tensor(weights, weight.name);
    if (given != nullptr && !is_floating(given->dtype())) continue;  // integers already
    const bool is_changed = given != nullptr || find_tensor(weights, weight.scale) != nullptr ||
                            find_tensor(weights, weight.input_scale) != nullptr ||
                            find_tensor(weights, weight.weight_scale) != nullptr;
    if (!is_changed) continue;
    const Tensor numbers = value_of(form, weights, weight.name);
    Tensor scale = value_of(form, weights, weight.scale);
    Tensor codes;
    if (weight.dtype == DataType::kInt32) {
      if (!weight.input_scale.empty()) {
        Tensor now = product(value_of(form, weights, weight.input_scale),
                             value_of(form, weights, weight.weight_scale));
        const bool is_learned = find_tensor(weights, weight.input_scale) != nullptr ||
                                find_tensor(weights, weight.weight_scale) != nullptr;
        if (!weight.scale.empty() && is_learned) {
          now = now.reshaped(scale.dims()).cast(scale.dtype());
          scales.push_back({.name = weight.scale, .tensor = now});
        }
        if (is_learned || weight.scale.empty()) scale = now;
      }
      codes = bias_integers(numbers, scale);
    } else {
      codes = quantized(weight, numbers, scale, value_of(form, weights, weight.zero_point));
    }
    integers.push_back({.name = weight.name, .tensor = codes.reshaped(weight.dims)});
  }
  for (NamedTensors* list : {&integers, &scales}) {
    for (NamedTensor& one : *list) {
      std::erase_if(weights, [&](const NamedTensor& old) { return old.name == one.name; });
      weights.push_back(std::move(one));
    }
  }
}

}  // namespace onnxgrad::train
