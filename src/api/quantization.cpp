#include "onnxgrad/quantization.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "api/model_impl.h"
#include "base/check.h"
#include "ir/pattern.h"
#include "onnxgrad/inference_session.h"
#include "onnxgrad/option_error.h"
#include "onnxgrad/transfer.h"
#include "train/quantization/insert.h"
#include "train/weights/adapter_record.h"

namespace onnxgrad {
namespace {

constexpr std::array<std::pair<std::string_view, Calibration>, 4> kCalibrations{{
    {"minmax", Calibration::kMinMax},
    {"percentile", Calibration::kPercentile},
    {"mse", Calibration::kMse},
    {"entropy", Calibration::kEntropy},
}};
constexpr std::array<std::pair<std::string_view, ScaleGroups>, 3> kGroups{{
    {"tensor", ScaleGroups::kTensor},
    {"channel", ScaleGroups::kChannel},
    {"block", ScaleGroups::kBlock},
}};

template <class Table>
auto from_name(const Table& table, std::string_view name, std::string_view what) {
  std::vector<std::string> names;
  for (const auto& [known, value] : table) {
    if (known == name) return value;
    names.emplace_back(known);
  }
  throw OptionError({.what = fmt::format("there is no {} '{}'", what, base::printable(name)),
                     .detail = "Known: " + base::quote_list(names) + ".",
                     .hint = base::nearest_or(name, names)});
}

void check(const QuantizationOptions& options) {
  if (options.weights != DataType::kInt8 && options.weights != DataType::kInt4) {
    throw OptionError(
        {.what = fmt::format("weights are {}, expected int8 or int4", dtype_name(options.weights)),
         .hint = R"(Give quantize="int8" or "int4".)"});
  }
  if (options.block_size < 2) {
    throw OptionError(
        {.what = fmt::format("block_size is {}, expected 2 or more", options.block_size),
         .hint = "16, 32, 64 and 128 are usual."});
  }
  if (!(options.percentile > 50 && options.percentile <= 100)) {
    throw OptionError(
        {.what = fmt::format("percentile is {}, expected more than 50 and at most 100",
                             options.percentile),
         .hint = "99.99 is usual."});
  }
}

// The model in an operator set that has the operators of the options.
Model in_opset_for(const Model& model, const QuantizationOptions& options) {
  constexpr std::int64_t kOldestTarget = 17;
  const std::int64_t opset = train::opset_for(options);
  if (model.opset() >= opset) return model;
  return api::wrap(
      onnx_io::to_target_opset(*model.impl().file_graph(), std::max(opset, kOldestTarget), false));
}

// Weights that are integers already keep their type.
void expect_same_integers(const ir::Graph& graph, DataType wanted) {
  for (const ir::Node* node : graph.nodes) {
    const bool reads_integers = ir::is_op(*node, {"DequantizeLinear", "QLinearConv"}) ||
                                ir::is_op(*node, {"QLinearMatMul"}) || node->op_type == "QGemm";
    if (!reads_integers) continue;
    for (const ir::Value* input : node->inputs) {
      const bool is_weight = input != nullptr && input->is_constant() &&
                             input->initializer.dims().rank() >= 2 && !is_floating(input->dtype());
      if (!is_weight || size_bits(input->dtype()) == size_bits(wanted)) continue;
      throw ModelError({.what = fmt::format("the weight is {} already, and {} is asked for",
                                            dtype_name(input->dtype()), dtype_name(wanted)),
                        .where = {.value = input->name},
                        .hint = "Train the file without quantize=, or quantize the float model."});
    }
  }
}

// The values that have no quantized form yet.
std::vector<std::string> observed_names(const std::vector<train::QuantizableLayer>& layers) {
  std::vector<std::string> names;
  for (const train::QuantizableLayer& layer : layers) {
    const ir::Value* value = layer.node->inputs[layer.input];
    if (ir::is_op(value->producer, "DequantizeLinear")) continue;
    if (std::ranges::find(names, value->name) == names.end()) names.push_back(value->name);
  }
  return names;
}

train::Ranges observe(const Model& model, const std::vector<std::string>& names,
                      std::span<const NamedTensors> batches) {
  train::Ranges ranges;
  if (names.empty()) return ranges;
  if (batches.empty()) {
    throw DataError({.what = "quantization of activations needs rows to calibrate with",
                     .hint = "Give calibration= some rows of the training data, or quantize the "
                             "weights alone: activations=False."});
  }
  const auto add = [&](const std::string& name, const Tensor& values) {
    const Tensor numbers = values.cast(DataType::kFloat32);
    const std::int64_t rows = values.dims().rank() == 0 ? 1 : values.dims()[0];
    ranges[name].add(numbers.data<float>(), rows);
  };
  std::vector<std::string> fed;
  std::vector<std::string> inner;
  for (const std::string& name : names) {
    const auto& inputs = model.inputs();
    (std::ranges::find(inputs, name, &ValueInfo::name) == inputs.end() ? inner : fed)
        .push_back(name);
  }
  std::unique_ptr<InferenceSession> session;
  if (!inner.empty()) session = std::make_unique<InferenceSession>(features(model, inner));
  for (const NamedTensors& batch : batches) {
    for (const std::string& name : fed) {
      const auto given = std::ranges::find(batch, name, &NamedTensor::name);
      if (given == batch.end()) {
        throw DataError({.what = fmt::format("the calibration has no input '{}'", name),
                         .where = {.value = name},
                         .hint = "Give all inputs of the model."});
      }
      add(name, given->tensor);
    }
    if (session == nullptr) continue;
    NamedTensors feeds;
    for (const ValueInfo& input : session->inputs()) {
      const auto given = std::ranges::find(batch, input.name, &NamedTensor::name);
      if (given != batch.end()) feeds.push_back(*given);
    }
    const std::vector<Tensor> results = session->run(inner, feeds);
    for (std::size_t i = 0; i < inner.size(); ++i) add(inner[i], results[i]);
  }
  return ranges;
}

}  // namespace

Calibration calibration_from_name(std::string_view name) {
  return from_name(kCalibrations, name, "calibration");
}

ScaleGroups scale_groups_from_name(std::string_view name) {
  return from_name(kGroups, name, "kind of scales");
}

Model quantize(const Model& model, std::span<const NamedTensors> batches,
               const QuantizationOptions& options) {
  check(options);
  if (train::has_adapters(*model.impl().file.model)) {
    throw ModelError({.what = "the model has adapters: its layers cannot be quantized",
                      .hint = "Quantize it before they are added, or merge them first."});
  }
  const Model base = in_opset_for(model, options);
  auto graph = std::make_shared<ir::Model>(ir::clone(*base.impl().current_file_or_graph().model));
  train::settle_constants(*graph);
  expect_same_integers(*graph->graph, options.weights);
  if (options.fold_batch_norms) train::fold_norms(*graph->graph);
  const auto layers = train::quantizable_layers(*graph, *base.impl().working(), options);
  if (layers.empty()) {
    if (options.learn_ranges) train::learn_scales(*graph);
    return Model(api::edited(base, std::move(graph)));
  }
  train::Ranges ranges;
  if (options.activations) {
    const Model folded(api::edited(base, std::make_shared<ir::Model>(ir::clone(*graph))));
    ranges = observe(folded, observed_names(layers), batches);
  }
  NamedTensors floats = train::insert_quantization(*graph, layers, ranges, options);
  auto made = api::edited(base, std::move(graph));
  made->float_weights = std::move(floats);
  return Model(std::move(made));
}

NamedTensors float_weights(const Model& model) { return model.impl().float_weights; }

Model with_float_weights(const Model& model, const NamedTensors& weights) {
  auto made = std::make_shared<Model::Impl>(model.impl(), NamedTensors{});
  made->float_weights = weights;
  return Model(std::move(made));
}

}  // namespace onnxgrad
