#include "train/graphs/write_training_info.h"

#include <algorithm>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "onnx/model_io.h"
#include "onnx/training_info.h"
#include "onnxgrad/version.h"
#include "opdef/random_stream.h"
#include "ops/older_bodies.h"
#include "train/graphs/step_parts.h"
#include "train/graphs/stop_gradient.h"
#include "train/tools/engine.h"

// Start reading at write_training_info().

namespace onnxgrad::train {
namespace {

using ir::Graph;
using ir::Value;

const Tensor* find_tensor(const NamedTensors& tensors, const std::string& name) {
  const auto found = std::ranges::find(tensors, name, &NamedTensor::name);
  return found == tensors.end() ? nullptr : &found->tensor;
}

bool has_form_of(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() && a.dims() == b.dims();
}

// The initializer of the file that a weight is, element by element, possibly in another
// floating-point type; nullptr: it is none.
const Value* stored_weight(const ir::Model& file, const Value& weight) {
  std::string name = weight.name;
  if (const auto& origin = weight.origin) {
    const bool is_plain = origin->kind == ir::WeightOrigin::Kind::kInitializer &&
                          origin->index.empty() && origin->factor.empty() &&
                          origin->function.empty() && origin->path.empty();
    if (!is_plain) return nullptr;
    name = origin->name;
  }
  const Value* value = file.graph->find(name);
  if (value == nullptr || !value->is_initializer()) return nullptr;
  const Tensor& stored = value->initializer;
  const bool are_floating = is_floating(stored.dtype()) && is_floating(weight.initializer.dtype());
  const bool is_same = stored.dims() == weight.initializer.dims() &&
                       (are_floating || stored.dtype() == weight.initializer.dtype());
  return is_same ? value : nullptr;
}

// The initializer of `weight` in the file, if it has the type of `weight`; else nullptr.
const Value* initializer_of(const ir::Model& file, const Value& weight) {
  const Value* value = stored_weight(file, weight);
  return value != nullptr && has_form_of(value->initializer, weight.initializer) ? value : nullptr;
}

// The step in the wanted opset; its outputs are the loss and the new states.
ir::Model step_in_opset(const TrainingToWrite& training, std::int64_t opset, bool inlined) {
  ir::Model step = ir::clone(*training.step.model);
  Graph& graph = *step.graph;
  graph.outputs = {graph.outputs.at(training.step.ports.loss)};
  for (const ir::StateBinding& binding : step.state) {
    if (binding.output != binding.input) graph.outputs.push_back(binding.output);
  }
  remove_stops(step);
  cut_around_state(step);
  return onnx_io::to_target_opset(step, opset, inlined, ops::older_body);
}

// Writes the step as a continuation of a model's graph.
class AlgorithmWriter {
 public:
  AlgorithmWriter(const TrainingToWrite& training, ir::Model step, ir::Model model)
      : training_(training), step_(std::move(step)), model_(std::move(model)) {}

  /// False: a weight is no initializer of the model, or a domain is imported in another version.
  bool can_continue() const;
  ir::Model run();

 private:
  bool is_weight(const std::string& name) const;
  void find_shared();
  void share(Value* value, const Value* of_model) { shared_[value] = of_model; }
  void narrow_weights();
  void set_learning_rate();
  void set_state();
  void name_values(Graph& graph, bool is_main);
  void name_node(ir::Node& node);
  std::vector<onnx_io::TrainingBinding> bindings() const;
  void list_values();
  void merge_header();

  const TrainingToWrite& training_;
  ir::Model step_;
  ir::Model model_;
  std::unordered_map<const Value*, const Value*> shared_;  // values of the step that the model has
  std::vector<std::pair<std::string, Value*>> narrowed_;   // initializers of the model: new values
};

bool AlgorithmWriter::is_weight(const std::string& name) const {
  const auto weights = training_.step.state_weights();
  return std::ranges::find(weights, name, &WeightInfo::name) != weights.end();
}

bool AlgorithmWriter::can_continue() const {
  for (const ir::StateBinding& binding : step_.state) {
    const bool must_be_there = is_weight(binding.input->name);
    if (must_be_there && stored_weight(model_, *binding.input) == nullptr) return false;
  }
  return std::ranges::all_of(step_.opset_imports, [this](const auto& import) {
    const std::int64_t version = model_.opset(import.first);
    return version == 0 || version == import.second;
  });
}

void AlgorithmWriter::find_shared() {
  Graph& graph = *step_.graph;
  for (Value* input : graph.inputs) {
    const Value* same = model_.graph->find(input->name);
    const bool is_fed = same != nullptr && same->is_input && !same->is_initializer();
    if (is_fed && !input->is_initializer()) share(input, same);
  }
  for (Value* value : graph.initializers) {
    const Value* same = initializer_of(model_, *value);
    if (same == nullptr) continue;
    const bool is_state =
        std::ranges::find(step_.state, value, &ir::StateBinding::input) != step_.state.end();
    const bool is_same =
        is_state ? is_weight(value->name) : same->initializer.equals(value->initializer);
    if (is_same) share(value, same);
  }
}

// A weight that the file has in float16 or bfloat16 is trained as one of the algorithm's in
// float32; the model's becomes that value, rounded.
void AlgorithmWriter::narrow_weights() {
  Graph& graph = *step_.graph;
  for (const ir::StateBinding& binding : step_.state) {
    if (!is_weight(binding.input->name) || shared_.contains(binding.input)) continue;
    const Value* stored = stored_weight(model_, *binding.input);
    if (stored == nullptr) {
      throw ModelError({.what = "weight '" + binding.input->name +
                                "' is no initializer that a training could update",
                        .where = {.value = binding.input->name},
                        .hint = "Freeze it, or export the model with it as an initializer."});
    }
    if (binding.output == binding.input) continue;
    const auto to = static_cast<std::int64_t>(stored->initializer.dtype());
    ir::Node* cast = graph.add_node("Cast", {binding.output}, 1, {{.name = "to", .value = to}}, "",
                                    "next/" + stored->name + "_stored");
    Value* value = cast->outputs.front();
    value->type = ir::Type::tensor(stored->initializer.dtype(), stored->initializer.dims());
    graph.outputs.push_back(value);
    narrowed_.emplace_back(stored->name, value);
  }
}

// An initializer instead of an input.
void AlgorithmWriter::set_learning_rate() {
  if (training_.step.learning_rate.empty()) return;
  Graph& graph = *step_.graph;
  Value* rate = graph.find(training_.step.learning_rate);
  if (rate == nullptr || !rate->is_input) return;  // scheduled by OptimalRate
  const double number = training_.learning_rate;
  rate->initializer = rate->dtype() == DataType::kFloat64
                          ? Tensor::scalar(number)
                          : Tensor::scalar(static_cast<float>(number));
  graph.initializers.push_back(rate);
}

void AlgorithmWriter::set_state() {
  for (const ir::StateBinding& binding : step_.state) {
    if (const Tensor* now = find_tensor(training_.state, binding.input->name)) {
      binding.input->initializer = *now;
    }
  }
}

// Draws belong to names: a node that is renamed keeps its own.
void AlgorithmWriter::name_node(ir::Node& node) {
  const opdef::OpDef* def = builtin_ops().find(node);
  if (def != nullptr && def->is_random) {
    opdef::set_random_stream(node, std::string(opdef::random_stream(node)));
  }
  node.name = model_.graph->names().unique(node.name.empty() ? node.op_type : node.name);
}

// Names that no value of the model has; shared values have the model's.
void AlgorithmWriter::name_values(Graph& graph, bool is_main) {
  ir::NameAuthority& names = model_.graph->names();
  std::vector<std::pair<Value*, std::string>> renamed;
  std::unordered_set<const Value*> seen;
  const auto choose = [&](Value* value) {
    if (value == nullptr || !seen.insert(value).second) return;
    const auto same = shared_.find(value);
    std::string name = same != shared_.end() ? same->second->name : names.unique(value->name);
    if (name != value->name) renamed.emplace_back(value, std::move(name));
  };
  for (const Value* output : graph.outputs) {
    if (is_main && output->producer != nullptr) choose(const_cast<Value*>(output));  // NOLINT
  }
  for (Value* input : graph.inputs) choose(input);
  for (Value* value : graph.initializers) choose(value);
  for (ir::Node* node : graph.nodes) {
    name_node(*node);
    for (Value* output : node->outputs) choose(output);
  }
  // In two rounds: a new name may be the old one of another value.
  for (auto& [value, name] : renamed) {
    graph.rename(value, graph.names().unique("training/" + value->name));
  }
  for (auto& [value, name] : renamed) graph.rename(value, std::move(name));
  for (ir::Node* node : graph.nodes) {
    for (Graph* body : node->subgraphs()) name_values(*body, false);
  }
}

std::vector<onnx_io::TrainingBinding> AlgorithmWriter::bindings() const {
  std::vector<onnx_io::TrainingBinding> updates;
  for (const auto& [input, output] : step_.state) {
    if (input != output) updates.push_back({.initializer = input->name, .output = output->name});
  }
  for (const auto& [name, value] : narrowed_) {
    updates.push_back({.initializer = name, .output = value->name});
  }
  return updates;
}

// Removes values that the model has from the algorithm's lists.
void AlgorithmWriter::list_values() {
  Graph& graph = *step_.graph;
  const auto is_shared = [this](const Value* value) { return shared_.contains(value); };
  std::erase_if(graph.inputs,
                [&](const Value* value) { return is_shared(value) || value->is_initializer(); });
  std::erase_if(graph.initializers, is_shared);
  for (Value* value : graph.initializers) {
    value->is_input = false;
    value->has_value_info = false;
  }
  for (const auto& [value, same] : shared_) {
    const_cast<Value*>(value)->has_value_info = false;  // NOLINT: a value of our copy
  }
  graph.name = "training_step";
  graph.doc_string.clear();
  graph.metadata.clear();
  const LossInfo& loss = training_.step.loss;
  if (loss.is_classifier) graph.metadata = {{std::string(onnx_io::kClassesKey), loss.output}};
  graph.opaque.clear();
}

void AlgorithmWriter::merge_header() {
  for (const ir::Function& function : step_.functions) {
    if (model_.find_function(function.domain, function.name) == nullptr) {
      model_.functions.push_back(function);
    }
  }
  for (const auto& [domain, version] : step_.opset_imports) {
    if (model_.opset(domain) == 0) model_.set_opset(domain, version);
  }
  // Training information is of IR version 7, functions are of 8.
  const std::int64_t least = model_.functions.empty() ? 7 : 8;
  model_.ir_version = std::max(model_.ir_version, least);
  std::erase_if(model_.metadata,
                [](const auto& entry) { return entry.first == onnx_io::kInitializedKey; });
}

ir::Model AlgorithmWriter::run() {
  find_shared();
  narrow_weights();
  set_learning_rate();
  set_state();
  name_values(*step_.graph, true);
  const auto updates = bindings();
  list_values();
  merge_header();
  model_.opaque_training_info = {onnx_io::write_training_info(*step_.graph, updates)};
  return std::move(model_);
}

// The model in the form that it is trained in: every weight is an initializer of its graph.
ir::Model written_anew(const TrainingToWrite& training, std::int64_t opset, bool inlined) {
  ir::Model model = ir::clone(training.working);
  for (Value* value : model.graph->initializers) {
    if (const Tensor* now = find_tensor(training.state, value->name)) value->initializer = *now;
    value->origin = nullptr;
  }
  model.producer_name = "onnxgrad";
  model.producer_version = version();
  return onnx_io::to_target_opset(model, opset, inlined);
}

std::optional<ir::Model> in_own_opset(const TrainingToWrite& training,
                                      const TrainingInfoOptions& options) {
  const std::int64_t opset = training.file.opset();
  if (training.is_rewritten) return std::nullopt;
  if (options.target_opset != 0 && options.target_opset != opset) return std::nullopt;
  if (opset < 9 || opset > ir::kInternalOpset) return std::nullopt;
  try {
    AlgorithmWriter writer(training, step_in_opset(training, opset, options.inline_functions),
                           ir::clone(training.file));
    if (writer.can_continue()) return writer.run();
  } catch (const ModelError&) {
    if (options.target_opset != 0) throw;  // the opset that was asked for
  }
  return std::nullopt;
}

ir::Model write(const TrainingToWrite& training, const TrainingInfoOptions& options) {
  if (auto model = in_own_opset(training, options)) return std::move(*model);
  const std::int64_t opset = options.target_opset != 0 ? options.target_opset : ir::kInternalOpset;
  ir::Model step = step_in_opset(training, opset, options.inline_functions);
  for (Value* value : step.graph->initializers) value->origin = nullptr;
  return AlgorithmWriter(training, std::move(step),
                         written_anew(training, opset, options.inline_functions))
      .run();
}

}  // namespace

ir::Model write_training_info(const TrainingToWrite& training, const TrainingInfoOptions& options) {
  if (options.inline_functions) return write(training, options);
  // Older opsets can express some functions only where they are called, with types.
  const TrainingInfoOptions inlined{.target_opset = options.target_opset, .inline_functions = true};
  if (options.target_opset == 0) {
    if (auto model = in_own_opset(training, options)) return std::move(*model);
    if (auto model = in_own_opset(training, inlined)) return std::move(*model);
  }
  try {
    return write(training, options);
  } catch (const ModelError&) {
    if (options.target_opset == 0 || options.target_opset >= 17) throw;
    return write(training, inlined);
  }
}

}  // namespace onnxgrad::train
