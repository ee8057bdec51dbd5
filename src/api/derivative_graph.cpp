#include "api/derivative_graph.h"

#include <algorithm>
#include <utility>

#include "api/model_impl.h"
#include "base/check.h"
#include "ir/naming.h"
#include "onnx/inference.h"
#include "onnxgrad/version.h"
#include "ops/older_bodies.h"
#include "train/graphs/stop_gradient.h"
#include "train/tools/engine.h"
#include "train/tools/patterns.h"
#include "train/weights/weights.h"

namespace onnxgrad::api {
namespace {

using ir::Value;

bool is_differentiable(const Value& value) {
  return value.type.is_tensor() && is_floating(value.type.dtype);
}

// Adds the floating-point weights that a pattern matches. False: it is none, or matches none.
bool add_matching(const ir::Graph& graph, const std::string& pattern, std::vector<Value*>& wrt) {
  if (pattern.find_first_of("*?") == std::string::npos) return false;
  bool is_any = false;
  for (Value* weight : graph.initializers) {
    if (!is_differentiable(*weight)) continue;
    if (!train::glob_match(pattern, train::names_for_patterns(*weight))) continue;
    is_any = true;
    if (std::ranges::find(wrt, weight) == wrt.end()) wrt.push_back(weight);
  }
  return is_any;
}

// The trainable weights; of a model without weights, all floating-point inputs.
std::vector<Value*> default_wrt(const ir::Model& model) {
  std::vector<Value*> wrt;
  const auto weights = train::find_weights(model, train::builtin_ops());
  if (!weights.empty()) {
    for (const train::Weight& weight : train::select_weights(weights, {}, {})) {
      wrt.push_back(weight.value);
    }
    return wrt;
  }
  std::vector<std::string> names;
  for (Value* input : model.graph->inputs) {
    names.push_back(input->name);
    if (is_differentiable(*input)) wrt.push_back(input);
  }
  if (!wrt.empty()) return wrt;
  throw ModelError({.what = "the model has no floating-point weight or input to differentiate by",
                    .detail = "Inputs: " + base::quote_list(names) + ".",
                    .hint = "Export the model with its weights as initializers, or name an inner "
                            "value with wrt=."});
}

[[noreturn]] void refuse_wrt(const ir::Graph& graph, const std::string& name, const Value* value) {
  std::vector<std::string> given;
  const auto add = [&](const std::string& one) {
    if (std::ranges::find(given, one) == given.end()) given.push_back(one);
  };
  for (const Value* input : graph.inputs) {
    if (is_differentiable(*input)) add(input->name);
  }
  for (const Value* weight : graph.initializers) {
    if (!is_differentiable(*weight)) continue;
    const train::WeightNames names = train::names_for_patterns(*weight);
    add(names.name);
    for (const std::string& alias : names.aliases) add(alias);
  }
  std::vector<std::string> known = given;  // a name may be that of an inner value
  for (const ir::Node* node : graph.nodes) {
    for (const Value* output : node->outputs) {
      if (output != nullptr && is_differentiable(*output)) known.push_back(output->name);
    }
  }
  const std::string detail = "Weights and inputs: " + base::quote_list(given) + ".";
  if (value != nullptr) {
    throw ModelError({.what = "'" + name + "' is " + value->type.to_string() +
                              ": only floating-point values have a gradient",
                      .where = {.value = name},
                      .detail = detail,
                      .hint = "Leave it out of wrt=."});
  }
  throw ModelError({.what = "there is no floating-point weight, input or value '" + name + "'",
                    .where = {.value = name},
                    .detail = detail,
                    .hint = base::nearest_or(name, known)});
}

// The values to differentiate by: weights by name, alias or pattern, inputs and inner values by
// name.
std::vector<Value*> find_wrt(const ir::Model& model, const std::vector<std::string>& names) {
  if (names.empty()) return default_wrt(model);
  std::vector<Value*> wrt;
  for (const std::string& name : names) {
    Value* value = model.graph->find(name);
    if (value == nullptr && add_matching(*model.graph, name, wrt)) continue;
    if (value == nullptr) value = train::find_by_any_name(*model.graph, name);
    if (value == nullptr || !is_differentiable(*value)) refuse_wrt(*model.graph, name, value);
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

// Weights become inputs without default, after the model's own; inner values stay what they are.
void open_inputs(ir::Graph& graph, const std::vector<Value*>& wrt) {
  for (Value* value : wrt) {
    if (value->producer != nullptr) continue;
    if (!value->is_input) {
      value->is_input = true;
      graph.inputs.push_back(value);
    }
    value->initializer = {};
  }
  std::erase_if(graph.initializers, [](const Value* value) { return !value->is_initializer(); });
}

ir::Model with_stopped_gradients(const Model& model, const std::vector<std::string>& names) {
  ir::Model working = ir::clone(*model.impl().working());
  train::stop_gradients(working, train::builtin_ops(), names);
  return working;
}

// Every reader in `graph` and its subgraphs.
template <class Visit>
void visit_readers(ir::Graph& graph, const Value* value, const Visit& visit) {
  for (ir::Node* node : graph.nodes) {
    for (Value*& input : node->inputs) {
      if (input == value) visit(*node, input);
    }
    for (ir::Graph* body : node->subgraphs()) visit_readers(*body, value, visit);
  }
}

}  // namespace

Model write_graph(ir::Model model, const WriteOptions& options) {
  model.state.clear();  // in a file, state is plain inputs and outputs
  model.producer_name = "onnxgrad";
  model.producer_version = version();
  ir::Model written = onnx_io::to_target_opset(model, options.target_opset,
                                               options.inline_functions, ops::older_body);
  ir::eliminate_dead_nodes(*written.graph);  // constants that only other forms of nodes read
  return wrap(std::move(written));
}

DerivativeGraph::DerivativeGraph(const Model& model, const DerivativeNames& names)
    : registry_(train::builtin_ops()),
      custom_(model.impl().operators),
      model_(with_stopped_gradients(model, names.stop_gradient)),
      inferer_(onnx_io::make_type_inferer(model_)),
      g_(model_, *model_.graph, *inferer_, registry_),
      wrt_(find_wrt(model_, names.wrt)),
      outputs_(find_outputs(graph(), names.outputs)) {
  open_inputs(graph(), wrt_);
  for (const ir::Node* node : graph().nodes)
    given_.insert(node->outputs.begin(), node->outputs.end());
  // Names of outputs that are not kept are available for derivatives.
  graph().outputs.clear();
  if (names.keep_outputs) graph().outputs = outputs_;
}

std::vector<Value*> DerivativeGraph::vjp(std::span<Value* const> outputs,
                                         std::span<Value* const> seeds, std::span<Value* const> wrt,
                                         autodiff::ZeroGradients* zeros) {
  return autodiff::add_vjp(g_, registry_, outputs, seeds, wrt, zeros, custom_.get());
}

std::vector<Value*> DerivativeGraph::vjp_inside(ir::GraphBuilder& body,
                                                std::span<Value* const> outputs,
                                                std::span<Value* const> seeds,
                                                std::span<Value* const> wrt,
                                                autodiff::ZeroGradients* zeros) {
  return autodiff::add_vjp_inside(body, graph(), registry_, outputs, seeds, wrt, zeros,
                                  custom_.get());
}

std::vector<Value*> DerivativeGraph::gradient_of_sum(autodiff::ZeroGradients* zeros) {
  std::vector<Value*> seeds;
  for (Value* output : outputs_) seeds.push_back(g_.ones_like(output));
  return vjp(outputs_, seeds, wrt_, zeros);
}

std::vector<Value*> DerivativeGraph::add_inputs_like(std::span<Value* const> values,
                                                     std::string_view suffix) {
  std::vector<Value*> inputs;
  for (const Value* value : values) {
    inputs.push_back(graph().add_input(value->name + std::string(suffix), value->type));
  }
  return inputs;
}

void DerivativeGraph::add_output(Value* value, const std::string& name) {
  g_.set_scope("");
  // A value of its own, so that its name can be chosen.
  const bool is_own = value->producer != nullptr && value->graph == &graph() &&
                      !given_.contains(value) &&
                      std::ranges::find(graph().outputs, value) == graph().outputs.end();
  Value* const named = is_own ? value : g_.identity(value);
  ir::give_name(graph(), named, name);
  graph().outputs.insert(graph().outputs.begin() + num_added_++, named);
}

void DerivativeGraph::close_input(Value* input, Value* like) {
  visit_readers(graph(), input, [&](const ir::Node& node, Value*& read) {
    const opdef::OpDef* def = registry_.find(node);
    if (def != nullptr && def->fold_types != nullptr) read = like;  // Shape, Size
  });
  std::erase(graph().inputs, input);
  bool is_read = false;
  visit_readers(graph(), input, [&](const ir::Node&, Value*&) { is_read = true; });
  if (is_read) {
    Value* const zeros = g_.zeros_like(like);
    ir::replace_uses(graph(), {{input, zeros}});
    ir::sort_topologically(graph());
  }
}

Model DerivativeGraph::finish(const WriteOptions& options) && {
  train::remove_stops(model_);
  ir::eliminate_dead_nodes(graph());
  return write_graph(std::move(model_), options);
}

}  // namespace onnxgrad::api
