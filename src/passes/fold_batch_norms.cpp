#include <cmath>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "ir/uses.h"
#include "passes/passes.h"

namespace onnxgrad::passes {
namespace {

// BatchNormalization in inference mode, per channel: y = factor * x + shift.
struct ChannelScale {
  std::vector<double> factor;
  std::vector<double> shift;
};

template <class T>
std::vector<double> as_doubles(const Tensor& tensor) {
  const auto data = tensor.data<T>();
  return {data.begin(), data.end()};
}

template <class T>
ChannelScale channel_scale(const ir::Node& norm) {
  constexpr float kDefaultEpsilon = 1e-5F;
  const double epsilon = norm.float_attribute("epsilon", kDefaultEpsilon);
  ChannelScale result{.factor = as_doubles<T>(norm.inputs[1]->initializer),
                      .shift = as_doubles<T>(norm.inputs[2]->initializer)};
  const auto mean = norm.inputs[3]->initializer.data<T>();
  const auto variance = norm.inputs[4]->initializer.data<T>();
  for (std::size_t c = 0; c < result.factor.size(); ++c) {
    result.factor[c] /= std::sqrt(static_cast<double>(variance[c]) + epsilon);
    result.shift[c] -= result.factor[c] * static_cast<double>(mean[c]);
  }
  return result;
}

// Output channels are the first axis of the weight of a Conv, and an axis of a Gemm's B.
struct WeightLayout {
  std::int64_t channels;
  std::int64_t outer;  ///< elements per channel before the axis
  std::int64_t inner;  ///< elements per channel after it
};

std::optional<WeightLayout> layout_of(const ir::Node& layer) {
  const Dims& dims = layer.inputs[1]->initializer.dims();
  if (layer.op_type == "Conv" && dims.rank() >= 3) {
    return WeightLayout{.channels = dims[0], .outer = 1, .inner = dims.num_elements() / dims[0]};
  }
  if (layer.op_type != "Gemm" || dims.rank() != 2) return std::nullopt;
  if (layer.int_attribute("transB", 0) != 0) return WeightLayout{dims[0], 1, dims[1]};
  return WeightLayout{.channels = dims[1], .outer = dims[0], .inner = 1};
}

template <class T>
Tensor scaled_weight(const Tensor& weight, const WeightLayout& layout, const ChannelScale& scale) {
  Tensor result = Tensor::empty(weight.dtype(), weight.dims());
  const auto from = weight.data<T>();
  const auto to = result.mutable_data<T>();
  std::size_t i = 0;
  for (std::int64_t outer = 0; outer < layout.outer; ++outer) {
    for (const double factor : scale.factor) {
      for (std::int64_t inner = 0; inner < layout.inner; ++inner, ++i) {
        to[i] = static_cast<T>(factor * static_cast<double>(from[i]));
      }
    }
  }
  return result;
}

// The bias of the layer (nullptr: zeros), which its `beta` multiplies, scaled and shifted.
template <class T>
Tensor scaled_bias(const ir::Value* bias, double beta, const WeightLayout& layout,
                   const ChannelScale& scale, DataType dtype) {
  Tensor result = Tensor::empty(dtype, Dims{layout.channels});
  const auto to = result.mutable_data<T>();
  for (std::size_t c = 0; c < to.size(); ++c) {
    const double old = bias == nullptr ? 0 : static_cast<double>(bias->initializer.data<T>()[c]);
    to[c] = static_cast<T>(scale.factor[c] * beta * old + scale.shift[c]);
  }
  return result;
}

bool is_channel_vector(const ir::Value* value, std::int64_t channels, DataType dtype) {
  return value != nullptr && value->is_constant() && value->initializer.dtype() == dtype &&
         value->initializer.dims() == Dims{channels};
}

// Whether `norm` only scales and shifts the channels of `layer` by constants.
bool can_fold(const ir::Node& norm, const ir::Node& layer) {
  if (!layer.domain.empty() || layer.inputs.size() < 2) return false;
  const ir::Value* weight = layer.inputs[1];
  if (weight == nullptr || !weight->is_constant()) return false;
  const DataType dtype = weight->initializer.dtype();
  if (dtype != DataType::kFloat32 && dtype != DataType::kFloat64) return false;
  if (weight->initializer.num_elements() == 0) return false;
  const auto layout = layout_of(layer);
  if (!layout) return false;
  if (layer.input(2) != nullptr && !is_channel_vector(layer.input(2), layout->channels, dtype)) {
    return false;
  }
  for (std::size_t i = 1; i <= 4; ++i) {
    if (!is_channel_vector(norm.input(i), layout->channels, dtype)) return false;
  }
  return true;
}

bool is_inference_norm(const ir::Node& node) {
  if (node.op_type != "BatchNormalization" || !node.domain.empty()) return false;
  if (node.int_attribute("training_mode", 0) != 0) return false;
  for (std::size_t i = 1; i < node.outputs.size(); ++i) {
    if (node.outputs[i] != nullptr) return false;
  }
  return true;
}

template <class T>
void fold(ir::Graph& graph, ir::Node& norm, ir::Node& layer) {
  const WeightLayout layout = *layout_of(layer);
  const ChannelScale scale = channel_scale<T>(norm);
  const Tensor weight = layer.inputs[1]->initializer;
  const double beta = layer.op_type == "Gemm" ? layer.float_attribute("beta", 1.0F) : 1.0;
  Tensor bias = scaled_bias<T>(layer.input(2), beta, layout, scale, weight.dtype());
  layer.inputs.resize(3);
  layer.inputs[1] =
      graph.add_initializer(layer.inputs[1]->name, scaled_weight<T>(weight, layout, scale));
  layer.inputs[2] = graph.add_initializer(norm.inputs[2]->name, std::move(bias));
  if (layer.op_type == "Gemm") layer.set_attribute("beta", 1.0F);
}

}  // namespace

bool fold_batch_norms(ir::Graph& graph) {
  const ir::Uses uses(graph);
  std::vector<ir::Node*> kept;
  bool changed = false;
  for (ir::Node* node : graph.nodes) {
    for (ir::Graph* body : node->subgraphs()) changed |= fold_batch_norms(*body);
    ir::Value* x = is_inference_norm(*node) ? node->input(0) : nullptr;
    ir::Node* layer = x == nullptr || x->graph != &graph ? nullptr : x->producer;
    if (layer == nullptr || uses.only_reader(x) != node || !can_fold(*node, *layer)) {
      kept.push_back(node);
      continue;
    }
    if (layer->inputs[1]->initializer.dtype() == DataType::kFloat32) {
      fold<float>(graph, *node, *layer);
    } else {
      fold<double>(graph, *node, *layer);
    }
    x->producer = nullptr;
    ir::Graph::set_output(layer, 0, node->outputs[0]);
    changed = true;
  }
  graph.nodes = std::move(kept);
  return changed;
}

}  // namespace onnxgrad::passes
