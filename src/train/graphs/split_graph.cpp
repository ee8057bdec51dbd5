#include "train/graphs/split_graph.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <set>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "autodiff/gradient.h"
#include "base/check.h"
#include "ir/builder.h"
#include "ir/naming.h"
#include "ir/uses.h"
#include "onnx/inference.h"
#include "onnx/known_branches.h"
#include "opdef/shape_values.h"
#include "train/graphs/step_parts.h"
#include "train/graphs/training_mode.h"
#include "train/precision/precision.h"
#include "train/tools/engine.h"

// The joint graph of outputs and gradients is written first. Nodes that the outputs depend on are
// forward nodes, all others that the gradients depend on are backward nodes; what backward nodes
// read is saved. The forward graph computes shapes, so that no tensor is saved only for its shape.
// Start reading at Splitter::run.

namespace onnxgrad::train {
namespace {

using ir::Node;
using ir::Value;
using ValueSet = std::unordered_set<const Value*>;
using NodeSet = std::unordered_set<const Node*>;

// Operators that take longer than a pass over memory.
constexpr std::string_view kExpensive[] = {
    "MatMul",      "Gemm",          "Conv", "ConvTranspose", "DeformConv",    "Einsum",
    "Attention",   "LSTM",          "GRU",  "RNN",           "MatMulInteger", "ConvInteger",
    "QLinearConv", "QLinearMatMul", "DFT",  "STFT"};

// Nodes that `values` depend on.
NodeSet ancestors(const std::vector<Value*>& values) {
  NodeSet found;
  for (const Value* value : ir::ancestors_of(values)) {
    if (value->producer != nullptr) found.insert(value->producer);
  }
  return found;
}

void collect_calls(const ir::Graph& graph, std::set<std::pair<std::string, std::string>>& calls) {
  for (const Node* node : graph.nodes) {
    calls.emplace(node->domain, node->op_type);
    for (const ir::Graph* body : node->subgraphs()) collect_calls(*body, calls);
  }
}

// Function bodies call no functions of the model.
void drop_unused_functions(ir::Model& model) {
  std::set<std::pair<std::string, std::string>> calls;
  collect_calls(*model.graph, calls);
  std::erase_if(model.functions, [&](const ir::Function& function) {
    return !calls.contains({function.domain, function.name});
  });
}

class Splitter {
 public:
  Splitter(const ir::Model& working, const opdef::OpRegistry& registry, const SplitOptions& options)
      : registry_(registry),
        options_(options),
        model_(ir::clone(working)),
        graph_(*model_.graph),
        inferer_(onnx_io::make_type_inferer(model_)),
        g_(model_, graph_, *inferer_, registry) {}

  SplitGraph run() {
    close_defaults(graph_, *inferer_);
    leave_training(model_);
    split_.num_model_inputs = graph_.inputs.size();
    onnx_io::take_known_branches(model_, *inferer_, registry_, builtin_evaluator());
    split_.outputs = runnable_outputs(graph_);
    leave_out_unsupported(model_, split_.outputs);
    std::erase_if(split_.outputs, [](const RunnableOutput& o) { return o.value == nullptr; });
    for (RunnableOutput& output : split_.outputs) {
      output_values_.push_back(std::exchange(output.value, nullptr));
    }
    ir::Model as_exported = ir::clone(model_);
    choose_weights();
    choose_inputs();
    inputs_ = graph_.inputs;
    split_.inference = inference_model(std::move(as_exported));
    add_gradients();
    sort_nodes();
    std::vector<Value*> forward_outputs = output_values_;
    forward_outputs.insert(forward_outputs.end(), saved_.begin(), saved_.end());
    for (const ir::StateBinding& binding : statistics_) forward_outputs.push_back(binding.output);
    split_.forward = forward_model(forward_outputs);
    split_.backward = backward_model();
    return std::move(split_);
  }

 private:
  void choose_weights() {
    const auto all = find_weights(model_, registry_);
    const bool by_default = options_.weights.empty();
    std::vector<Weight> selected;
    if (!by_default || std::ranges::any_of(all, &Weight::trainable)) {
      selected = select_weights(all, options_.weights, options_.frozen);
    }
    enter_training(selected);
    for (const Weight& weight : selected) {
      split_.weights.push_back(weight_info(weight));
      wrt_.push_back(weight.value);
    }
    for (Value* weight : wrt_) open_input(weight);
    for (const ir::StateBinding& binding : statistics_) {
      split_.statistics.push_back(weight_info({.value = binding.input}));
      open_input(binding.input);
    }
    std::erase_if(graph_.initializers, [](const Value* value) { return !value->is_initializer(); });
  }

  // Running statistics are not differentiated.
  void enter_training(std::vector<Weight>& selected) {
    std::unordered_set<const Value*> needed;
    for (const Node* node : ancestors(output_values_)) {
      needed.insert(node->outputs.begin(), node->outputs.end());
    }
    std::vector<Value*> trained;
    for (const Weight& weight : selected) trained.push_back(weight.value);
    statistics_ = switch_on_training(g_, registry_, needed, trained, options_.training_mode);
    std::erase_if(selected, [&](const Weight& weight) {
      return std::ranges::find(statistics_, weight.value, &ir::StateBinding::input) !=
             statistics_.end();
    });
  }

  void open_input(Value* weight) {
    weight->initializer = {};
    weight->is_input = true;
    graph_.inputs.push_back(weight);
  }

  void choose_inputs() {
    const std::span<Value* const> inputs(graph_.inputs.data(), split_.num_model_inputs);
    std::vector<std::string> floating;
    for (const Value* input : inputs) {
      if (input->type.is_tensor() && is_floating(input->dtype())) floating.push_back(input->name);
    }
    for (const std::string& name : options_.inputs) {
      if (std::ranges::find(floating, name) != floating.end()) continue;
      throw ModelError({.what = "there is no floating-point input '" + name + "'",
                        .where = {.value = name},
                        .detail = "Floating-point inputs: " + base::quote_list(floating) + ".",
                        .hint = base::nearest_or(name, floating)});
    }
    if (options_.input_gradients) {
      split_.gradient_inputs = options_.inputs.empty() ? floating : options_.inputs;
    }
    for (const std::string& name : split_.gradient_inputs) wrt_.push_back(graph_.find(name));
    if (!wrt_.empty()) return;
    throw ModelError({.what = "there is nothing to differentiate with respect to",
                      .detail = "The model has no trainable weight and no floating-point input.",
                      .hint = "Name weights with weights=; `report` lists them."});
  }

  void add_gradients() {
    std::vector<Value*> differentiated;
    for (std::size_t i = 0; i < split_.outputs.size(); ++i) {
      Value* value = output_values_[i];
      if (!value->type.is_tensor() || !is_floating(value->dtype())) continue;
      differentiated.push_back(value);
      seeds_.push_back(graph_.add_input(split_.outputs[i].name + "_grad", value->type));
      seed_outputs_.push_back(i);
    }
    if (differentiated.empty()) {
      throw ModelError({.what = "the model has no floating-point output to differentiate",
                        .hint = "Make the scores an output: labels have no gradient."});
    }
    g_.set_scope("gradient");
    PrecisionScope scope;
    const auto gradients = autodiff::add_vjp(g_, registry_, differentiated, seeds_, wrt_, nullptr,
                                             options_.custom_gradients, &scope.backward);
    lower_precision(g_, registry_, options_.precision, scope);
    for (std::size_t i = 0; i < wrt_.size(); ++i) {
      Value* named = g_.identity(gradients[i]);
      ir::give_name(graph_, named, wrt_[i]->name + "_grad");
      gradients_.push_back(named);
    }
  }

  // Decides for each node whether it is a forward node, and what others read from these.
  void sort_nodes() {
    const NodeSet needed = ancestors(gradients_);
    std::vector<Value*> computed = output_values_;
    for (const ir::StateBinding& binding : statistics_) computed.push_back(binding.output);
    forward_ = ancestors(computed);
    ValueSet from_seeds(seeds_.begin(), seeds_.end());
    for (const Node* node : graph_.nodes) {
      const auto inputs = ir::values_read(*node);
      const bool sees_seed =
          std::ranges::any_of(inputs, [&](const Value* v) { return from_seeds.contains(v); });
      if (sees_seed) from_seeds.insert(node->outputs.begin(), node->outputs.end());
      if (sees_seed || !needed.contains(node) || !gives_shape(*node)) continue;
      const bool is_ready = std::ranges::all_of(inputs, [&](const Value* v) {
        return v->producer == nullptr || forward_.contains(v->producer);
      });
      if (is_ready) forward_.insert(node);
    }
    for (const Node* node : graph_.nodes) {
      if (!needed.contains(node) || forward_.contains(node)) continue;
      for (Value* value : ir::values_read(*node)) read_backward(value);
    }
    if (options_.repeat_cheap) repeat_cheap_nodes();
  }

  // From the last saved value to the first: it is not saved if nodes that are cheap compute it from
  // what is.
  void repeat_cheap_nodes() {
    std::unordered_map<const Node*, std::size_t> position;
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) position.emplace(graph_.nodes[i], i);
    std::vector<Value*> candidates = saved_;
    std::ranges::sort(candidates, std::greater<>(),
                      [&](const Value* value) { return position.at(value->producer); });
    ValueSet kept(saved_.begin(), saved_.end());
    std::unordered_set<Node*> repeated;
    for (Value* value : candidates) {
      kept.erase(value);
      std::unordered_set<Node*> nodes;
      if (is_cheap(*value->producer) && can_repeat(value, kept, nodes)) {
        repeated.insert(nodes.begin(), nodes.end());
        split_.repeated.push_back(value->type);
        backward_reads_.erase(value);
      } else {
        kept.insert(value);
      }
    }
    std::erase_if(saved_, [&](const Value* value) { return !kept.contains(value); });
    for (Node* node : graph_.nodes) {
      if (!repeated.contains(node)) continue;
      for (Value* value : ir::values_read(*node)) {
        if (value->producer == nullptr || !repeated.contains(value->producer)) read_backward(value);
      }
    }
  }

  bool is_cheap(const Node& node) const {
    const opdef::OpDef* def = registry_.find(node);
    return def != nullptr && !def->is_random && node.domain.empty() && node.subgraphs().empty() &&
           std::ranges::find(kExpensive, node.op_type) == std::end(kExpensive);
  }

  // `nodes` receives what is to be repeated.
  bool can_repeat(const Value* value, const ValueSet& kept,
                  std::unordered_set<Node*>& nodes) const {
    constexpr std::size_t kMost = 64;  // nodes for one value
    if (nodes.size() >= kMost) return false;
    if (!nodes.insert(value->producer).second) return true;
    return std::ranges::all_of(value->producer->inputs, [&](const Value* input) {
      if (input == nullptr || input->producer == nullptr || kept.contains(input)) return true;
      if (std::ranges::find(output_values_, input) != output_values_.end()) return true;
      if (gives_shape(*input->producer)) return true;  // it is saved, a few numbers
      return is_cheap(*input->producer) && can_repeat(input, kept, nodes);
    });
  }

  bool gives_shape(const Node& node) const {
    const opdef::OpDef* def = registry_.find(node);
    return def != nullptr && def->fold_types != nullptr && !node.inputs.empty();
  }

  void read_backward(Value* value) {
    if (!backward_reads_.insert(value).second) return;
    const bool is_forward = value->producer != nullptr && forward_.contains(value->producer);
    if (is_forward && std::ranges::find(output_values_, value) == output_values_.end()) {
      saved_.push_back(value);
    }
  }

  std::shared_ptr<ir::Model> forward_model(const std::vector<Value*>& outputs) {
    std::unordered_map<const Value*, Value*> map;
    auto model = std::make_shared<ir::Model>(ir::clone(model_, &map));
    ir::Graph& graph = *model->graph;
    graph.inputs.clear();
    for (const Value* input : inputs_) graph.inputs.push_back(map.at(input));
    graph.outputs.clear();
    for (const Value* output : outputs) graph.outputs.push_back(map.at(output));
    finish(*model);
    return model;
  }

  // The model as it was exported, with the inputs of the forward graph.
  std::shared_ptr<ir::Model> inference_model(ir::Model as_exported) const {
    auto model = std::make_shared<ir::Model>(std::move(as_exported));
    ir::Graph& graph = *model->graph;
    graph.inputs.clear();
    for (const Value* input : inputs_) {
      Value* same = graph.find(input->name);
      same->initializer = {};
      same->is_input = true;
      graph.inputs.push_back(same);
    }
    std::erase_if(graph.initializers, [](const Value* value) { return !value->is_initializer(); });
    graph.outputs.clear();
    for (const Value* output : output_values_) graph.outputs.push_back(graph.find(output->name));
    finish(*model);
    return model;
  }

  std::shared_ptr<ir::Model> backward_model() {
    std::unordered_map<const Value*, Value*> map;
    auto model = std::make_shared<ir::Model>(ir::clone(model_, &map));
    ir::Graph& graph = *model->graph;
    graph.inputs.clear();
    const auto add = [&](Value* input, BackwardInput::Kind kind, std::size_t index) {
      graph.inputs.push_back(input);
      split_.backward_inputs.push_back({.kind = kind, .index = index});
    };
    for (std::size_t i = 0; i < seeds_.size(); ++i) {
      if (!backward_reads_.contains(seeds_[i])) continue;
      add(map.at(seeds_[i]), BackwardInput::Kind::kOutputGradient, seed_outputs_[i]);
    }
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      if (!backward_reads_.contains(inputs_[i])) continue;
      add(map.at(inputs_[i]), BackwardInput::Kind::kForwardInput, i);
    }
    std::vector<Value*> kept = output_values_;
    kept.insert(kept.end(), saved_.begin(), saved_.end());
    std::unordered_map<const Value*, Value*> replaced;
    for (std::size_t i = 0; i < kept.size(); ++i) {
      const Value* original = kept[i];
      if (original->producer == nullptr || !backward_reads_.contains(original)) continue;
      Value* inside = map.at(original);
      const auto [entry, is_new] = replaced.try_emplace(inside, nullptr);
      if (!is_new) continue;  // an output that occurs twice in the model
      graph.rename(inside, graph.names().unique(original->name + "_forward"));
      Value* input = graph.add_value(original->name, original->type);
      input->is_input = true;
      entry->second = input;
      add(input, BackwardInput::Kind::kSaved, i);
    }
    graph.outputs.clear();
    for (const Value* gradient : gradients_) graph.outputs.push_back(map.at(gradient));
    ir::replace_uses(graph, replaced);
    finish(*model);
    if (!split_.repeated.empty()) compute_late(graph, map);
    const auto by_value = opdef::shape_values(graph.nodes, *model, registry_, cpu_engine().kernels);
    for (std::size_t i = 0; i < graph.inputs.size(); ++i) {
      split_.backward_inputs[i].gives_shape = by_value.contains(graph.inputs[i]);
    }
    return model;
  }

  // Moves copies of forward nodes to their first readers: what they compute lives no longer than
  // needed.
  void compute_late(ir::Graph& graph, const std::unordered_map<const Value*, Value*>& map) const {
    NodeSet waiting;
    for (const Node* node : forward_) {
      for (const Value* output : node->outputs) {
        if (output != nullptr) waiting.insert(map.at(output)->producer);
      }
    }
    std::vector<Node*> nodes;
    std::vector<Node*> open;
    for (Node* node : std::exchange(graph.nodes, {})) {
      if (waiting.contains(node)) continue;
      open.push_back(node);
      while (!open.empty()) {
        Node* next = open.back();
        const std::size_t before = open.size();
        for (const Value* input : ir::values_read(*next)) {
          if (waiting.contains(input->producer)) open.push_back(input->producer);
        }
        if (open.size() > before) continue;
        open.pop_back();
        if (next == node || waiting.erase(next) > 0) nodes.push_back(next);
      }
    }
    graph.nodes = std::move(nodes);
  }

  static void finish(ir::Model& model) {
    ir::eliminate_dead_nodes(*model.graph);
    drop_unused_functions(model);
  }

  const opdef::OpRegistry& registry_;
  const SplitOptions& options_;
  ir::Model model_;  // the joint graph
  ir::Graph& graph_;
  std::unique_ptr<ir::TypeInferer> inferer_;
  ir::GraphBuilder g_;
  SplitGraph split_;
  std::vector<Value*> inputs_;  // inputs of the forward graph
  std::vector<Value*> wrt_;
  std::vector<ir::StateBinding> statistics_;
  std::vector<Value*> output_values_;
  std::vector<Value*> seeds_;
  std::vector<std::size_t> seed_outputs_;  // per seed, which of the runnable outputs
  std::vector<Value*> gradients_;
  NodeSet forward_;
  ValueSet backward_reads_;  // by backward nodes; of forward nodes, inputs and initializers
  std::vector<Value*> saved_;
};

}  // namespace

SplitGraph split_graph(const ir::Model& working, const opdef::OpRegistry& registry,
                       const SplitOptions& options) {
  return Splitter(working, registry, options).run();
}

}  // namespace onnxgrad::train
