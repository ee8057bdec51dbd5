#include "train/session/state_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <span>

#include "base/check.h"
#include "train/optimizers/averages.h"
#include "train/optimizers/optimizers.h"

namespace onnxgrad::train {
namespace {

void copy_bytes(const Tensor& from, Tensor& to) {
  std::memcpy(to.mutable_raw(), from.raw(), static_cast<std::size_t>(to.size_bytes()));
}

// Whether a state is a running statistic, or its average.
bool is_statistic(const StepGraph& graph, const std::string& state) {
  return std::ranges::any_of(graph.statistics, [&](const WeightInfo& statistic) {
    return state == statistic.name || state == average_of(statistic.name);
  });
}

[[noreturn]] void refuse_state(const std::string& what, const std::string& name) {
  throw CheckpointError({.what = what,
                         .where = {.value = name},
                         .hint = "Load a state that was saved from the same model, loss and "
                                 "optimizer."});
}

}  // namespace

StateStore::StateStore(const Parts& parts, bool is_initial,
                       const std::optional<OuterStep::Options>& outer)
    : executor_(parts.executor),
      graph_(parts.graph),
      workers_(parts.workers),
      solver_(parts.solver) {
  if (is_initial) reset_changes_ = executor_.state_changes();
  if (outer) outer_.emplace(executor_, graph_.weights.size(), workers_, *outer);
}

NamedTensors StateStore::read() const {
  NamedTensors all;
  for (std::size_t i = 0; i < num_states(); ++i) {
    all.push_back({.name = executor_.state()[i].name, .tensor = executor_.read_state(i)});
  }
  if (solver_ != nullptr) {
    all.insert(all.end(), solver_->state().begin(), solver_->state().end());
  }
  return all;
}

std::optional<std::size_t> StateStore::find(const std::string& name) const {
  const auto& states = executor_.state();
  const auto found = std::ranges::find(states, name, &runtime::Port::name);
  if (found == states.end()) return std::nullopt;
  return static_cast<std::size_t>(found - states.begin());
}

void StateStore::load(const NamedTensors& state) {
  NamedTensors places;  // of states only types and shapes
  for (const runtime::Port& state : executor_.state()) {
    places.push_back({.name = state.name,
                      .tensor = Tensor::view(state.type.dtype, state.type.fixed_dims(),
                                             /*data=*/nullptr, /*owner=*/nullptr)});
  }
  if (solver_ != nullptr) {
    places.insert(places.end(), solver_->state().begin(), solver_->state().end());
  }
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
  for (std::size_t i = 0; i < num_states(); ++i) executor_.set_state(i, *ordered[i]);
  for (std::size_t i = num_states(); i < places.size(); ++i) {
    copy_bytes(*ordered[i], places[i].tensor);
  }
  if (outer_) outer_->begin_at_weights();
}

void StateStore::take(const StateStore& other) {
  if (executor_.shares_state_with(other.executor_)) return;
  for (std::size_t i = 0; i < num_states(); ++i) {
    const runtime::Port& state = executor_.state()[i];
    const auto known = other.find(state.name);
    if (!known) continue;
    const Tensor value = other.executor_.read_state(*known);
    if (value.dims() == state.type.fixed_dims()) executor_.set_state(i, value);
  }
  if (outer_) outer_->begin_at_weights();
}

void StateStore::reset() {
  for (std::size_t i = 0; i < num_states(); ++i) {
    const ir::Value& first = *graph_.model->state[i].input;
    ONNXGRAD_ASSERT(first.name == executor_.state()[i].name);
    executor_.set_state(i, first.initializer);
  }
  reset_changes_ = executor_.state_changes();
  if (solver_ != nullptr) solver_->clear();
  if (outer_) outer_->restart();
}

std::int64_t StateStore::bytes() const {
  std::int64_t bytes = 0;
  for (const runtime::Port& state : executor_.state()) {
    bytes += state.type.fixed_dims().size_bytes(state.type.dtype);
  }
  return bytes;
}

std::vector<Tensor> StateStore::make_copies() const {
  std::vector<Tensor> copies;
  for (const runtime::Port& state : executor_.state()) {
    copies.push_back(Tensor::empty(state.type.dtype, state.type.fixed_dims()));
  }
  if (outer_) {
    for (const Tensor& one : outer_->state()) copies.push_back(one.clone());
  }
  return copies;
}

void StateStore::save_to(std::vector<Tensor>& copies) const {
  executor_.copy_state(std::span(copies).first(num_states()));
  if (outer_) {
    const std::vector<Tensor> state = outer_->state();
    for (std::size_t i = 0; i < state.size(); ++i) copy_bytes(state[i], copies[num_states() + i]);
  }
}

std::vector<Tensor> StateStore::initial_values() const {
  std::vector<Tensor> values;
  if (outer_) return values;
  for (const ir::StateBinding& state : graph_.model->state) {
    values.push_back(state.input->initializer);
  }
  return values;
}

bool StateStore::has_initial_values() const {
  if (outer_) return false;
  if (executor_.state_changes() == reset_changes_) return true;
  if (executor_.cells().step > 0) return false;
  for (std::size_t i = 0; i < num_states(); ++i) {
    const Tensor& initial = graph_.model->state[i].input->initializer;
    if (!executor_.read_state(i).equals(initial)) return false;
  }
  return true;
}

void StateStore::restore_from(const std::vector<Tensor>& copies) {
  for (std::size_t i = 0; i < num_states(); ++i) executor_.set_state(i, copies[i]);
  if (solver_ != nullptr) solver_->clear();
  if (outer_) outer_->set_state(std::span(copies).subspan(num_states()));
}

std::vector<std::string> StateStore::unchanged_weights(const std::vector<Tensor>& copies) const {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < graph_.weights.size(); ++i) {
    if (!executor_.read_state(i).equals(copies[i])) continue;
    names.push_back(executor_.state()[i].name);
  }
  return names;
}

// Replaces each wanted state by change(sum over the workers). One worker has them already.
template <class IsWanted, class Change>
void StateStore::exchange_states(IsWanted&& is_wanted, Change&& change) {
  if (!workers_.has_others()) return;
  std::vector<std::size_t> numbers;
  std::vector<double> sums;
  for (std::size_t i = 0; i < num_states(); ++i) {
    const runtime::Port& state = executor_.state()[i];
    if (!is_wanted(state.name) || !is_floating(state.type.dtype)) continue;
    numbers.push_back(i);
    std::ranges::copy(executor_.read_state(i).to_doubles(), std::back_inserter(sums));
  }
  if (numbers.empty()) return;
  workers_.add_up(std::span(sums));
  auto next = sums.begin();
  for (const std::size_t i : numbers) {
    const runtime::Port& state = executor_.state()[i];
    const Dims dims = state.type.fixed_dims();
    std::vector<double> values(next, next + dims.num_elements());
    next += dims.num_elements();
    for (double& x : values) x = change(x);
    executor_.set_state(i, Tensor::from(values, dims).cast(state.type.dtype));
  }
}

void StateStore::average_statistics() {
  if (outer_) outer_->finish();
  exchange_states(
      [&](const std::string& name) {
        if (is_average(name) && outer_) return true;  // of weights that workers updated alone
        return is_statistic(graph_, name);
      },
      [&](double sum) { return sum / workers_.size(); });
}

void StateStore::set_epoch(std::int64_t epoch) {
  if (const auto place = find(kAverageEpoch)) executor_.set_state(*place, Tensor::scalar(epoch));
}

bool StateStore::has_averages() const {
  return std::ranges::any_of(executor_.state(),
                             [](const runtime::Port& state) { return is_average(state.name); });
}

void StateStore::unify() {
  average_statistics();
  exchange_states([](const std::string& name) { return is_accumulated(name); },
                  [&](double sum) { return workers_.rank() == 0 ? sum : 0; });
}

void StateStore::keep_own_part() {
  if (workers_.rank() == 0) return;
  for (std::size_t i = 0; i < num_states(); ++i) {
    const runtime::Port& state = executor_.state()[i];
    if (!is_accumulated(state.name)) continue;
    executor_.set_state(i, Tensor::zeros(state.type.dtype, state.type.fixed_dims()));
  }
}

}  // namespace onnxgrad::train
