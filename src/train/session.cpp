#include "train/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "device/cpu/thread_count.h"
#include "onnxgrad/option_error.h"
#include "train/engine.h"
#include "train/losses.h"
#include "train/mean.h"
#include "train/place_loss.h"
#include "train/targets.h"

namespace onnxgrad::train {
namespace {

using runtime::Execution;
using runtime::Port;

std::vector<std::string> names_of(std::span<const Port> ports) {
  std::vector<std::string> names;
  names.reserve(ports.size());
  for (const Port& port : ports) names.push_back(port.name);
  return names;
}

std::size_t find_port(std::span<const Port> ports, const std::string& name) {
  const auto found = std::ranges::find(ports, name, &Port::name);
  ONNXGRAD_ASSERT(found != ports.end());
  return static_cast<std::size_t>(found - ports.begin());
}

std::int64_t rows_of(const Tensor& target) {
  return target.dims().rank() > 0 ? target.dims()[0] : 1;
}

StepGraphOptions step_options(const TrainingOptions& options,
                              const std::optional<TrainedSet>& exact) {
  return {.trainable = options.trainable,
          .frozen = options.frozen,
          .exact = exact,
          .training_mode = options.training_mode,
          .skip_non_finite = options.skip_non_finite,
          .update = options.update,
          .outputs = options.outputs,
          .target_losses = true};
}

[[noreturn]] void bad_state(const std::string& what, const std::string& name) {
  throw CheckpointError({.what = what,
                         .where = {.value = name},
                         .hint = "Load a state that was saved from the same model, loss and "
                                 "optimizer."});
}

}  // namespace

double read_scalar(const std::byte* data, DataType dtype) {
  if (dtype == DataType::kFloat64) {
    double value = 0;
    std::memcpy(&value, data, sizeof value);
    return value;
  }
  ONNXGRAD_ASSERT(dtype == DataType::kFloat32);
  float value = 0;
  std::memcpy(&value, data, sizeof value);
  return value;
}

runtime::ExecutorOptions executor_options(const EngineOptions& options) {
  if (options.device != "cpu") {
    throw DeviceError(
        {.what = "there is no device '" + options.device + "'", .hint = "Available: 'cpu'."});
  }
  runtime::ExecutorOptions result{.seed = options.seed, .fuse = options.fuse};
  if (options.threads < 0) {
    throw OptionError({.what = fmt::format("{} threads were asked for", options.threads),
                       .hint = "Pass 0 for as many as there are cores, or a positive number."});
  }
  result.threads = options.threads > 0 ? options.threads : device::available_threads();
  if (options.memory_limit_bytes > 0) {
    result.budget = std::make_shared<base::MemoryBudget>(options.memory_limit_bytes);
  }
  return result;
}

std::vector<const Tensor*> order_feeds(const NamedTensors& feeds, std::span<const Port> ports,
                                       std::span<const std::string> ignored,
                                       std::span<const std::string> cells) {
  std::vector<const Tensor*> ordered(ports.size(), nullptr);
  const auto is_cell = [&](const Port& port) {
    return std::ranges::find(cells, port.name) != cells.end();
  };
  for (const NamedTensor& feed : feeds) {
    const auto port = std::ranges::find(ports, feed.name, &Port::name);
    if (port == ports.end() || is_cell(*port)) {
      if (std::ranges::find(ignored, feed.name) != ignored.end()) continue;
      const auto names = names_of(ports);
      throw DataError({.what = "there is no input '" + feed.name + "'",
                       .where = {.value = feed.name},
                       .detail = "Inputs: " + base::quote_list(names) + ".",
                       .hint = base::nearest_or(feed.name, names)});
    }
    const auto place = static_cast<std::size_t>(port - ports.begin());
    if (ordered[place] != nullptr) {
      throw DataError({.what = "input '" + feed.name + "' is fed twice",
                       .where = {.value = feed.name},
                       .hint = "Give each input one array."});
    }
    if (feed.tensor.dtype() != port->type.dtype) {
      throw DataError(
          {.what = fmt::format("input '{}' is {}, expected {}", feed.name,
                               dtype_name(feed.tensor.dtype()), dtype_name(port->type.dtype)),
           .where = {.value = feed.name},
           .hint = feed.tensor.dtype() == DataType::kString
                       ? "Give numbers; encode_target(labels) has those of labels that are texts."
                       : "Convert the array; `Trainer` does so by itself."});
    }
    ordered[place] = &feed.tensor;
  }
  for (std::size_t i = 0; i < ports.size(); ++i) {
    if (ordered[i] != nullptr || is_cell(ports[i])) continue;
    throw DataError({.what = "input '" + ports[i].name + "' of type " + ports[i].type.to_string() +
                             " is missing",
                     .where = {.value = ports[i].name},
                     .hint = "Feed an array under this name."});
  }
  return ordered;
}

Session::Session(Source source, const Loss& loss, const Optimizer& optimizer,
                 const TrainingOptions& options)
    : source_(std::move(source)),
      loss_(loss),
      optimizer_(optimizer),
      options_(options),
      executor_options_(executor_options(options.engine)) {
  build({});
  set_learning_rate(std::visit([](const auto& spec) { return spec.learning_rate; }, optimizer));
  const ir::Graph& graph = *source_.working->graph;
  const bool has_own_loss = std::holds_alternative<OutputLoss>(loss.function);
  const std::vector<std::string> own{graph_.loss.target.name, graph_.sample_weight};
  const auto is_own = [&](const ir::Value* value) {
    return has_own_loss && std::ranges::find(own, value->name) != own.end();
  };
  for (const ir::Value* input : graph.inputs) {
    if (input->is_initializer()) continue;
    if (!is_own(input)) inputs_.push_back(value_info(input->name, input->type));
    const auto names = names_of(step_->inputs());
    if (std::ranges::find(names, input->name) == names.end()) unused_inputs_.push_back(input->name);
  }
  runnable_ = runnable_outputs(graph);
  for (std::size_t i = 0; i < runnable_.size(); ++i) {
    const ir::Value* shown = runnable_[i].value != nullptr && !runnable_[i].labels.is_defined()
                                 ? runnable_[i].value
                                 : graph.outputs[i];
    outputs_.push_back(value_info(runnable_[i].name, shown->type));
    // Predictions are made without targets.
    if (has_own_loss && runnable_[i].value != nullptr &&
        std::ranges::any_of(values_behind(runnable_[i].value), is_own)) {
      runnable_[i].value = nullptr;
    }
  }
}

// The step's graph and executor, with first values. All or nothing.
void Session::build(const std::optional<TrainedSet>& set) {
  if (is_fitting_) {
    throw Error({.what = "the trained weights cannot be changed while fit() runs",
                 .hint = "Freeze and unfreeze between two fits."});
  }
  StepGraphOptions options = step_options(options_, set);
  options.gradient_norm = logs_gradient_norm_;
  StepGraph graph = build_step(*source_.working, builtin_engine().ops, loss_, optimizer_, options);
  auto executor =
      std::make_unique<runtime::Executor>(graph.model, builtin_engine(), executor_options_);
  graph_ = std::move(graph);
  step_ = std::move(executor);
  with_own_count_ = set ? set->with_own_count : std::unordered_set<std::string>{};
  adopt_step();
}

// Everything that points into the step.
void Session::adopt_step() {
  loss_dtype_ = graph_.model->graph->outputs.at(0)->type.dtype;
  rate_port_ = graph_.learning_rate.empty() ? step_->inputs().size()
                                            : find_port(step_->inputs(), graph_.learning_rate);
  step_->cells().seed = options_.engine.seed;
  step_->cells().step = static_cast<std::uint64_t>(steps_);
  state_views_.clear();
  for (std::size_t i = 0; i < step_->state().size(); ++i) {
    state_views_.push_back(step_->state_view(i));
  }
  if (const auto* lbfgs = std::get_if<Lbfgs>(&optimizer_)) {
    const std::size_t first = graph_.first_log_output() + graph_.num_log_outputs();
    lbfgs_ = std::make_unique<LbfgsLoop>(
        *lbfgs, std::span(state_views_).first(graph_.weights.size()), first);
  }
  has_log_outputs_ = graph_.num_log_outputs() > 0;
  last_step_ = nullptr;
  evaluation_.reset();
  prediction_.reset();
  prediction_outputs_.clear();
}

void Session::set_learning_rate(double learning_rate) {
  learning_rate_ = learning_rate;
  rate_float_ = static_cast<float>(learning_rate);
  rate_double_ = learning_rate;
}

void Session::set_steps(std::int64_t steps) {
  steps_ = steps;
  step_->cells().step = static_cast<std::uint64_t>(steps);
}

const std::byte* Session::learning_rate_cell() const {
  return graph_.learning_rate_dtype == DataType::kFloat64
             ? reinterpret_cast<const std::byte*>(&rate_double_)
             : reinterpret_cast<const std::byte*>(&rate_float_);
}

// One column cannot tell classes apart; where the file leaves their number open, data tell.
void Session::check_class_columns(const std::vector<Dims>& dims) const {
  if (graph_.class_symbol.empty()) return;
  const auto& ports = step_->inputs();
  for (std::size_t i = 0; i < ports.size(); ++i) {
    const auto& shape = ports[i].type.shape;
    for (std::size_t axis = 0; shape && axis < shape->size() && axis < dims[i].rank(); ++axis) {
      if ((*shape)[axis].symbol() != graph_.class_symbol || dims[i][axis] != 1) continue;
      throw DataError({.what = fmt::format("'{}' has one column in these data, but {} takes one "
                                           "column per class",
                                           graph_.loss.scores, describe(graph_.loss.function)),
                       .where = {.value = graph_.loss.scores},
                       .hint = "For two classes with one score use loss='binary_cross_entropy'."});
    }
  }
}

runtime::Execution& Session::prepare_step(const std::vector<Dims>& dims) {
  check_class_columns(dims);
  Execution& execution = prepare(*step_, dims);
  if (!graph_.learning_rate.empty()) execution.bind(rate_port_, learning_rate_cell());
  last_step_ = &execution;
  return execution;
}

// False: the port is no target.
bool Session::check_target(const std::string& port, const Tensor& tensor) const {
  const LossInfo* loss = find_target(graph_.loss, port);
  if (loss == nullptr) return false;
  check_class_numbers(*loss, tensor, port);
  if (has_soft_targets(loss->function)) check_range(*loss, tensor, port);
  if (rows_of(tensor) == 0) {
    throw DataError({.what = "a batch without rows",
                     .hint = "Leave empty batches out: the mean over no rows is no number."});
  }
  return true;
}

StepResult Session::step(const NamedTensors& feeds) {
  if (needs_fitting(feeds)) return step_on(fit_feeds(feeds));
  return step_on(feeds);
}

StepResult Session::step_on(const NamedTensors& feeds) {
  const auto& ports = step_->inputs();
  const std::string cells[] = {graph_.learning_rate};
  const auto ordered = order_feeds(feeds, ports, unused_inputs_, cells);
  std::vector<Dims> dims;
  for (const Tensor* tensor : ordered) dims.push_back(tensor == nullptr ? Dims{} : tensor->dims());
  for (std::size_t i = 0; i < ports.size(); ++i) {
    if (ordered[i] != nullptr) check_target(ports[i].name, *ordered[i]);
  }
  Execution& execution = prepare_step(dims);
  for (std::size_t i = 0; i < ordered.size(); ++i) {
    if (ordered[i] != nullptr) execution.bind(i, ordered[i]->raw());
  }
  StepResult result;
  result.loss = run_step(execution);
  set_steps(steps_ + 1);
  const std::size_t first = graph_.first_extra_output();
  if (graph_.has_row_losses) result.row_losses = execution.output_tensor(first - 1);
  for (std::size_t i = 0; i < graph_.num_extra_outputs; ++i) {
    result.outputs.push_back(execution.output_tensor(first + i));
  }
  return result;
}

const std::byte* Session::weight_data(const std::string& name) const {
  const auto& ports = step_->state();
  for (std::size_t i = 0; i < ports.size(); ++i) {
    if (ports[i].name == name) return state_views_[i].raw();
  }
  return nullptr;
}

runtime::Executor& Session::evaluation() {
  if (!evaluation_) {
    evaluation_graph_ = build_evaluation(*source_.working, builtin_engine().ops, loss_,
                                         graph_.state_weights(), {.scores = gives_scores_});
    evaluation_.emplace(evaluation_graph_.model, builtin_engine(), executor_options_);
  }
  return *evaluation_;
}

runtime::Executor Session::make_unfused() const {
  runtime::ExecutorOptions options = executor_options_;
  options.fuse = false;
  return {graph_.model, builtin_engine(), options};
}

void Session::give_scores_in_evaluation() {
  if (gives_scores_) return;
  gives_scores_ = true;
  evaluation_.reset();
}

std::span<const Port> Session::evaluation_ports() {
  const std::span<const Port> ports = evaluation().inputs();
  return ports.first(ports.size() - graph_.state_weights().size());
}

runtime::Execution& Session::prepare_evaluation(const std::vector<Dims>& dims) {
  runtime::Executor& executor = evaluation();
  const auto& ports = executor.inputs();
  std::vector<Dims> all = dims;
  for (std::size_t i = dims.size(); i < ports.size(); ++i) {
    all.push_back(state_views_[find_port(step_->state(), ports[i].name)].dims());
  }
  Execution& execution = prepare(executor, all);
  for (std::size_t i = dims.size(); i < ports.size(); ++i) {
    execution.bind(i, weight_data(ports[i].name));
  }
  return execution;
}

EvaluationResult Session::evaluate(const NamedTensors& feeds) {
  if (needs_fitting(feeds)) return evaluate_on(fit_feeds(feeds));
  return evaluate_on(feeds);
}

EvaluationResult Session::evaluate_on(const NamedTensors& feeds) {
  const std::span<const Port> ports = evaluation_ports();
  const auto ordered = order_feeds(feeds, ports, unused_inputs_, {});
  std::vector<Dims> dims;
  EvaluationResult result;
  for (std::size_t i = 0; i < ports.size(); ++i) {
    dims.push_back(ordered[i]->dims());
    if (check_target(ports[i].name, *ordered[i])) result.rows = rows_of(*ordered[i]);
  }
  if (graph_.loss.target.name.empty() && !ordered.empty()) result.rows = rows_of(*ordered[0]);
  Execution& execution = prepare_evaluation(dims);
  for (std::size_t i = 0; i < ordered.size(); ++i) execution.bind(i, ordered[i]->raw());
  execution.run();
  const DataType dtype = execution.output_desc(0).dtype;
  const double denominator = read_scalar(execution.output(1), dtype);
  const double numerator = read_scalar(execution.output(0), dtype);
  result.loss = loss_.reduction == Reduction::kMean ? mean_of(numerator, denominator) : numerator;
  if (evaluation_graph_.has_correct_rows) {
    result.accuracy =
        mean_of(read_scalar(execution.output(2), dtype), read_scalar(execution.output(3), dtype));
  }
  return result;
}

std::vector<Tensor> Session::predict(const NamedTensors& feeds,
                                     std::span<const std::string> output_names) {
  if (!prediction_) {
    std::vector<ir::Value*> values;
    for (std::size_t i = 0; i < runnable_.size(); ++i) {
      if (runnable_[i].value == nullptr) continue;
      values.push_back(runnable_[i].value);
      prediction_outputs_.push_back(i);
    }
    prediction_.emplace(build_prediction(*source_.working, values, graph_.state_weights()),
                        builtin_engine(), executor_options_);
  }
  const auto& all_ports = prediction_->inputs();
  std::vector<std::string> weights;
  for (const Port& port : all_ports) {
    if (weight_data(port.name) != nullptr) weights.push_back(port.name);
  }
  NamedTensors complete = feeds;
  for (const std::string& name : weights) {
    complete.push_back({.name = name, .tensor = state_views_[find_port(step_->state(), name)]});
  }
  std::vector<std::string> input_names;
  for (const ValueInfo& input : inputs_) input_names.push_back(input.name);
  const auto ordered = order_feeds(complete, all_ports, input_names, {});
  std::vector<Tensor> tensors;
  for (const Tensor* tensor : ordered) tensors.push_back(*tensor);
  auto computed = prediction_->run(tensors);

  std::vector<std::string> wanted(output_names.begin(), output_names.end());
  if (wanted.empty()) {
    for (const std::size_t i : prediction_outputs_) wanted.push_back(runnable_[i].name);
  }
  std::vector<Tensor> results;
  for (const std::string& name : wanted) {
    const auto place = std::ranges::find_if(
        prediction_outputs_, [&](std::size_t i) { return runnable_[i].name == name; });
    if (place == prediction_outputs_.end()) {
      std::vector<std::string> names;
      for (const RunnableOutput& output : runnable_) names.push_back(output.name);
      throw DataError({.what = "there is no output '" + name + "' that can be computed",
                       .detail = "Outputs: " + base::quote_list(names) + ".",
                       .hint = base::nearest_or(name, names)});
    }
    const auto index = static_cast<std::size_t>(place - prediction_outputs_.begin());
    results.push_back(runnable_[*place].finish(computed[index]));
  }
  return results;
}

Tensor Session::encode_target(const Tensor& labels, const std::string& output) const {
  const LossInfo& loss = output.empty() ? graph_.loss : find_loss_on(graph_.loss, output);
  return train::encode_target(loss, labels);
}

void Session::set_seed(std::uint64_t seed) {
  options_.engine.seed = seed;
  step_->cells().seed = seed;
}

NamedTensors Session::state_view() const {
  NamedTensors result;
  const auto& ports = step_->state();
  for (std::size_t i = 0; i < ports.size(); ++i) {
    result.push_back({.name = ports[i].name, .tensor = state_views_[i]});
  }
  if (lbfgs_ != nullptr) {
    const NamedTensors& host = lbfgs_->solver().state();
    result.insert(result.end(), host.begin(), host.end());
  }
  return result;
}

NamedTensors Session::state() const {
  NamedTensors result = state_view();
  for (NamedTensor& entry : result) entry.tensor = entry.tensor.clone();
  return result;
}

void Session::load_state(const NamedTensors& state) {
  // Places that take a value, by name; views share the memory of what they show.
  NamedTensors places;
  for (std::size_t i = 0; i < state_views_.size(); ++i) {
    places.push_back({.name = step_->state()[i].name, .tensor = state_views_[i]});
  }
  if (lbfgs_ != nullptr) {
    const NamedTensors& host = lbfgs_->solver().state();
    places.insert(places.end(), host.begin(), host.end());
  }
  std::vector<const Tensor*> ordered(places.size(), nullptr);
  for (const NamedTensor& entry : state) {
    const auto found = std::ranges::find(places, entry.name, &NamedTensor::name);
    if (found == places.end()) {
      bad_state("the state has an unknown '" + entry.name + "'", entry.name);
    }
    const Tensor& present = found->tensor;
    if (entry.tensor.dtype() != present.dtype() || entry.tensor.dims() != present.dims()) {
      bad_state(fmt::format("'{}' is {}{}, expected {}{}", entry.name,
                            dtype_name(entry.tensor.dtype()), entry.tensor.dims().to_string(),
                            dtype_name(present.dtype()), present.dims().to_string()),
                entry.name);
    }
    ordered[static_cast<std::size_t>(found - places.begin())] = &entry.tensor;
  }
  for (std::size_t i = 0; i < places.size(); ++i) {
    if (ordered[i] == nullptr)
      bad_state("the state lacks '" + places[i].name + "'", places[i].name);
  }
  for (std::size_t i = 0; i < places.size(); ++i) {
    std::memcpy(places[i].tensor.mutable_raw(), ordered[i]->raw(),
                static_cast<std::size_t>(places[i].tensor.size_bytes()));
  }
}

void Session::reset() {
  set_steps(0);
  if (!graph_.held.empty() || !with_own_count_.empty()) {
    TrainedSet set = present_set();
    set.with_own_count.clear();  // all begin together
    return build(set);
  }
  for (std::size_t i = 0; i < step_->state().size(); ++i) {
    const ir::Value& first = *graph_.model->state[i].input;
    ONNXGRAD_ASSERT(first.name == step_->state()[i].name);
    step_->set_state(i, first.initializer);
  }
  forget_host_state();
}

NamedTensors Session::weights() const {
  NamedTensors result;
  for (const WeightInfo& weight : graph_.state_weights()) {
    const Tensor& view = state_views_[find_port(step_->state(), weight.name)];
    result.push_back({.name = weight.name, .tensor = view.clone()});
  }
  return result;
}

MemoryReport Session::memory() const {
  const runtime::MemoryUse use = step_->memory();
  MemoryReport report{.activations = use.arena - use.scratch,
                      .scratch = use.scratch,
                      .constants = use.constants,
                      .dynamic = use.dynamic,
                      .snapshots = snapshot_bytes_};
  const std::size_t num_weights = graph_.state_weights().size();
  for (std::size_t i = 0; i < state_views_.size(); ++i) {
    const bool is_weight = i < num_weights;
    (is_weight ? report.weights : report.optimizer_state) += state_views_[i].size_bytes();
  }
  for (const auto* executor : {&evaluation_, &prediction_}) {
    if (!*executor) continue;
    const runtime::MemoryUse other = (*executor)->memory();
    report.evaluation += other.arena + other.constants + other.dynamic;
  }
  return report;
}

std::string Session::plan_summary() const {
  return last_step_ == nullptr ? "" : last_step_->to_text();
}

}  // namespace onnxgrad::train
