#include "train/transfer/unfold_batch_norm.h"

#include <fmt/format.h>

#include <cmath>
#include <string_view>
#include <utility>

#include "ir/pattern.h"
#include "ir/uses.h"

namespace onnxgrad::train {
namespace {

using ir::is_op;
using ir::Node;
using ir::Value;

const Tensor* constant_of(const Value* value) {
  if (value == nullptr) return nullptr;
  if (value->is_constant()) return &value->initializer;
  if (!is_op(value->producer, "Constant")) return nullptr;
  const ir::AttributeValue* attribute = value->producer->find_attribute("value");
  return attribute == nullptr ? nullptr : std::get_if<Tensor>(attribute);
}

bool is_folded(const Node& node, const ir::Uses& uses) {
  if (!is_op(node, {"Conv"}) || node.input(2) == nullptr) return false;
  const Tensor* bias = constant_of(node.input(2));
  if (bias == nullptr || !is_floating(bias->dtype()) || constant_of(node.input(1)) == nullptr) {
    return false;
  }
  const Node* reader = uses.only_reader(node.output(0));
  return reader == nullptr || !reader->op_type.ends_with("Normalization");
}

std::string module_of_conv(const Node& node) {
  std::string name = node.input(1)->name;
  constexpr std::string_view kWeight = ".weight";
  if (name.ends_with(kWeight)) name.resize(name.size() - kWeight.size());
  return name;
}

// y = (x - mean) / sqrt(variance + epsilon) * scale + shift with x = y - bias.
void unfold(Node& node, double epsilon, const ChannelStatistics& statistics) {
  ir::Graph& graph = *node.graph;
  const Tensor& bias = *constant_of(node.input(2));
  const std::vector<double> biases = bias.to_doubles();
  const DataType dtype = bias.dtype();
  const auto channels = static_cast<std::int64_t>(biases.size());
  std::vector<double> scale(biases.size());
  std::vector<double> shift(biases.size());
  std::vector<double> mean(biases.size(), 0.0);
  std::vector<double> variance(biases.size(), 1.0);
  for (std::size_t i = 0; i < biases.size(); ++i) {
    if (!statistics.means.empty()) {
      mean[i] = statistics.means[i];
      variance[i] = statistics.variances[i];
    }
    scale[i] = std::sqrt(variance[i] + epsilon);
    shift[i] = biases[i] + mean[i];
  }
  const std::string module = module_of_conv(node) + ".norm";
  const auto add = [&](std::string_view part, const std::vector<double>& numbers) {
    return graph.add_initializer(fmt::format("{}.{}", module, part),
                                 Tensor::from(numbers, Dims{channels}).cast(dtype));
  };
  Value* const result = node.output(0);
  const std::string name = result->name;
  graph.rename(result, graph.names().unique(name + "_conv"));
  Value* const normalized = graph.add_value(name, result->type);
  normalized->has_value_info = std::exchange(result->has_value_info, false);
  std::swap(normalized->doc_string, result->doc_string);
  std::swap(normalized->metadata, result->metadata);
  ir::replace_uses(graph, {{result, normalized}});
  node.inputs.resize(2);
  graph.insert_after(&node, "BatchNormalization",
                     {result, add("weight", scale), add("bias", shift), add("running_mean", mean),
                      add("running_var", variance)},
                     {normalized}, {{"epsilon", static_cast<float>(epsilon)}});
}

}  // namespace

std::vector<std::string> folded_results(const ir::Model& file) {
  const ir::Uses uses(*file.graph);
  std::vector<std::string> names;
  for (const Node* node : file.graph->nodes) {
    if (is_folded(*node, uses)) names.push_back(node->output(0)->name);
  }
  return names;
}

void unfold_batch_norms(ir::Model& file, double epsilon,
                        const std::function<ChannelStatistics(const std::string&)>& statistics) {
  const ir::Uses uses(*file.graph);
  std::vector<Node*> nodes;
  for (Node* node : file.graph->nodes) {
    if (is_folded(*node, uses)) nodes.push_back(node);
  }
  std::vector<const Value*> biases;
  for (Node* node : nodes) {
    biases.push_back(node->input(2));
    unfold(*node, epsilon, statistics(node->output(0)->name));
  }
  const ir::Uses left(*file.graph);
  for (const Value* bias : biases) {
    if (left.count(bias) > 0 || bias->is_input) continue;
    std::erase(file.graph->initializers, bias);
    if (bias->producer != nullptr) std::erase(file.graph->nodes, bias->producer);
  }
}

}  // namespace onnxgrad::train
