#include "train/session/trained_set.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "train/optimizers/averages.h"
#include "train/optimizers/optimizers.h"
#include "train/tools/engine.h"
#include "train/tools/patterns.h"
#include "train/weights/layer_levels.h"

namespace onnxgrad::train {
namespace {

std::vector<std::string> names_of(const std::vector<WeightInfo>& weights) {
  std::vector<std::string> names;
  std::ranges::transform(weights, std::back_inserter(names), &WeightInfo::name);
  return names;
}

void add_slots_of(const std::string& weight, const StepRunner& step, TrainedSet& set) {
  const auto weights = names_of(step.graph().state_weights());
  for (const NamedTensor& state : step.state().read()) {
    const bool is_slot = weight_of_slot(state.name) == weight &&
                         std::ranges::find(weights, state.name) == weights.end();
    if (!is_slot || state.name.starts_with("accumulated/")) continue;
    set.held_slots.push_back({.name = state.name, .tensor = state.tensor.clone()});
  }
  const std::string own_count = std::string(kStepCount) + "/" + weight;
  const auto shared = step.state().find(kStepCount);
  if (shared && !step.state().find(own_count)) {
    set.held_slots.push_back(
        {.name = own_count, .tensor = step.executor().read_state(*shared).clone()});
  }
}

}  // namespace

TrainedSet trained_set(const StepGraph& step) {
  return {.trained = names_of(step.weights),
          .held = names_of(step.held),
          .with_own_count = step.with_own_count,
          .statistics = names_of(step.statistics)};
}

void freeze(TrainedSet& set, std::span<const std::string> patterns, const ir::Model& working) {
  const auto before = std::exchange(set.trained, {});
  std::vector<WeightNames> names;
  for (const std::string& name : before) {
    names.push_back(names_for_patterns(*working.graph->find(name)));
  }
  const auto expanded = expand_layer_groups(patterns, find_weights(working, builtin_ops()));
  // Layers of a group that are held already stay so.
  std::vector<std::string> wanted;
  for (const std::string& pattern : expanded) {
    const bool is_given = std::ranges::find(patterns, pattern) != patterns.end();
    if (is_given || std::ranges::find(before, pattern) != before.end()) wanted.push_back(pattern);
  }
  const auto matched = match_patterns(wanted, names, "trained weight");
  for (std::size_t i = 0; i < matched.size(); ++i) {
    (matched[i] ? set.held : set.trained).push_back(before[i]);
    if (matched[i]) set.with_own_count.insert(before[i]);
  }
  if (!set.trained.empty()) return;
  throw ModelError({.what = "freeze: no weight is left to train",
                    .detail = "Trained: " + base::quote_list(before) + ".",
                    .hint = "Keep one of them trained: name fewer weights, or a narrower "
                            "pattern."});
}

void unfreeze(TrainedSet& set, std::span<const std::string> patterns, const ir::Model& working) {
  std::vector<Weight> weights = find_weights(working, builtin_ops());
  const auto has = [](const std::vector<std::string>& names, const std::string& name) {
    return std::ranges::find(names, name) != names.end();
  };
  std::vector<std::string> expanded = expand_layer_groups(patterns, weights);
  std::erase_if(expanded, [&](const std::string& name) {  // layers of a group that are trained
    return has(set.trained, name) && std::ranges::find(patterns, name) == patterns.end();
  });
  if (expanded.empty()) return;
  patterns = expanded;
  std::erase_if(weights, [](const Weight& weight) {
    return !is_floating(weight.value->initializer.dtype());
  });
  std::erase_if(weights, [&](const Weight& weight) {  // nothing to do for one of these by its name
    const std::string& name = weight.value->name;
    return has(set.trained, name) && std::ranges::find(patterns, name) != patterns.end();
  });
  const auto matched =
      match_weights(patterns, weights, "weight that is not trained", [&](const Weight& weight) {
        const std::string& name = weight.value->name;
        return weight.trainable || weight.is_under_adapter || has(set.held, name) ||
               has(set.trained, name);
      });
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const std::string& name = weights[i].value->name;
    if (!matched[i] || has(set.trained, name)) continue;
    set.trained.push_back(name);
    std::erase(set.held, name);
    set.with_own_count.insert(name);
  }
}

void hold_slots(TrainedSet& set, const StepRunner& step) {
  for (const std::string& weight : set.held) {
    add_slots_of(weight, step, set);
    const auto owners = step.graph().owners.find(weight);
    if (owners != step.graph().owners.end()) set.held_owners.insert(*owners);
  }
  for (const std::string& statistic : set.statistics) {  // no longer updated, perhaps
    const std::string name = average_of(statistic);
    const auto known = step.state().find(name);
    if (!known) continue;
    set.held_slots.push_back({.name = name, .tensor = step.executor().read_state(*known).clone()});
  }
}

}  // namespace onnxgrad::train
