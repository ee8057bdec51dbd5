#include "train/graphs/file_training.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "ir/naming.h"
#include "onnx/gradient_nodes.h"
#include "onnx/operator_table.h"
#include "runtime/executor.h"
#include "train/graphs/place_loss.h"
#include "train/graphs/step_parts.h"
#include "train/heads/heads.h"
#include "train/tools/engine.h"

// Start reading at FileTraining::FileTraining() and FileTraining::build().

namespace onnxgrad::train {
namespace {

using ir::Value;
using onnx_io::TrainingBinding;

constexpr const char* kLearningRate = "learning_rate";

std::string place_of(std::size_t part, std::string_view field) {
  return fmt::format("training_info[{}].{}", part, field);
}

std::string lower_case(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

// One floating-point number, as far as the graph shows.
bool may_be_number(const Value& value) {
  if (!value.type.is_tensor() || !is_floating(value.dtype())) return false;
  const auto dims = value.type.static_dims();
  return dims ? dims->num_elements() == 1 : !value.type.has_rank();
}

Value* output_named(const ir::Graph& graph, const std::string& name) {
  const auto found = std::ranges::find(graph.outputs, name, &Value::name);
  return found == graph.outputs.end() ? nullptr : *found;
}

std::shared_ptr<ir::Model> working_copy_of(const onnx_io::FileModel& file,
                                           const onnx_io::OperatorTable* operators,
                                           const std::string& place) {
  const auto in_place = [&](Problem problem) {
    problem.what = place + ": " + problem.what;
    return problem;
  };
  try {
    return std::make_shared<ir::Model>(to_working_copy(file, operators));
  } catch (const ModelError& error) {
    throw ModelError(in_place(error.problem()));
  } catch (const GradientError& error) {
    throw GradientError(in_place(error.problem()));
  } catch (const ShapeError& error) {
    throw ShapeError(in_place(error.problem()));
  }
}

void refuse_texts(const ir::Graph& graph) {
  for (const Value* input : graph.inputs) {
    if (!input->type.is_tensor() || input->dtype() != DataType::kString) continue;
    throw UnsupportedOperatorError(
        {.what = "a training described by the file cannot read texts, as input '" + input->name +
                 "' does",
         .where = {.value = input->name},
         .hint = "Pass loss= and optimizer= to train the model otherwise."});
  }
}

// Throws unless the new value has the type of the old one, and its shape as far as it is known.
void check_value(std::size_t part, std::string_view field, const TrainingBinding& binding,
                 const Tensor& old, const ir::Type& type) {
  const auto dims = type.static_dims();
  bool fits = type.is_tensor() && type.dtype == old.dtype();
  if (fits && type.has_rank()) {
    fits = type.rank() == old.dims().rank();
    for (std::size_t axis = 0; fits && axis < old.dims().rank(); ++axis) {
      const ir::Dim& dim = (*type.shape)[axis];
      fits = !dim.is_static() || dim.value() == old.dims()[axis];
    }
  }
  if (fits) return;
  throw ModelError(
      {.what = fmt::format("{}: '{}' is {}, but '{}', which it is to become, is {}",
                           place_of(part, field), binding.initializer,
                           ir::Type::tensor(old.dtype(), old.dims()).to_string(), binding.output,
                           type.to_string()),
       .where = {.value = binding.initializer},
       .hint = "Bind an output of the same type and shape, or insert a Cast or a Reshape."});
}

// The outputs of a graph without inputs.
std::vector<Tensor> run_once(std::shared_ptr<ir::Model> model, std::uint64_t seed) {
  ir::close_defaults(*model->graph);
  const std::size_t count = model->graph->outputs.size();
  runtime::Executor executor(std::move(model), cpu_engine(), {.seed = seed});
  runtime::Execution& execution = executor.prepare({});
  execution.run();
  std::vector<Tensor> outputs;
  for (std::size_t i = 0; i < count; ++i) outputs.push_back(execution.output_tensor(i));
  return outputs;
}

}  // namespace

FileTraining::FileTraining(const onnx_io::FileModel& file, std::uint64_t seed,
                           std::shared_ptr<const onnx_io::OperatorTable> operators)
    : operators_(std::move(operators)) {
  num_model_outputs_ = file.model->graph->outputs.size();
  for (const Value* input : file.model->graph->inputs) {
    if (!input->is_initializer()) model_inputs_.insert(input->name);
  }
  for (const Value* value : file.model->graph->initializers) {
    model_initializers_.insert(value->name);
  }
  for (onnx_io::TrainingInfo& info : onnx_io::read_training_info(file)) {
    for (const TrainingBinding& binding : info.updates) updated_.insert(binding.initializer);
    const std::string place = place_of(parts_.size(), "algorithm");
    auto working = working_copy_of(info.step, operators_.get(), place);
    refuse_texts(*working->graph);
    parts_.push_back({.info = std::move(info), .working = std::move(working)});
  }
  check_updates();
  if (!onnx_io::is_initialized(file)) initialize(seed);
  find_loss();
  find_targets();
  find_learning_rate();
  find_classes();
}

bool FileTraining::is_own_state(const Part& part, const std::string& name) {
  return part.info.own_initializers.contains(name) &&
         std::ranges::any_of(part.info.updates, [&](const TrainingBinding& binding) {
           return binding.initializer == name;
         });
}

void FileTraining::check_updates() const {
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const ir::Graph& graph = *parts_[i].working->graph;
    for (const TrainingBinding& binding : parts_[i].info.updates) {
      check_value(i, "update_binding", binding, graph.find(binding.initializer)->initializer,
                  output_named(graph, binding.output)->type);
    }
  }
}

void FileTraining::initialize(std::uint64_t seed) {
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const onnx_io::TrainingInfo& info = parts_[i].info;
    if (!info.initialization || info.initial_values.empty()) continue;
    const auto model =
        working_copy_of(*info.initialization, operators_.get(), place_of(i, "initialization"));
    const std::vector<Value*> outputs = model->graph->outputs;
    const std::vector<Tensor> values = run_once(model, seed);
    for (const TrainingBinding& binding : info.initial_values) {
      const auto found = std::ranges::find(outputs, binding.output, &Value::name);
      const Tensor& value = values[static_cast<std::size_t>(found - outputs.begin())];
      const Value* old = parts_[i].working->graph->find(binding.initializer);
      check_value(i, "initialization_binding", binding, old->initializer,
                  ir::Type::tensor(value.dtype(), value.dims()));
      set_initial(i, binding.initializer, value);
    }
  }
}

void FileTraining::set_initial(std::size_t part, const std::string& name, const Tensor& value) {
  const bool is_own = parts_[part].info.own_initializers.contains(name);
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    if (is_own ? i != part : parts_[i].info.own_initializers.contains(name)) continue;
    parts_[i].working->graph->find(name)->initializer = value;
  }
}

std::unordered_set<std::string> FileTraining::bound_outputs(const Part& part) const {
  std::unordered_set<std::string> names;
  for (const TrainingBinding& binding : part.info.updates) names.insert(binding.output);
  return names;
}

// Name of the loss, or "".
std::string FileTraining::find_loss_in(const Part& part) const {
  const ir::Graph& graph = *part.working->graph;
  const auto bound = bound_outputs(part);
  // The algorithm's before those of the model.
  std::vector<const Value*> outputs(graph.outputs.begin(), graph.outputs.end());
  std::ranges::rotate(outputs, outputs.begin() + static_cast<std::ptrdiff_t>(num_model_outputs_));
  for (const Value* output : outputs) {
    const std::string name = lower_case(output->name);
    const bool is_loss = (name == "loss" || name.starts_with("loss_")) &&
                         output->type.is_tensor() && is_floating(output->dtype());
    if (is_loss && !bound.contains(output->name)) return output->name;
  }
  for (const ir::Node* node : part.info.step.model->graph->nodes) {
    if (!onnx_io::is_gradient_node(*node)) continue;
    const std::string name = node->string_attribute("y", "");
    const Value* y = part.info.step.model->graph->find(name);
    const bool is_second =
        y != nullptr && y->producer != nullptr && onnx_io::is_gradient_node(*y->producer);
    const Value* value = graph.find(name);
    if (!is_second && value != nullptr && may_be_number(*value)) return name;
  }
  for (std::size_t i = num_model_outputs_; i < graph.outputs.size(); ++i) {
    const Value* output = graph.outputs[i];
    if (may_be_number(*output) && !bound.contains(output->name)) return output->name;
  }
  return "";
}

void FileTraining::find_loss() {
  loss_.function = OutputLoss{};
  for (std::size_t i = 0; i < parts_.size() && loss_.output.empty(); ++i) {
    loss_.output = find_loss_in(parts_[i]);
    loss_part_ = i;
  }
  if (!loss_.output.empty()) return;
  std::vector<std::string> names;
  for (const Value* output : parts_[0].working->graph->outputs) names.push_back(output->name);
  throw ModelError({.what = "the training that the file describes has no loss",
                    .detail = "Outputs of the model and of its first algorithm: " +
                              base::quote_list(names) + ".",
                    .hint = "Name one number among the outputs of algorithm 'loss', or pass loss= "
                            "and optimizer= to train the model otherwise."});
}

void FileTraining::find_targets() {
  std::vector<std::string> added;
  for (const Part& part : parts_) {
    for (const Value* input : part.working->graph->inputs) {
      if (input->is_initializer() || model_inputs_.contains(input->name)) continue;
      if (std::ranges::find(added, input->name) == added.end()) added.push_back(input->name);
    }
  }
  const ir::Graph& graph = *working()->graph;
  std::erase_if(added, [&](const std::string& name) {
    const Value* value = graph.find(name);  // a value of another algorithm, or a scalar: no target
    return value == nullptr || (value->type.has_rank() && value->type.rank() == 0);
  });
  const auto weight = std::ranges::find(added, "sample_weight");
  if (weight != added.end() && added.size() > 1) {
    loss_.sample_weight = *weight;
    added.erase(weight);
  }
  if (added.empty()) return;  // Loss::target's default name may be an input of the model
  const bool has_default = std::ranges::find(added, loss_.target) != added.end();
  if (!has_default) loss_.target = added.front();
}

void FileTraining::find_learning_rate() {
  for (const Part& part : parts_) {
    if (!part.info.own_initializers.contains(kLearningRate)) continue;
    const Value* value = part.working->graph->find(kLearningRate);
    const Tensor& rate = value->initializer;
    const bool is_number =
        (rate.dtype() == DataType::kFloat32 || rate.dtype() == DataType::kFloat64) &&
        rate.dims().rank() == 0;
    const bool is_first = !has_learning_rate_;
    const double number = is_number ? rate.to_doubles().front() : 0;
    const bool fits =
        is_number && !updated_.contains(kLearningRate) && (is_first || number == learning_rate_);
    if (!fits) {
      has_learning_rate_ = false;
      learning_rate_ = 0;
      return;
    }
    has_learning_rate_ = true;
    learning_rate_ = number;
  }
}

// Files that we wrote say which output's labels the target numbers.
void FileTraining::find_classes() {
  const ir::Metadata& metadata = parts_[loss_part_].info.step.model->graph->metadata;
  const auto entry =
      std::ranges::find(metadata, onnx_io::kClassesKey, &ir::Metadata::value_type::first);
  if (entry == metadata.end()) return;
  Loss loss{.output = entry->second, .walk_back = !entry->second.empty()};
  ir::Graph& graph = *parts_[loss_part_].working->graph;
  const std::vector<Value*> all = graph.outputs;
  graph.outputs.resize(num_model_outputs_);
  try {
    const ResolvedLoss resolved = resolve_loss(graph, loss);
    if (resolved.info.is_classifier) classes_ = resolved.info;
  } catch (const ModelError&) {  // NOLINT(bugprone-empty-catch): targets are class numbers then
  }
  graph.outputs = all;
}

std::vector<WeightInfo> FileTraining::evaluated_states() const {
  std::vector<WeightInfo> infos;
  const Part& part = parts_[loss_part_];
  for (Value* value : part.working->graph->initializers) {
    if (!is_model_state(value->name) && !is_own_state(part, value->name)) continue;
    infos.push_back(weight_info({.value = value}));
  }
  return infos;
}

/// Writes the parts one after another into one graph.
class FileTraining::Writer {
 public:
  explicit Writer(const FileTraining& training)
      : training_(training),
        draft_(*training.parts_[0].working, builtin_ops()),
        graph_(draft_.graph()) {
    ir::close_defaults(graph_);
  }

  StepGraph run(bool skip_non_finite);

 private:
  using Map = std::unordered_map<const Value*, Value*>;
  struct State {
    Value* input = nullptr;
    std::size_t owner = 0;
    bool is_of_model = false;
  };

  void find_first_states();
  void take_updates(const Part& part, const Map* map);
  void append(std::size_t index);
  Map stand_ins(std::size_t index);
  void add_functions(const ir::Model& model);
  std::string loss_value(const Map& map, const Part& part) const;
  void open_learning_rate(StepGraph& step);
  void bind(StepGraph& step);
  Value* own_value(Value* output);

  const FileTraining& training_;
  Draft draft_;
  ir::Graph& graph_;
  std::vector<State> states_;
  std::unordered_map<std::string, Value*> current_;  // values of states after the parts so far
  std::unordered_set<const Value*> taken_;           // outputs that are bound
  Value* learning_rate_ = nullptr;
  std::string loss_name_;
};

// The states that the first part has.
void FileTraining::Writer::find_first_states() {
  const Part& part = training_.parts_[0];
  for (Value* value : graph_.initializers) {
    const bool is_of_model = training_.is_model_state(value->name);
    const bool is_own = part.info.own_initializers.contains(value->name);
    if (is_of_model || is_own_state(part, value->name)) {
      states_.push_back({.input = value, .owner = 0, .is_of_model = is_of_model});
      current_[value->name] = value;
    } else if (is_own && value->name == kLearningRate && training_.has_learning_rate_) {
      learning_rate_ = value;
    }
  }
}

// From now on the initializers that the part updates have their new values.
void FileTraining::Writer::take_updates(const Part& part, const Map* map) {
  std::vector<std::pair<std::string, Value*>> updates;
  for (const TrainingBinding& binding : part.info.updates) {
    Value* output = output_named(*part.working->graph, binding.output);
    if (map == nullptr) {
      output = graph_.find(output->name);
    } else if (const auto found = map->find(output); found != map->end()) {
      output = found->second;
    }
    updates.emplace_back(binding.initializer, output);
  }
  for (const auto& [name, value] : updates) current_[name] = value;
}

// Maps inputs and initializers of part `index` to values of the graph; others are copied.
FileTraining::Writer::Map FileTraining::Writer::stand_ins(std::size_t index) {
  const Part& part = training_.parts_[index];
  const ir::Graph& from = *part.working->graph;
  Map map;
  for (const Value* input : from.inputs) {
    if (input->is_initializer()) continue;
    const auto known = std::ranges::find(graph_.inputs, input->name, &Value::name);
    map[input] = known != graph_.inputs.end() ? *known : graph_.add_input(input->name, input->type);
  }
  for (const Value* value : from.initializers) {
    const std::string& name = value->name;
    const bool is_own = part.info.own_initializers.contains(name);
    if (training_.model_initializers_.contains(name)) {
      const auto current = current_.find(name);
      Value* same = current != current_.end() ? current->second : graph_.find(name);
      if (same != nullptr) map[value] = same;
    } else if (is_own_state(part, name)) {
      Value* state = graph_.add_initializer(name, value->initializer);
      ir::give_name(graph_, state, name);
      states_.push_back({.input = state, .owner = index});
      current_[name] = state;
      map[value] = state;
    } else if (is_own && name == kLearningRate && training_.has_learning_rate_) {
      if (learning_rate_ == nullptr) {
        learning_rate_ = graph_.add_initializer(name, value->initializer);
      }
      if (learning_rate_->initializer.dtype() == value->initializer.dtype()) {
        map[value] = learning_rate_;
      }
    }
    if (!map.contains(value) && value->is_input) {  // one that only `initialization` changes
      map[value] = graph_.add_initializer(name, value->initializer);
    }
  }
  return map;
}

void FileTraining::Writer::add_functions(const ir::Model& model) {
  const ir::Model copy = ir::clone(model);
  for (const ir::Function& function : copy.functions) {
    if (draft_.model()->find_function(function.domain, function.name) != nullptr) continue;
    draft_.model()->functions.push_back(function);
  }
  for (const auto& [domain, version] : copy.opset_imports) {
    if (draft_.model()->opset(domain) == 0) draft_.model()->set_opset(domain, version);
  }
}

void FileTraining::Writer::append(std::size_t index) {
  const Part& part = training_.parts_[index];
  Map map = stand_ins(index);
  add_functions(*part.working);
  ir::append_nodes(*part.working->graph, graph_, map, fmt::format("step{}/", index + 1));
  if (index == training_.loss_part_) loss_name_ = loss_value(map, part);
  take_updates(part, &map);
}

std::string FileTraining::Writer::loss_value(const Map& map, const Part& part) const {
  const Value* value = part.working->graph->find(training_.loss_.output);
  const auto found = map.find(value);
  return found == map.end() ? value->name : found->second->name;
}

void FileTraining::Writer::open_learning_rate(StepGraph& step) {
  if (learning_rate_ == nullptr) return;
  learning_rate_->initializer = {};
  learning_rate_->is_input = true;
  std::erase(graph_.initializers, learning_rate_);
  graph_.inputs.push_back(learning_rate_);
  step.learning_rate = learning_rate_->name;
  step.learning_rate_dtype = learning_rate_->dtype();
}

// A value of its own, computed in the graph: bindings name each new state.
Value* FileTraining::Writer::own_value(Value* output) {
  if (output->producer != nullptr && output->graph == &graph_ && taken_.insert(output).second) {
    return output;
  }
  return draft_.g().identity(output);
}

// In the order of StepGraph: weights, other initializers of the model, those of algorithms.
void FileTraining::Writer::bind(StepGraph& step) {
  auto& bindings = draft_.model()->state;
  const auto add = [&](const State& state) {
    Value* input = state.input;
    const std::string name = input->name;
    input->is_input = true;
    graph_.inputs.push_back(input);
    if (!state.is_of_model) {
      input->origin = std::make_shared<const ir::WeightOrigin>(
          ir::WeightOrigin{.name = name, .function = onnx_io::algorithm_scope(state.owner)});
    }
    Value* next = current_.at(name);
    bindings.push_back({.input = input, .output = next == input ? input : own_value(next)});
  };
  for (const bool is_weight : {true, false}) {
    for (const State& state : states_) {
      if (!state.is_of_model || is_floating(state.input->dtype()) != is_weight) continue;
      (is_weight ? step.weights : step.statistics).push_back(weight_info({.value = state.input}));
      add(state);
    }
  }
  for (const State& state : states_) {
    if (!state.is_of_model) add(state);
  }
}

StepGraph FileTraining::Writer::run(bool skip_non_finite) {
  find_first_states();
  loss_name_ = training_.loss_.output;
  take_updates(training_.parts_[0], nullptr);
  for (std::size_t i = 1; i < training_.parts_.size(); ++i) append(i);

  Loss loss = training_.loss_;
  loss.output = loss_name_;
  const PlacedLoss placed = place_loss(draft_.g(), builtin_ops(), loss);
  Value* const loss_value = draft_.g().identity(placed.written.loss);  // it may be bound too
  StepGraph step{.model = draft_.model(), .loss = placed.resolved.info};
  step.loss.line =
      fmt::format("loss: '{}' of the training that the file describes", training_.loss_.output);
  if (training_.classes_) {
    step.loss.is_classifier = true;
    step.loss.num_classes = training_.classes_->num_classes;
    step.loss.classes = training_.classes_->classes;
    step.loss.class_axis = training_.classes_->class_axis;
  }
  if (placed.sample_weight != nullptr) step.sample_weight = placed.sample_weight->name;
  graph_.outputs = {loss_value};
  if (placed.written.has_counts) {
    step.ports.denominator = graph_.outputs.size();
    graph_.outputs.push_back(placed.written.denominator);
  }
  open_learning_rate(step);
  bind(step);
  if (skip_non_finite) guard_update(draft_.g(), loss_value, draft_.model()->state);
  append_state_outputs(*draft_.model());
  cut_around_state(*draft_.model());
  if (learning_rate_ != nullptr &&
      std::ranges::find(graph_.inputs, learning_rate_) == graph_.inputs.end()) {
    step.learning_rate.clear();  // nothing reads it
  }
  return step;
}

StepGraph FileTraining::build(bool skip_non_finite) const {
  return Writer(*this).run(skip_non_finite);
}

}  // namespace onnxgrad::train
