#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "train/engine.h"
#include "train/optimizers.h"
#include "train/patterns.h"
#include "train/session.h"

// Session::freeze and unfreeze: the step is written and compiled for another choice of weights, and
// the states keep their values by name. A weight that was not trained in all steps counts its
// updates itself from then on, so that its bias correction is right.

namespace onnxgrad::train {
namespace {

std::vector<std::string> names_of(const std::vector<WeightInfo>& weights) {
  std::vector<std::string> names;
  std::ranges::transform(weights, std::back_inserter(names), &WeightInfo::name);
  return names;
}

// What is left of "<slot>/<weight>" without "<slot>/"; slots have no slash in their names.
std::string_view weight_of_slot(std::string_view state) {
  const std::size_t slash = state.find('/');
  return slash == std::string_view::npos ? std::string_view() : state.substr(slash + 1);
}

}  // namespace

std::unordered_map<std::string, Tensor> Session::states_by_name() const {
  std::unordered_map<std::string, Tensor> states;
  for (std::size_t i = 0; i < state_views_.size(); ++i) {
    states.emplace(step_->state()[i].name, state_views_[i]);
  }
  return states;
}

TrainedSet Session::present_set() const {
  return {.trained = names_of(graph_.weights),
          .held = names_of(graph_.held),
          .with_own_count = with_own_count_,
          .statistics = names_of(graph_.statistics)};
}

// The slots of a weight that is held, and its count. Sums over batches that were begun are dropped.
void Session::add_slots_of(const std::string& weight, TrainedSet& set) const {
  const auto states = states_by_name();
  const auto weights = names_of(graph_.state_weights());
  const std::string own_count = std::string(kStepCount) + "/" + weight;
  for (const auto& port : step_->state()) {
    const bool is_slot = weight_of_slot(port.name) == weight &&
                         std::ranges::find(weights, port.name) == weights.end();
    if (!is_slot || port.name.starts_with("accumulated/")) continue;
    set.held_slots.push_back({.name = port.name, .tensor = states.at(port.name).clone()});
  }
  const auto shared = states.find(kStepCount);
  if (shared != states.end() && !states.contains(own_count)) {
    set.held_slots.push_back({.name = own_count, .tensor = shared->second.clone()});
  }
}

void Session::change_trained(TrainedSet set) {
  for (const std::string& weight : set.held) add_slots_of(weight, set);
  const auto old = states_by_name();  // views, which keep the memory
  build(set);
  for (std::size_t i = 0; i < step_->state().size(); ++i) {
    const auto value = old.find(step_->state()[i].name);
    if (value != old.end()) step_->set_state(i, value->second);
  }
}

void Session::freeze(std::span<const std::string> patterns) {
  const TrainedSet present = present_set();
  const auto matched = match_patterns(patterns, present.trained, "trained weight");
  TrainedSet set = present;
  set.trained.clear();
  for (std::size_t i = 0; i < matched.size(); ++i) {
    const std::string& name = present.trained[i];
    (matched[i] ? set.held : set.trained).push_back(name);
    if (matched[i]) set.with_own_count.insert(name);
  }
  if (set.trained.empty()) {
    throw ModelError({.what = "freeze: no weight is left to train",
                      .detail = "Trained are " + base::quote_list(present.trained) + ".",
                      .hint = "Keep one of them trained: name fewer weights, or a narrower "
                              "pattern."});
  }
  change_trained(std::move(set));
}

void Session::unfreeze(std::span<const std::string> patterns) {
  TrainedSet set = present_set();
  std::vector<std::string> others;
  for (const Weight& weight : find_weights(*source_.working, builtin_engine().ops)) {
    const std::string& name = weight.value->name;
    const bool is_trained = std::ranges::find(set.trained, name) != set.trained.end();
    if (!is_trained && is_floating(weight.value->initializer.dtype())) others.push_back(name);
  }
  const auto matched = match_patterns(patterns, others, "weight that is not trained");
  for (std::size_t i = 0; i < others.size(); ++i) {
    if (!matched[i]) continue;
    set.trained.push_back(others[i]);
    std::erase(set.held, others[i]);
    set.with_own_count.insert(others[i]);
  }
  change_trained(std::move(set));
}

void Session::guard_updates() {
  if (options_.skip_non_finite) return;
  options_.skip_non_finite = true;
  try {
    change_trained(present_set());
  } catch (...) {
    options_.skip_non_finite = false;
    throw;
  }
}

void Session::log_gradient_norm(bool wanted) {
  if (logs_gradient_norm_ == wanted) return;
  logs_gradient_norm_ = wanted;
  try {
    change_trained(present_set());
  } catch (...) {
    logs_gradient_norm_ = !wanted;
    throw;
  }
}

}  // namespace onnxgrad::train
