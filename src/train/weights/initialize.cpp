#include "train/weights/initialize.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <unordered_set>
#include <vector>

#include "base/philox.h"
#include "ir/pattern.h"
#include "ir/uses.h"
#include "train/tools/engine.h"
#include "train/weights/weights.h"

namespace onnxgrad::train {
namespace {

using ir::is_op;
using ir::Node;
using ir::Value;

/// The kind of a weight.
enum class LayerRole {
  kMatrix,
  kConvolution,
  kBias,
  kScale,
  kShift,
  kRunningVariance,
  kEmbedding,
  kRecurrent,
  kTable,   ///< tokens and positions, concatenated or added to values
  kFactor,  ///< scales of values outside of layers; left unchanged
};

/// A weight and what its initial values depend on.
struct Layer {
  LayerRole role = LayerRole::kMatrix;
  double fan_in = 1;
  double fan_out = 1;
  double hidden = 1;            ///< hidden size of recurrent weights
  bool of_convolution = false;  ///< a bias of one
  bool before_sigmoid = false;  ///< the layer's activation, for scikit-learn's bound
};

// The node that computes `value`, before those that pass its elements on; nullptr: an input.
const Node* source_of(const Value* value, const ir::NodeTest& passes) {
  value = ir::look_through(value, passes);
  return value == nullptr ? nullptr : value->producer;
}

// Follows the only reader of a layer's output to its activation, through bias and identities.
class ActivationFinder {
 public:
  ActivationFinder(const ir::Graph& graph, const opdef::OpRegistry& registry)
      : uses_(graph), passes_(registry.passing(opdef::Passage::kReshaped)) {}

  bool is_hidden_sigmoid(const Node& layer) const {
    const Node* activation = after(layer);
    if (activation != nullptr && leads_to_layer(*activation)) return is_op(activation, "Sigmoid");
    // The layer of the scores: scikit-learn uses the hidden layers' activation.
    return is_op(source_of(layer.input(0), passes_), "Sigmoid");
  }

 private:
  // The first node after `layer` that is neither its bias nor an identity.
  const Node* after(const Node& layer) const {
    const Node* node = uses_.first_reader(layer.output(0));
    while (node != nullptr && (is_op(node, "Add") || passes_(*node))) {
      node = uses_.first_reader(node->output(0));
    }
    return node;
  }
  bool leads_to_layer(const Node& activation) const {
    std::unordered_set<const Node*> seen;
    std::vector<const Node*> open{&activation};
    while (!open.empty()) {
      const Node* node = open.back();
      open.pop_back();
      if (node == nullptr || !seen.insert(node).second) continue;
      if (node != &activation && is_op(*node, {"MatMul", "Gemm", "Conv"})) return true;
      for (const Value* output : node->outputs) {
        for (const ir::Use& use : uses_.of(output)) open.push_back(use.node);
      }
    }
    return false;
  }

  ir::Uses uses_;
  ir::NodeTest passes_;
};

Layer matrix_layer(const Node& node, const Dims& dims, int input) {
  Layer layer;
  if (dims.rank() < 2) {
    layer.fan_in = static_cast<double>(dims.num_elements());
    return layer;
  }
  auto in = static_cast<double>(dims[dims.rank() - 2]);
  auto out = static_cast<double>(dims[dims.rank() - 1]);
  const bool transposed =
      node.op_type == "Gemm" && complete_node(node).int_attribute("transB") != 0;
  if (transposed || input == 0) std::swap(in, out);
  layer.fan_in = in;
  layer.fan_out = out;
  return layer;
}

Layer convolution_layer(const Node& node, const Dims& dims) {
  Layer layer{.role = LayerRole::kConvolution};
  if (dims.rank() < 2) return layer;
  const auto window = static_cast<double>(dims.product(2, dims.rank()));
  const auto group = static_cast<double>(complete_node(node).int_attribute("group"));
  layer.fan_in = static_cast<double>(dims[1]) * window;
  layer.fan_out = static_cast<double>(dims[0]) / group * window;
  if (node.op_type == "ConvTranspose") std::swap(layer.fan_in, layer.fan_out);
  return layer;
}

Layer layer_of_node(const Node& node, const Dims& dims, int input) {
  if (is_op(node, {"Conv", "ConvTranspose"})) {
    return input == 1 ? convolution_layer(node, dims) : Layer{.role = LayerRole::kBias};
  }
  if (is_op(node, {"BatchNormalization", "LayerNormalization", "InstanceNormalization",
                   "GroupNormalization", "RMSNormalization"})) {
    constexpr std::array kRoles{LayerRole::kScale, LayerRole::kShift, LayerRole::kShift,
                                LayerRole::kRunningVariance};
    return {.role = kRoles.at(static_cast<std::size_t>(std::clamp(input - 1, 0, 3)))};
  }
  if (is_op(node, {"RNN", "GRU", "LSTM"})) {
    return {.role = LayerRole::kRecurrent,
            .hidden = static_cast<double>(
                std::max<std::int64_t>(1, node.int_attribute("hidden_size", 1)))};
  }
  if (is_op(node, {"Gather", "GatherND"}) && input == 0) return {.role = LayerRole::kEmbedding};
  if (node.op_type == "Gemm" && input == 2) return {.role = LayerRole::kBias};
  return matrix_layer(node, dims, input);
}

// The layer of a bias: its fans are those of the matrix whose product it is added to.
Layer bias_layer(const Node& layer_node) {
  const auto converts = builtin_ops().passing(opdef::Passage::kConverted);
  Layer layer{.role = LayerRole::kBias};
  for (std::size_t i = 0; i < layer_node.inputs.size(); ++i) {
    const Value* source = ir::look_through(layer_node.inputs[i], converts);
    if (source == nullptr || !source->is_initializer() || source->initializer.dims().rank() < 2)
      continue;
    const Layer matrix = layer_of_node(layer_node, source->initializer.dims(), static_cast<int>(i));
    layer.of_convolution = matrix.role == LayerRole::kConvolution;
    layer.fan_in = matrix.fan_in;
    layer.fan_out = matrix.fan_out;
  }
  return layer;
}

bool is_matrix(const Dims& dims) {
  return std::ranges::count_if(dims, [](std::int64_t dim) { return dim > 1; }) > 1;
}

// A parameter that no layer reads as its own.
Layer operand(const Weight& weight) {
  const Node& node = *weight.reader;
  if (is_op(node, {"Add", "Concat", "Where"}) && weight.value->initializer.num_elements() > 1) {
    return {.role = LayerRole::kTable};
  }
  const Dims& dims = weight.value->initializer.dims();
  // In an expression that a layer reads: the matrix of a standardised convolution.
  if (is_op(node, {"Conv", "ConvTranspose", "MatMul", "Gemm"}) && is_matrix(dims)) {
    return layer_of_node(node, dims, weight.input);
  }
  return {.role = LayerRole::kFactor};
}

Layer layer_of(const Weight& weight, const ActivationFinder& activations) {
  if (weight.reader == nullptr) return {};
  if (weight.trainable && !weight.is_of_layer) return operand(weight);
  const Node& node = weight.layer != nullptr ? *weight.layer : *weight.reader;
  if (weight.trainable && is_op(node, {"Mul"})) {  // a normalisation that is written out
    return {.role = weight.layer != nullptr ? LayerRole::kShift : LayerRole::kScale};
  }
  Layer layer = weight.layer != nullptr
                    ? bias_layer(*weight.layer)
                    : layer_of_node(node, weight.value->initializer.dims(), weight.input);
  if (layer.role == LayerRole::kBias && weight.layer == nullptr) {
    const LayerRole role = layer.role;
    layer = bias_layer(node);
    layer.role = role;
  }
  if (is_op(node, {"MatMul", "Gemm"})) layer.before_sigmoid = activations.is_hidden_sigmoid(node);
  return layer;
}

Distribution uniform(double width) {
  return {.kind = Distribution::Kind::kUniform, .width = width};
}
Distribution normal(double width) { return {.kind = Distribution::Kind::kNormal, .width = width}; }
Distribution constant(double value) { return {.width = value}; }

Distribution scaled(InitScheme scheme, const Layer& layer) {
  const double in = std::max(1.0, layer.fan_in);
  const double both = std::max(1.0, layer.fan_in + layer.fan_out);
  switch (scheme) {
    case InitScheme::kGlorotUniform:
      return uniform(std::sqrt(6 / both));
    case InitScheme::kGlorotNormal:
      return normal(std::sqrt(2 / both));
    case InitScheme::kHeUniform:
      return uniform(std::sqrt(6 / in));
    case InitScheme::kHeNormal:
      return normal(std::sqrt(2 / in));
    case InitScheme::kLecunUniform:
      return uniform(std::sqrt(3 / in));
    case InitScheme::kLecunNormal:
      return normal(std::sqrt(1 / in));
    case InitScheme::kUniform:
      return uniform(1 / std::sqrt(in));
    case InitScheme::kNormal:
      return normal(1);
    case InitScheme::kZeros:
      return constant(0);
    case InitScheme::kAuto:
      return uniform(std::sqrt((layer.before_sigmoid ? 2 : 6) / both));
  }
  return constant(0);
}

constexpr double kTableDeviation = 0.02;  // usual in vision and language transformers

Distribution choose(InitScheme scheme, const Layer& layer) {
  switch (layer.role) {
    case LayerRole::kScale:
    case LayerRole::kRunningVariance:
      return constant(1);
    case LayerRole::kShift:
      return constant(0);
    case LayerRole::kEmbedding:
      return scheme == InitScheme::kZeros ? constant(0) : normal(1);
    case LayerRole::kRecurrent:
      return scheme == InitScheme::kZeros ? constant(0) : uniform(1 / std::sqrt(layer.hidden));
    case LayerRole::kBias: {
      const bool drawn = scheme == InitScheme::kUniform || scheme == InitScheme::kNormal ||
                         (scheme == InitScheme::kAuto && !layer.of_convolution);
      return drawn ? scaled(scheme, layer) : constant(0);
    }
    case LayerRole::kConvolution:
      return scaled(scheme == InitScheme::kAuto ? InitScheme::kHeNormal : scheme, layer);
    case LayerRole::kMatrix:
      return scaled(scheme, layer);
    case LayerRole::kTable:
      return scheme == InitScheme::kZeros ? constant(0) : normal(kTableDeviation);
    case LayerRole::kFactor:
      break;
  }
  return constant(0);
}

}  // namespace

Tensor draw(const Distribution& distribution, DataType dtype, const Dims& dims, std::uint64_t seed,
            std::uint32_t stream) {
  base::PhiloxStream random(seed, base::RandomUse::kWeights, stream);
  Tensor numbers = Tensor::empty(DataType::kFloat64, dims);
  for (double& number : numbers.mutable_data<double>()) {
    switch (distribution.kind) {
      case Distribution::Kind::kUniform:
        number = distribution.width * (2 * random.uniform() - 1);
        break;
      case Distribution::Kind::kNormal:
        number = distribution.width * random.normal();
        break;
      case Distribution::Kind::kConstant:
        number = distribution.width;
        break;
    }
  }
  return numbers.cast(dtype);
}

NamedTensors draw_weights(const ir::Model& working, const opdef::OpRegistry& registry,
                          const InitializeOptions& options) {
  const auto all = find_weights(working, registry);
  const auto chosen = select_weights(all, options.weights, {});
  const ActivationFinder activations(*working.graph, registry);
  NamedTensors drawn;
  std::uint32_t place = 0;
  for (const Weight& weight : all) {
    const std::uint32_t stream = place++;
    if (std::ranges::find(chosen, weight.value, &Weight::value) == chosen.end()) continue;
    const Tensor& old = weight.value->initializer;
    const Layer layer = layer_of(weight, activations);
    if (layer.role == LayerRole::kFactor) continue;
    const Distribution distribution = choose(options.scheme, layer);
    drawn.push_back({.name = weight.value->name,
                     .tensor = draw(distribution, old.dtype(), old.dims(), options.seed, stream)});
  }
  return drawn;
}

}  // namespace onnxgrad::train
