#include "train/transfer/score_layers.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "ir/pattern.h"
#include "train/adapters/layers.h"

namespace onnxgrad::train {
namespace {

using ir::is_op;
using ir::Node;

ScoreLayer from_adaptable(const AdaptableLayer& layer) {
  const bool is_linear = layer.kind == LayerKind::kLinear;
  return {.kind = is_linear ? ScoreLayer::Kind::kLinear : ScoreLayer::Kind::kConvolution,
          .nodes = layer.nodes,
          .weight = layer.weight,
          .inputs = layer.inputs,
          .outputs = layer.outputs,
          .is_transposed = layer.is_transposed,
          .is_computed = layer.is_computed,
          .dtype = layer.dtype,
          .name = layer.module,
          .names = layer.names};
}

std::int64_t count_labels(const Node& node) {
  for (const std::string_view name : {"classlabels_ints", "classlabels_strings"}) {
    const ir::AttributeValue* value = node.find_attribute(name);
    if (value == nullptr) continue;
    const auto* ints = std::get_if<std::vector<std::int64_t>>(value);
    const auto* strings = std::get_if<std::vector<std::string>>(value);
    if (ints != nullptr && !ints->empty()) return std::ssize(*ints);
    if (strings != nullptr && !strings->empty()) return std::ssize(*strings);
  }
  return 0;
}

// Layers whose weights are attributes.
void add_of_attributes(Node& node, std::vector<ScoreLayer>& layers) {
  constexpr std::string_view kMl = "ai.onnx.ml";
  if (node.domain != kMl) return;
  const bool is_classifier = node.op_type == "LinearClassifier";
  if (!is_classifier && node.op_type != "LinearRegressor") return;
  const auto coefficients = static_cast<std::int64_t>(node.floats_attribute("coefficients").size());
  std::int64_t rows = is_classifier
                          ? static_cast<std::int64_t>(node.floats_attribute("intercepts").size())
                          : node.int_attribute("targets", 1);
  const std::int64_t outputs = is_classifier ? count_labels(node) : rows;
  if (rows < 1) rows = outputs;
  if (outputs < 1 || rows < 1 || coefficients % rows != 0) return;
  ScoreLayer layer{
      .kind = is_classifier ? ScoreLayer::Kind::kClassifier : ScoreLayer::Kind::kRegressor,
      .nodes = {&node},
      .inputs = coefficients / rows,
      .outputs = outputs,
      .name = node.name};
  layer.names.push_back(node.name);
  layers.push_back(std::move(layer));
}

void add_stacked(Node& node, std::vector<ScoreLayer>& layers) {
  const ir::Value* weight = is_op(node, {"MatMul"}) ? node.input(1) : nullptr;
  const Tensor* numbers = train::numbers_of(weight);
  if (numbers == nullptr || !is_floating(numbers->dtype())) return;
  const Dims& dims = numbers->dims();
  const std::size_t rank = dims.rank();
  if (rank < 3 || dims.product(0, rank - 2) != 1) return;
  layers.push_back({.kind = ScoreLayer::Kind::kStacked,
                    .nodes = {&node},
                    .weight = weight,
                    .inputs = dims[rank - 2],
                    .outputs = dims[rank - 1],
                    .dtype = numbers->dtype(),
                    .name = weight->name,
                    .names = {weight->name, node.name}});
}

void add_transposed(Node& node, std::vector<ScoreLayer>& layers) {
  if (!is_op(node, {"ConvTranspose"}) || node.int_attribute("group", 1) != 1) return;
  const ir::Value* weight = node.input(1);
  if (weight == nullptr || !weight->is_constant()) return;
  const Dims& dims = weight->initializer.dims();
  if (dims.rank() < 3 || !is_floating(weight->initializer.dtype())) return;
  layers.push_back({.kind = ScoreLayer::Kind::kTransposed,
                    .nodes = {&node},
                    .weight = weight,
                    .inputs = dims[0],
                    .outputs = dims[1],
                    .dtype = weight->initializer.dtype(),
                    .name = weight->name,
                    .names = {weight->name, node.name}});
}

}  // namespace

std::vector<ScoreLayer> find_score_layers(ir::Model& file, const ir::Model& working) {
  std::vector<ScoreLayer> layers;
  for (const AdaptableLayer& layer : find_layers(file, working)) {
    const bool is_in_main = std::ranges::all_of(
        layer.nodes, [&](const Node* node) { return node->graph == file.graph.get(); });
    const bool has_bias_inside = std::ranges::any_of(layer.nodes, [](const Node* node) {
      return is_matmul_n_bits(*node) && node->input(5) != nullptr;
    });
    if (layer.kind == LayerKind::kEmbedding || !is_in_main || has_bias_inside) continue;
    layers.push_back(from_adaptable(layer));
  }
  std::unordered_map<const Node*, std::size_t> order;
  for (Node* node : file.graph->nodes) {
    order.emplace(node, order.size());
    add_of_attributes(*node, layers);
    add_transposed(*node, layers);
    add_stacked(*node, layers);
  }
  std::ranges::stable_sort(layers, {},
                           [&](const ScoreLayer& layer) { return order.at(layer.nodes.front()); });
  return layers;
}

}  // namespace onnxgrad::train
