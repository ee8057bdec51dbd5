#include "train/session/step_runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "train/losses/losses.h"
#include "train/optimizers/optimizers.h"

namespace onnxgrad::train {
namespace {

using runtime::Execution;

void copy_bytes(const Tensor& from, Tensor& to) {
  std::memcpy(to.mutable_raw(), from.raw(), static_cast<std::size_t>(to.size_bytes()));
}

void read_numbers(const Tensor& tensor, std::span<double> to) {
  if (tensor.dtype() == DataType::kFloat64) {
    std::ranges::copy(tensor.data<double>(), to.begin());
  } else if (tensor.dtype() == DataType::kFloat32) {
    std::ranges::copy(tensor.data<float>(), to.begin());
  } else {
    std::ranges::copy(tensor.to_doubles(), to.begin());
  }
}

void write_numbers(std::span<const double> from, Tensor& tensor) {
  if (tensor.dtype() == DataType::kFloat64) {
    std::ranges::copy(from, tensor.mutable_data<double>().begin());
  } else if (tensor.dtype() == DataType::kFloat32) {
    std::ranges::transform(from, tensor.mutable_data<float>().begin(),
                           [](double x) { return static_cast<float>(x); });
  } else {
    const Tensor converted = Tensor::from(from, tensor.dims()).cast(tensor.dtype());
    copy_bytes(converted, tensor);
  }
}

[[noreturn]] void refuse_state(const std::string& what, const std::string& name) {
  throw CheckpointError({.what = what,
                         .where = {.value = name},
                         .hint = "Load a state that was saved from the same model, loss and "
                                 "optimizer."});
}

}  // namespace

StepRunner::StepRunner(StepGraph graph, const Lbfgs* lbfgs, const runtime::ExecutorOptions& options,
                       Workers* workers, const std::optional<OuterStep::Options>& outer)
    : Runner(graph.model, options), graph_(std::move(graph)), options_(options), workers_(workers) {
  if (options_.state_of == nullptr) reset_changes_ = executor().state_changes();
  options_.state_of = nullptr;
  const std::string& first =
      graph_.learning_rate.empty() ? graph_.worker_weight : graph_.learning_rate;
  if (!first.empty()) {
    const auto& inputs = executor().inputs();
    const auto at = std::ranges::find(inputs, first, &runtime::Port::name);
    ONNXGRAD_ASSERT(static_cast<std::size_t>(inputs.end() - at) == controls().size());
    end_data_at(static_cast<std::size_t>(at - inputs.begin()));
  }
  if (outer) outer_.emplace(executor(), graph_.weights.size(), *workers, *outer);
  if (lbfgs == nullptr) return;
  std::int64_t elements = 0;
  for (std::size_t i = 0; i < graph_.weights.size(); ++i) {
    lbfgs_tensors_.push_back(executor().read_state(i).clone());
    elements += lbfgs_tensors_.back().num_elements();
  }
  lbfgs_.emplace(*lbfgs, elements);
  lbfgs_weights_.resize(static_cast<std::size_t>(elements));
}

// One column cannot distinguish classes; if the file leaves their number open, data decides.
void StepRunner::check_class_columns(const std::vector<Dims>& dims) const {
  if (graph_.class_symbol.empty()) return;
  const auto ports = data_ports();
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

Execution& StepRunner::prepare(const std::vector<Dims>& dims) {
  check_class_columns(dims);
  std::vector<Dims> all = dims;
  all.resize(executor().inputs().size());  // the others are scalars
  Execution& plan = prepare_plan(all, graph_.loss);
  std::size_t port = data_ports().size();
  for (const std::byte* control : controls()) bind(plan, port++, control);
  last_plan_ = &plan;
  return plan;
}

// Addresses of the inputs after the data.
std::vector<const std::byte*> StepRunner::controls() const {
  std::vector<const std::byte*> all;
  const auto add = [&](const auto& number) {
    all.push_back(reinterpret_cast<const std::byte*>(&number));
  };
  if (!graph_.learning_rate.empty()) {
    graph_.learning_rate_dtype == DataType::kFloat64 ? add(rate_double_) : add(rate_float_);
  }
  if (!graph_.worker_weight.empty()) {
    add(worker_weight_);
    add(worker_signal_);
  }
  return all;
}

void StepRunner::set_rows(const RowSlice& slice, std::int64_t batch_rows) {
  worker_weight_ = slice.rows > 0 ? 1 : 0;
  opdef::StepCells& cells = executor().cells();
  cells.first_row = slice.first;
  cells.rows = std::max<std::int64_t>(slice.rows, 1);
  cells.batch_rows = batch_rows;
}

// Replaces each wanted state by change(sum over the workers).
template <class IsWanted, class Change>
void StepRunner::exchange_states(IsWanted&& is_wanted, Change&& change) {
  std::vector<std::size_t> numbers;
  std::vector<double> sums;
  for (std::size_t i = 0; i < num_states(); ++i) {
    const runtime::Port& state = executor().state()[i];
    if (!is_wanted(state.name) || !is_floating(state.type.dtype)) continue;
    numbers.push_back(i);
    std::ranges::copy(executor().read_state(i).to_doubles(), std::back_inserter(sums));
  }
  if (numbers.empty()) return;
  workers_->add_up(std::span(sums));
  auto next = sums.begin();
  for (const std::size_t i : numbers) {
    const runtime::Port& state = executor().state()[i];
    const Dims dims = state.type.fixed_dims();
    std::vector<double> values(next, next + dims.num_elements());
    next += dims.num_elements();
    for (double& x : values) x = change(x);
    executor().set_state(i, Tensor::from(values, dims).cast(state.type.dtype));
  }
}

void StepRunner::average_statistics() {
  if (workers_ == nullptr) return;
  finish_outer_step();
  exchange_states(
      [&](const std::string& name) {
        return std::ranges::find(graph_.statistics, name, &WeightInfo::name) !=
               graph_.statistics.end();
      },
      [&](double sum) { return sum / workers_->size(); });
}

void StepRunner::unify_state() {
  if (workers_ == nullptr) return;
  average_statistics();
  exchange_states([](const std::string& name) { return is_accumulated(name); },
                  [&](double sum) { return workers_->rank() == 0 ? sum : 0; });
}

void StepRunner::keep_own_part() {
  if (workers_ == nullptr || workers_->rank() == 0) return;
  for (std::size_t i = 0; i < num_states(); ++i) {
    const runtime::Port& state = executor().state()[i];
    if (!is_accumulated(state.name)) continue;
    executor().set_state(i, Tensor::zeros(state.type.dtype, state.type.fixed_dims()));
  }
}

double StepRunner::run_lbfgs(Execution& plan, std::span<const std::size_t> wanted,
                             std::vector<Tensor>* results) {
  if (lbfgs_before_.empty()) {
    lbfgs_before_ = make_copies();
    snapshot_bytes_ += state_bytes();
  }
  save_to(lbfgs_before_);
  struct Undo {
    explicit Undo(StepRunner& step) : runner(&step) {}
    ~Undo() {
      if (runner == nullptr) return;
      runner->lbfgs_->undo_step();
      for (std::size_t i = 0; i < runner->num_states(); ++i) {
        runner->executor().set_state(i, runner->lbfgs_before_[i]);
      }
    }
    Undo(const Undo&) = delete;
    Undo& operator=(const Undo&) = delete;
    StepRunner* runner;
  };
  Undo undo(*this);
  // The weights, or their gradients, as one row of numbers.
  const auto each_weight = [this](const auto& visit) {
    std::size_t begin = 0;
    for (std::size_t i = 0; i < lbfgs_tensors_.size(); ++i) {
      const auto count = static_cast<std::size_t>(lbfgs_tensors_[i].num_elements());
      visit(i, begin, count);
      begin += count;
    }
  };
  const auto set_weights = [&](std::span<const double> x) {
    each_weight([&](std::size_t i, std::size_t begin, std::size_t count) {
      write_numbers(x.subspan(begin, count), lbfgs_tensors_[i]);
      executor().set_state(i, lbfgs_tensors_[i]);
    });
  };
  const auto loss = [&](std::span<const double> x, std::span<double> gradient) {
    set_weights(x);
    const double value = run_graph(plan);
    each_weight([&](std::size_t i, std::size_t begin, std::size_t count) {
      read_numbers(tensor(plan, graph_.ports.gradients[i]), gradient.subspan(begin, count));
    });
    return value;
  };
  each_weight([&](std::size_t i, std::size_t begin, std::size_t count) {
    read_numbers(executor().read_state(i), std::span(lbfgs_weights_).subspan(begin, count));
  });
  const double first_loss = lbfgs_->step(loss, rate_double_, lbfgs_weights_);
  set_weights(lbfgs_weights_);
  for (const std::size_t output : wanted) results->push_back(tensor(plan, output));
  undo.runner = nullptr;
  lbfgs_->keep_step();
  return first_loss;
}

StepRunner::Results StepRunner::run_with_results(Execution& plan) {
  const StepPorts& ports = graph_.ports;
  std::vector<std::size_t> wanted = ports.extras;
  if (ports.row_losses) wanted.push_back(*ports.row_losses);
  Results results;
  if (lbfgs_) {
    results.loss = run_lbfgs(plan, wanted, &results.outputs);
  } else {
    results.outputs = plan.run_copying(wanted);
    results.loss = scalar(plan, ports.loss);
  }
  if (ports.row_losses) {
    results.row_losses = std::move(results.outputs.back());
    results.outputs.pop_back();
  }
  if (outer_) outer_->count_step();
  set_steps(steps_ + 1);
  return results;
}

std::size_t StepRunner::run_series(Execution& plan, runtime::StepSeries series,
                                   std::span<double> losses) {
  ONNXGRAD_ASSERT(runs_series());
  struct StepCount {
    explicit StepCount(StepRunner& counted) : runner(counted) {}
    ~StepCount() { runner.steps_ = static_cast<std::int64_t>(runner.executor().cells().step); }
    StepCount(const StepCount&) = delete;
    StepCount& operator=(const StepCount&) = delete;
    StepRunner& runner;
  };
  const StepCount count{*this};  // also if a step throws
  series.result = graph_.ports.loss;
  return plan.run_series(series, losses);
}

std::optional<runtime::NonFinite> StepRunner::run_until_non_finite(Execution& plan) {
  auto found = plan.run_until_non_finite();
  set_steps(steps_ + 1);
  return found;
}

std::unique_ptr<StepRunner> StepRunner::unfused() const {
  runtime::ExecutorOptions options = options_;
  options.fuse = false;
  auto other = std::make_unique<StepRunner>(graph_, nullptr, options, workers_);
  other->take_state(*this);
  other->set_steps(steps_);
  other->set_fixed_rows(fixed_rows_);
  return other;
}

std::optional<std::size_t> StepRunner::weights_port() const {
  const auto ports = data_ports();
  const auto port = std::ranges::find(ports, graph_.sample_weight, &runtime::Port::name);
  if (graph_.sample_weight.empty() || port == ports.end()) return std::nullopt;
  return static_cast<std::size_t>(port - ports.begin());
}

std::string StepRunner::plan_summary() const {
  return last_plan_ == nullptr ? "" : last_plan_->to_text();
}

std::optional<double> StepRunner::gradient_norm(const Execution& plan) const {
  if (!graph_.ports.gradient_norm) return std::nullopt;
  return scalar(plan, *graph_.ports.gradient_norm);
}

NamedTensors StepRunner::read_state() const {
  NamedTensors all;
  for (std::size_t i = 0; i < num_states(); ++i) {
    all.push_back({.name = executor().state()[i].name, .tensor = executor().read_state(i)});
  }
  if (lbfgs_) all.insert(all.end(), lbfgs_->state().begin(), lbfgs_->state().end());
  return all;
}

std::optional<std::size_t> StepRunner::find_state(const std::string& name) const {
  const auto& states = executor().state();
  const auto found = std::ranges::find(states, name, &runtime::Port::name);
  if (found == states.end()) return std::nullopt;
  return static_cast<std::size_t>(found - states.begin());
}

void StepRunner::load_state(const NamedTensors& state) {
  NamedTensors places = read_state();
  std::vector<const Tensor*> ordered(places.size(), nullptr);
  for (const NamedTensor& entry : state) {
    const auto found = std::ranges::find(places, entry.name, &NamedTensor::name);
    if (found == places.end()) {
      refuse_state("the state has an unknown '" + entry.name + "'", entry.name);
    }
    const Tensor& present = found->tensor;
    if (entry.tensor.dtype() != present.dtype() || entry.tensor.dims() != present.dims()) {
      refuse_state(fmt::format("'{}' is {}{}, expected {}{}", entry.name,
                               dtype_name(entry.tensor.dtype()), entry.tensor.dims().to_string(),
                               dtype_name(present.dtype()), present.dims().to_string()),
                   entry.name);
    }
    ordered[static_cast<std::size_t>(found - places.begin())] = &entry.tensor;
  }
  for (std::size_t i = 0; i < places.size(); ++i) {
    if (ordered[i] != nullptr) continue;
    refuse_state("the state lacks '" + places[i].name + "'", places[i].name);
  }
  for (std::size_t i = 0; i < num_states(); ++i) executor().set_state(i, *ordered[i]);
  for (std::size_t i = num_states(); i < places.size(); ++i) {
    copy_bytes(*ordered[i], places[i].tensor);
  }
  if (outer_) outer_->begin_at_weights();
}

void StepRunner::take_state(const StepRunner& other) {
  if (executor().shares_state_with(other.executor())) return;
  for (std::size_t i = 0; i < num_states(); ++i) {
    const runtime::Port& state = executor().state()[i];
    const auto known = other.find_state(state.name);
    if (!known) continue;
    const Tensor value = other.executor().read_state(*known);
    if (value.dims() == state.type.fixed_dims()) executor().set_state(i, value);
  }
  if (outer_) outer_->begin_at_weights();
}

void StepRunner::reset_state() {
  for (std::size_t i = 0; i < num_states(); ++i) {
    const ir::Value& first = *graph_.model->state[i].input;
    ONNXGRAD_ASSERT(first.name == executor().state()[i].name);
    executor().set_state(i, first.initializer);
  }
  reset_changes_ = executor().state_changes();
  if (lbfgs_) lbfgs_->clear();
  if (outer_) outer_->restart();
}

std::int64_t StepRunner::state_bytes() const {
  std::int64_t bytes = 0;
  for (const runtime::Port& state : executor().state()) {
    bytes += state.type.fixed_dims().size_bytes(state.type.dtype);
  }
  return bytes;
}

std::vector<Tensor> StepRunner::make_copies() const {
  std::vector<Tensor> copies;
  for (const runtime::Port& state : executor().state()) {
    copies.push_back(Tensor::empty(state.type.dtype, state.type.fixed_dims()));
  }
  if (outer_) {
    for (const Tensor& one : outer_->state()) copies.push_back(one.clone());
  }
  return copies;
}

void StepRunner::save_to(std::vector<Tensor>& copies) const {
  executor().copy_state(std::span(copies).first(num_states()));
  if (outer_) {
    const std::vector<Tensor> state = outer_->state();
    for (std::size_t i = 0; i < state.size(); ++i) copy_bytes(state[i], copies[num_states() + i]);
  }
}

std::vector<Tensor> StepRunner::initial_values() const {
  std::vector<Tensor> values;
  if (outer_) return values;
  for (const ir::StateBinding& state : graph_.model->state) {
    values.push_back(state.input->initializer);
  }
  return values;
}

bool StepRunner::has_initial_values() const {
  if (outer_) return false;
  if (executor().state_changes() == reset_changes_) return true;
  if (steps_ > 0) return false;
  for (std::size_t i = 0; i < num_states(); ++i) {
    const Tensor state = executor().read_state(i);
    const Tensor& initial = graph_.model->state[i].input->initializer;
    if (state.dtype() != initial.dtype() || state.dims() != initial.dims()) return false;
    const auto size = static_cast<std::size_t>(state.size_bytes());
    if (size > 0 && std::memcmp(state.raw(), initial.raw(), size) != 0) return false;
  }
  return true;
}

void StepRunner::restore_from(const std::vector<Tensor>& copies) {
  for (std::size_t i = 0; i < num_states(); ++i) executor().set_state(i, copies[i]);
  if (lbfgs_) lbfgs_->clear();
  if (outer_) outer_->set_state(std::span(copies).subspan(num_states()));
}

std::vector<std::string> StepRunner::unchanged_weights(const std::vector<Tensor>& copies) const {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < graph_.weights.size(); ++i) {
    if (!executor().read_state(i).equals(copies[i])) continue;
    names.push_back(executor().state()[i].name);
  }
  return names;
}

}  // namespace onnxgrad::train
