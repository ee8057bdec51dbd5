#include "onnxgrad/gradient.h"

#include <algorithm>
#include <optional>
#include <unordered_set>

#include "api/model_impl.h"
#include "autodiff/gradient.h"
#include "base/check.h"
#include "ir/builder.h"
#include "ir/naming.h"
#include "onnx/inference.h"
#include "onnxgrad/version.h"
#include "train/engine.h"
#include "train/optimizers.h"
#include "train/training_graph.h"
#include "train/weights.h"

namespace onnxgrad {
namespace {

using ir::Value;

// For other runtimes, with our name as producer.
Model write_graph(ir::Model model, const WriteOptions& options) {
  model.state.clear();  // in a file, state is plain inputs and outputs
  model.producer_name = "onnxgrad";
  model.producer_version = version();
  return api::wrap(onnx_io::to_target_opset(model, options.target_opset, options.inline_functions));
}

bool is_differentiable(const Value& value) {
  return value.type.is_tensor() && is_floating(value.type.dtype);
}

// The values to differentiate: weights and inputs by name, or the trainable weights.
std::vector<Value*> find_wrt(const ir::Model& model, const std::vector<std::string>& names) {
  std::vector<Value*> wrt;
  if (names.empty()) {
    const auto weights = train::find_weights(model, train::builtin_engine().ops);
    for (const train::Weight& weight : train::select_weights(weights, {}, {})) {
      wrt.push_back(weight.value);
    }
    return wrt;
  }
  std::vector<std::string> known;
  for (const Value* value : model.graph->inputs) known.push_back(value->name);
  for (const Value* value : model.graph->initializers) known.push_back(value->name);
  for (const std::string& name : names) {
    Value* value = model.graph->find(name);
    if (value == nullptr || value->producer != nullptr || !is_differentiable(*value)) {
      throw ModelError({.what = "there is no floating-point weight or input '" + name + "'",
                        .where = {.value = name},
                        .detail = "There are " + base::quote_list(known) + ".",
                        .hint = base::nearest_or(name, known)});
    }
    wrt.push_back(value);
  }
  return wrt;
}

std::vector<Value*> find_outputs(const ir::Graph& graph, const std::vector<std::string>& names) {
  std::vector<std::string> known;
  std::vector<Value*> floating;
  for (Value* output : graph.outputs) {
    known.push_back(output->name);
    if (names.empty() && output->name == "loss" && is_differentiable(*output)) return {output};
    if (is_differentiable(*output)) floating.push_back(output);
  }
  if (names.empty()) {
    if (!floating.empty()) return floating;
    throw ModelError({.what = "the model has no floating-point output to differentiate",
                      .detail = "Outputs: " + base::quote_list(known) + ".",
                      .hint = "Add a loss with add_loss(), or name a value with outputs=."});
  }
  std::vector<Value*> outputs;
  for (const std::string& name : names) {
    Value* value = graph.find(name);
    if (value == nullptr || !is_differentiable(*value)) {
      throw ModelError({.what = "there is no floating-point output or value '" + name + "'",
                        .where = {.value = name},
                        .detail = "Outputs: " + base::quote_list(known) + ".",
                        .hint = base::nearest_or(name, known)});
    }
    outputs.push_back(value);
  }
  return outputs;
}

// Weights become inputs without default, after the model's own.
void open_inputs(ir::Graph& graph, const std::vector<Value*>& wrt) {
  for (Value* value : wrt) {
    if (!value->is_input) {
      value->is_input = true;
      graph.inputs.push_back(value);
    }
    value->initializer = {};
  }
  std::erase_if(graph.initializers, [](const Value* value) { return !value->is_initializer(); });
}

std::optional<train::ScheduleInGraph> schedule_of(const TrainingStepOptions& options) {
  if (!options.schedule) return std::nullopt;
  train::ScheduleInGraph spec{.schedule = *options.schedule, .epochs = options.epochs};
  if (options.updates > 0) spec.updates = options.updates;
  return spec;
}

}  // namespace

Model gradient(const Model& model, const GradientOptions& options) {
  const auto& ops = train::builtin_engine().ops;
  ir::Model working = ir::clone(*model.impl().working());
  ir::Graph& graph = *working.graph;
  const auto wrt = find_wrt(working, options.wrt);
  const auto outputs = find_outputs(graph, options.outputs);
  const auto inferer = onnx_io::make_type_inferer(working);
  ir::GraphBuilder g(working, graph, *inferer, ops);
  open_inputs(graph, wrt);
  // The model's outputs that are kept; names of others are available for gradients.
  graph.outputs.clear();
  if (options.keep_outputs) graph.outputs = outputs;
  std::vector<Value*> seeds;
  g.set_scope("gradient");
  for (Value* output : outputs) {
    seeds.push_back(options.fill_grad ? g.ones_like(output)
                                      : graph.add_input(output->name + "_grad", output->type));
  }
  autodiff::ZeroGradients found;
  const auto gradients = autodiff::add_vjp(g, ops, outputs, seeds, wrt, &found);
  for (std::size_t i = 0; options.zeros != nullptr && i < wrt.size(); ++i) {
    if (found.is_zero[i]) options.zeros->push_back(wrt[i]->name);
  }
  g.set_scope("");
  for (std::size_t i = 0; i < wrt.size(); ++i) {
    Value* named = g.identity(gradients[i]);
    ir::give_name(graph, named, wrt[i]->name + "_grad");
    graph.outputs.insert(graph.outputs.begin() + static_cast<std::ptrdiff_t>(i), named);
  }
  ir::eliminate_dead_nodes(graph);
  return write_graph(std::move(working), options.write);
}

Model training_step(const Model& model, const Loss& loss, const Optimizer& optimizer,
                    const TrainingStepOptions& options) {
  if (train::is_host_loop(optimizer)) {
    throw ModelError({.what = "optimizer: L-BFGS is a loop around loss and gradient, not one graph",
                      .hint = "Write the two with add_loss() and gradient()."});
  }
  const train::StepGraph step =
      train::build_step(*api::untied(model, options.untie).impl().training_copy(),
                        train::builtin_engine().ops, loss, optimizer,
                        {.trainable = options.trainable,
                         .frozen = options.frozen,
                         .training_mode = options.training_mode,
                         .update = options.update,
                         .schedule = schedule_of(options),
                         .all_gradients = options.gradients});
  ir::Model graph = ir::clone(*step.model);
  if (step.ports.row_losses) {  // they are the requested loss, not their sum
    auto& outputs = graph.graph->outputs;
    const auto rows = outputs.begin() + static_cast<std::ptrdiff_t>(*step.ports.row_losses);
    Value* losses = *rows;
    outputs.erase(rows);
    ir::give_name(*graph.graph, outputs.front(), "loss_sum");
    outputs.front() = losses;
    ir::give_name(*graph.graph, losses, "loss");
  }
  return write_graph(std::move(graph), options.write);
}

}  // namespace onnxgrad
