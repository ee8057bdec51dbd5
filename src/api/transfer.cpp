#include "onnxgrad/transfer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "api/model_impl.h"
#include "ir/pattern.h"
#include "onnxgrad/inference_session.h"
#include "onnxgrad/option_error.h"
#include "opdef/quantized_weight.h"
#include "train/transfer/cut.h"
#include "train/transfer/replace_head.h"
#include "train/transfer/unfold_batch_norm.h"
#include "train/weights/adapter_record.h"

namespace onnxgrad {
namespace {

using train::ChannelStatistics;

// Over all axes but the channels, less the bias of each channel.
ChannelStatistics statistics_of(const Tensor& results, const std::vector<double>& biases) {
  const std::vector<double> numbers = results.to_doubles();
  const Dims& dims = results.dims();
  const auto channels = static_cast<std::size_t>(dims[1]);
  const auto inner = static_cast<std::size_t>(dims.product(2, dims.rank()));
  ChannelStatistics found{.means = std::vector<double>(channels, 0.0),
                          .variances = std::vector<double>(channels, 0.0)};
  const std::size_t per_channel = numbers.size() / channels;
  const double count = std::max(1.0, static_cast<double>(per_channel));
  const auto channel = [&](std::size_t i) { return i / inner % channels; };
  for (std::size_t i = 0; i < numbers.size(); ++i) found.means[channel(i)] += numbers[i] / count;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const double distance = numbers[i] - found.means[channel(i)];
    found.variances[channel(i)] += distance * distance / count;
  }
  for (std::size_t i = 0; i < channels; ++i) found.means[i] -= biases[i];
  return found;
}

// The layers of adapters are no layers of the network.
void refuse_adapters(const Model& model) {
  if (!train::has_adapters(*model.impl().file.model)) return;
  throw ModelError({.what = "the model has adapters: its layers cannot be replaced or cut off",
                    .hint = "Merge them first, or change the model before they are added."});
}

}  // namespace

Model replace_head(const Model& model, const HeadOptions& options) {
  refuse_adapters(model);
  auto graph = model.impl().copied_graph();
  std::vector<std::string> names = train::replace_heads(*graph, *model.impl().working(), options);
  Model made(api::edited(model, std::move(graph)));
  if (names.empty()) return made;
  return initialize(made, {.scheme = options.scheme,
                           .seed = options.seed,
                           .weights = std::move(names),
                           .untie = false});
}

Model features(const Model& model, const std::vector<std::string>& at) {
  refuse_adapters(model);
  auto graph = model.impl().copied_graph();
  train::cut(*graph, *model.impl().working(), at);
  return Model(api::edited(model, std::move(graph)));
}

std::vector<PlaceTable> place_tables(const Model& model) {
  constexpr std::int64_t kMostRows = 1 << 14;
  const ir::Graph& graph = *model.impl().file.model->graph;
  std::vector<PlaceTable> found;
  for (const ir::Node* node : graph.nodes) {
    if (!ir::is_op(*node, {"Gather", "Slice"}) || node->inputs.size() < 2) continue;
    const ir::Value* table = node->inputs[0];
    const ir::Value* chosen = node->inputs[1];
    const ir::Value* value = node->outputs.front();
    if (table == nullptr || chosen == nullptr || value == nullptr) continue;
    const bool is_fed = std::ranges::find(graph.inputs, chosen) != graph.inputs.end();
    if (is_fed && chosen->name.find("position") == std::string::npos) continue;
    const Tensor* numbers = opdef::constant_tensor(table);
    if (numbers == nullptr || numbers->dims().rank() < 2) continue;
    const std::int64_t rows = numbers->dims()[numbers->dims().rank() - 2];
    if (rows > kMostRows) continue;
    found.push_back({.weight = table->name, .rows = rows, .value = value->name});
  }
  return found;
}

Model place_values(const Model& model, const std::vector<PlaceTable>& tables) {
  std::vector<std::string> names;
  for (const PlaceTable& table : tables) names.push_back(table.value);
  auto graph = model.impl().copied_graph();
  train::cut(*graph, *model.impl().working(), names);
  return Model(api::edited(model, std::move(graph)));
}

Model unfold_batch_norm(const Model& model, const UnfoldOptions& options) {
  if (!(options.epsilon > 0 && options.epsilon < 1)) {
    throw OptionError({.what = "epsilon must be in (0, 1)", .hint = "1e-5 is usual."});
  }
  auto graph = model.impl().copied_graph();
  const std::vector<std::string> names = train::folded_results(*graph);
  if (names.empty()) {
    throw ModelError({.what = "the model has no convolution with a bias and without a "
                              "normalisation",
                      .hint = "Train it as it is."});
  }
  std::vector<Tensor> results;
  if (!options.rows.empty()) {
    InferenceSession session(features(model, names));
    results = session.run(names, options.rows);
  }
  const auto statistics = [&](const std::string& name) -> ChannelStatistics {
    if (results.empty()) return {};
    const auto at = std::ranges::find(names, name) - names.begin();
    const ir::Node& node = *graph->graph->find(name)->producer;
    const ir::Value& bias = *node.input(2);
    const Tensor numbers = bias.is_initializer()
                               ? bias.initializer
                               : std::get<Tensor>(*bias.producer->find_attribute("value"));
    ChannelStatistics found =
        statistics_of(results[static_cast<std::size_t>(at)], numbers.to_doubles());
    const auto is_finite = [](double number) { return std::isfinite(number); };
    if (!std::ranges::all_of(found.variances, is_finite)) {
      throw OptionError({.what = fmt::format("the rows have no finite statistics at '{}'", name),
                         .where = {.value = name},
                         .hint = "Give rows without NaN and infinite numbers."});
    }
    return found;
  };
  train::unfold_batch_norms(*graph, options.epsilon, statistics);
  return Model(api::edited(model, std::move(graph)));
}

}  // namespace onnxgrad
