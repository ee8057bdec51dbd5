#include "train/graphs/loss_parts.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <utility>
#include <variant>

#include "base/check.h"
#include "onnx/inference.h"

namespace onnxgrad::train {
namespace {

using ir::GraphBuilder;
using ir::Value;

NamedTensors own_weights_of_one(const Loss& loss) {
  const auto* contrast = std::get_if<InfoNce>(&loss.function);
  if (contrast == nullptr || !contrast->learn_temperature) return loss.own_weights;
  const auto value = static_cast<float>(std::log(contrast->temperature));
  return {{.name = "info_nce.log_temperature", .tensor = Tensor::scalar(value)}};
}

void add_initializers(ir::Graph& graph, const Loss& loss) {
  for (const NamedTensor& weight : own_weights(loss)) {
    const Value* known = graph.find(weight.name);
    if (known != nullptr && known->is_initializer() &&
        known->initializer.dims() == weight.tensor.dims()) {
      continue;
    }
    if (known != nullptr || graph.names().is_used(weight.name)) {
      throw ModelError({.what = "the model has a value '" + weight.name +
                                "', which is the name of a weight of the loss",
                        .where = {.value = weight.name},
                        .hint = "Give the weight of the loss another name."});
    }
    graph.names().reserve(weight.name);
    Value* value =
        graph.add_value(weight.name, ir::Type::tensor(weight.tensor.dtype(), weight.tensor.dims()));
    value->initializer = weight.tensor;
    graph.initializers.push_back(value);
  }
}

std::string sibling_name(const std::string& input, std::int64_t view) {
  return input + "_" + std::to_string(view);
}

void forget_shapes(ir::Graph& graph) {
  for (ir::Node* node : graph.nodes) {
    for (ir::Graph* body : node->subgraphs()) forget_shapes(*body);
    for (Value* output : node->outputs) {
      if (output != nullptr && output->type.is_tensor()) output->type.shape.reset();
    }
  }
}

// x, and its siblings below it.
Value* join_views(GraphBuilder& g, Value* input, std::int64_t views) {
  if (!input->type.is_tensor() || !input->type.has_rank() || input->type.rank() == 0) {
    throw ModelError(
        {.what = "views: input '" + input->name + "' " + input->type.to_string() + " has no rows",
         .where = {.value = input->name},
         .hint = "Use a model whose inputs all have a first dimension for rows."});
  }
  std::vector<Value*> all{input};
  for (std::int64_t view = 2; view <= views; ++view) {
    const std::string name = sibling_name(input->name, view);
    Value* sibling = g.graph().add_input(name, input->type);
    if (sibling->name != name) {
      throw ModelError({.what = "views: the model has an input or weight '" + name +
                                "', which is the name of a sibling of '" + input->name + "'",
                        .where = {.value = name},
                        .hint = "Rename it."});
    }
    all.push_back(sibling);
  }
  return g.concat(all, 0);
}

void add_views(GraphBuilder& g, std::int64_t views) {
  ir::Graph& graph = g.graph();
  std::vector<Value*> inputs;
  for (Value* input : graph.inputs) {
    if (!input->is_initializer()) inputs.push_back(input);
  }
  const std::vector<ir::Node*> nodes = graph.nodes;
  std::unordered_map<const Value*, Value*> map;
  for (Value* input : inputs) map.emplace(input, join_views(g, input, views));
  const std::vector<ir::Node*> joins(
      graph.nodes.begin() + static_cast<std::ptrdiff_t>(nodes.size()), graph.nodes.end());
  graph.nodes = nodes;
  ir::replace_uses(graph, map);
  forget_shapes(graph);
  graph.nodes.insert(graph.nodes.begin(), joins.begin(), joins.end());
  onnx_io::infer_types(graph, g.inferer());
}

}  // namespace

NamedTensors own_weights(const Loss& loss) {
  NamedTensors all = own_weights_of_one(loss);
  for (const auto* list : {&loss.others, &loss.matches}) {
    for (const Loss& one : *list) {
      for (NamedTensor& weight : own_weights_of_one(one)) {
        const bool is_known = std::ranges::find(all, weight.name, &NamedTensor::name) != all.end();
        if (!is_known) all.push_back(std::move(weight));
      }
    }
  }
  return all;
}

std::shared_ptr<const ir::Model> with_own_weights(std::shared_ptr<const ir::Model> model,
                                                  const Loss& loss) {
  if (own_weights(loss).empty()) return model;
  auto changed = ir::writable(std::move(model));
  add_initializers(*changed->graph, loss);
  return changed;
}

void prepare_loss(GraphBuilder& g, const Loss& loss) {
  add_initializers(g.graph(), loss);
  if (loss.views < 1 || loss.views > 64) {
    throw ModelError({.what = "views is " + std::to_string(loss.views) + ", expected 1 to 64",
                      .hint = "Give the number of inputs in each row: 2 for pairs."});
  }
  if (loss.views > 1) add_views(g, loss.views);
}

void add_own_weights(const std::vector<Weight>& all, const Loss& loss,
                     std::vector<Weight>& trained) {
  for (const NamedTensor& own : own_weights(loss)) {
    const auto is_it = [&](const Weight& weight) { return weight.value->name == own.name; };
    if (std::ranges::any_of(trained, is_it)) continue;
    const auto found = std::ranges::find_if(all, is_it);
    ONNXGRAD_ASSERT(found != all.end());
    trained.push_back(*found);
    trained.back().trainable = true;
    trained.back().reason.clear();
  }
}

std::vector<ValueInfo> sibling_inputs(const std::vector<ValueInfo>& inputs, const Loss& loss) {
  std::vector<ValueInfo> siblings;
  for (std::int64_t view = 2; view <= loss.views; ++view) {
    for (ValueInfo input : inputs) {
      input.name = sibling_name(input.name, view);
      siblings.push_back(std::move(input));
    }
  }
  return siblings;
}

}  // namespace onnxgrad::train
