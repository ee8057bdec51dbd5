#include "train/optimizers/optimizers.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>

#include "base/check.h"
#include "onnxgrad/option_error.h"
#include "train/optimizers/step_writer.h"
#include "train/optimizers/table.h"
#include "train/tools/patterns.h"

namespace onnxgrad::train {
namespace {

using ir::GraphBuilder;
using ir::StateBinding;
using ir::Value;

constexpr std::string_view kAccumulated = "accumulated/";

// The decay of the formula; 0 for those without one.
double decay_of(const Optimizer& optimizer) {
  return std::get<double>(optimizer_rows().get(optimizer, "weight_decay", 0.0));
}

/// A weight in an update, and its optimizer.
struct Step {
  WeightStep step = {};
  const Optimizer* optimizer = nullptr;
};

// The weights with the options of their groups.
std::vector<Step> make_steps(const Optimizer& optimizer, const UpdateInputs& inputs,
                             const UpdateOptions& options) {
  std::vector<Step> steps;
  std::vector<WeightNames> names;
  for (std::size_t i = 0; i < inputs.weights.size(); ++i) {
    const std::string& name = inputs.weights[i]->name;
    const bool own = inputs.with_own_count.contains(name);
    names.push_back(names_for_patterns(*inputs.weights[i]));
    steps.push_back({.step = {.name = name,
                              .weight = inputs.weights[i],
                              .gradient = inputs.gradients[i],
                              .weight_decay = decay_of(optimizer),
                              .count = own ? kStepCount + ("/" + name) : kStepCount},
                     .optimizer = &optimizer});
  }
  const std::size_t count = names.size();
  std::vector<bool> taken(count, false);
  for (const std::string& name : inputs.with_own_count) {  // a group may be of held weights alone
    const Value* held = count == 0 ? nullptr : inputs.weights.front()->graph->find(name);
    if (held != nullptr) names.push_back(names_for_patterns(*held));
  }
  for (const ParameterGroup& group : options.groups) {
    const auto matched = match_patterns(group.patterns, names, "trained weight");
    for (std::size_t i = 0; i < count; ++i) {
      if (!matched[i] || taken[i]) continue;
      taken[i] = true;
      WeightStep& step = steps[i].step;
      step.rate_factor = group.rate_factor;
      if (group.optimizer) {
        steps[i].optimizer = &*group.optimizer;
        step.weight_decay = decay_of(*group.optimizer);
      }
      if (group.weight_decay) step.weight_decay = *group.weight_decay;
    }
  }
  for (auto& [step, described] : steps) {
    const auto scale = inputs.scales.find(step.name);
    if (scale == inputs.scales.end()) continue;
    step.weight_decay = 0;
    if (!std::holds_alternative<Sgd>(*described)) step.rate_factor *= scale->second;
  }
  return steps;
}

/// Sums of gradients over batches, as states.
class Accumulator {
 public:
  Accumulator(GraphBuilder& g, std::int64_t batches) {
    done_ = add_state(g, kAccumulatedBatches, Tensor::scalar(std::int64_t{0}));
    Value* counted = g.add(done_, g.int_scalar(1));
    is_update_ = g.equal(counted, g.int_scalar(batches));
    next_done_ = g.where(is_update_, g.int_scalar(0), counted);
  }

  /// True in every step that updates.
  Value* is_update() { return is_update_; }

  /// Replaces the gradient of each weight by that of all rows so far.
  void accumulate(StepWriter& writer, std::vector<Step>& steps, Value* denominator) {
    GraphBuilder& g = writer.g();
    writer.bind_always(done_, next_done_);
    Value* divisor = nullptr;
    if (denominator != nullptr) {
      // Half precision cannot represent large counts.
      if (denominator->dtype() != DataType::kFloat64) {
        denominator = g.cast(denominator, DataType::kFloat32);
      }
      Value* sum = add_to_sum(writer, "accumulated_rows",
                              Tensor::zeros(denominator->dtype(), Dims{}), denominator);
      // If all rows have weight 0 nothing changes.
      Value* is_positive = g.greater(sum, g.scalar_like(sum, 0));
      divisor = g.where(is_positive, sum, g.scalar_like(sum, 1));
    }
    for (auto& [step, optimizer] : steps) {
      Value* gradient = step.gradient;
      if (denominator != nullptr) gradient = g.mul(gradient, writer.scalar(denominator, gradient));
      Value* sum =
          add_to_sum(writer, std::string(kAccumulated) + step.weight->name,
                     writer.zeros(step.weight->dtype(), step.weight->initializer.dims()), gradient);
      step.gradient = divisor == nullptr ? sum : g.div(sum, writer.scalar(divisor, sum));
    }
  }

 private:
  static Value* add_state(GraphBuilder& g, const std::string& name, Tensor first) {
    return StepWriter(g, nullptr).state(name, std::move(first));
  }

  // State + x; the state starts over after an update.
  Value* add_to_sum(StepWriter& writer, const std::string& name, Tensor zeros, Value* x) {
    GraphBuilder& g = writer.g();
    Value* old = writer.state(name, std::move(zeros));
    Value* sum = g.add(old, x);
    writer.bind_always(old, g.where(is_update_, g.scalar_like(sum, 0), sum));
    return sum;
  }

  Value* done_ = nullptr;
  Value* next_done_ = nullptr;
  Value* is_update_ = nullptr;
};

// Over the workers, once for all accumulated batches.
void add_up(UpdateOfWorkers& workers, Value* when, std::vector<Step>& steps) {
  std::vector<Value*> gradients;
  std::vector<Value*> weights;
  for (const Step& one : steps) {
    gradients.push_back(one.step.gradient);
    weights.push_back(one.step.weight);
  }
  const auto sums = workers.add_up(gradients, weights, when);
  for (std::size_t i = 0; i < steps.size(); ++i) steps[i].step.gradient = sums[i];
}

Value* norm_of(StepWriter& writer, const UpdateOfWorkers& workers, const std::vector<Step>& steps) {
  std::vector<Value*> gradients;
  std::vector<Value*> weights;
  for (const Step& one : steps) {
    gradients.push_back(one.step.gradient);
    weights.push_back(one.step.weight);
  }
  return write_global_norm(writer.g(), gradients, weights, workers);
}

void clip(StepWriter& writer, const UpdateOptions& options, const UpdateOfWorkers& workers,
          std::vector<Step>& steps) {
  GraphBuilder& g = writer.g();
  if (options.clip_value) {
    for (auto& [step, optimizer] : steps) {
      if (step.gradient == nullptr) continue;
      step.gradient =
          g.op("Clip", {step.gradient, g.scalar_like(step.gradient, -*options.clip_value),
                        g.scalar_like(step.gradient, *options.clip_value)});
    }
  }
  if (!options.clip_norm) return;
  Value* norm = norm_of(writer, workers, steps);
  Value* ratio =
      g.div(g.scalar_like(norm, *options.clip_norm), g.add(norm, g.scalar_like(norm, 1e-6)));
  Value* factor = g.op("Min", {ratio, g.scalar_like(ratio, 1)});
  for (auto& [step, optimizer] : steps) {
    if (step.gradient == nullptr) continue;
    step.gradient = g.mul(step.gradient, writer.scalar(factor, step.gradient));
  }
}

// The rate in the type in which it is fed, as in a session that is given the rate.
void write_schedule(StepWriter& writer, const UpdateInputs& inputs) {
  GraphBuilder& g = writer.g();
  Value* first = g.cast(inputs.learning_rate, DataType::kFloat64);
  Value* update = writer.steps_before({.count = kStepCount});
  Value* rate = inputs.schedule->write(g, first, update, inputs.plateau_factors);
  writer.set_learning_rate(g.cast(rate, inputs.learning_rate->dtype()));
}

// Scales are positive.
Value* bounded_scale(GraphBuilder& g, Value* updated, Value* old) {
  Value* least = g.op("Max", {updated, g.scale(old, 0.5)});
  return g.op("Min", {least, g.scale(old, 2)});
}

std::vector<StateBinding> hold(std::span<Value* const> weights) {
  std::vector<StateBinding> bindings;
  for (Value* weight : weights) bindings.push_back({.input = weight, .output = weight});
  return bindings;
}

}  // namespace

bool is_accumulated(std::string_view state) { return state.starts_with(kAccumulated); }

std::string_view weight_of_slot(std::string_view state) {
  const std::size_t slash = state.find('/');
  return slash == std::string_view::npos ? std::string_view() : state.substr(slash + 1);
}

std::vector<bool> updates_by_element(const Optimizer& optimizer, const UpdateOptions& options,
                                     std::span<Value* const> weights) {
  const std::vector<Value*> gradients(weights.size(), nullptr);
  std::vector<bool> result;
  for (const Step& one :
       make_steps(optimizer, {.weights = weights, .gradients = gradients}, options)) {
    result.push_back(
        optimizer_rows().updates_by_element(*one.optimizer, one.step.weight->initializer.dims()));
  }
  return result;
}

Value* write_global_norm(GraphBuilder& g, std::span<Value* const> gradients,
                         std::span<Value* const> weights, const UpdateOfWorkers& workers) {
  const bool wide =
      std::ranges::all_of(weights.empty() ? gradients : weights,
                          [](const Value* value) { return value->dtype() == DataType::kFloat64; });
  Value* total = nullptr;
  for (Value* gradient : gradients) {
    if (gradient == nullptr) continue;
    Value* x = g.cast(gradient, wide ? DataType::kFloat64 : DataType::kFloat32);
    Value* squares = g.reduce_sum(g.mul(x, x), {}, false);
    total = total == nullptr ? squares : g.add(total, squares);
  }
  if (total == nullptr) {  // another worker owns all
    total = g.constant(wide ? Tensor::scalar(0.0) : Tensor::scalar(0.0F));
  }
  return g.sqrt(workers.sum_over_owners(total));
}

std::vector<StateBinding> write_optimizer(GraphBuilder& g, const Optimizer& optimizer,
                                          const UpdateInputs& inputs,
                                          const UpdateOptions& options) {
  ONNXGRAD_ASSERT(inputs.weights.size() == inputs.gradients.size());
  if (is_host_loop(optimizer)) {
    if (!options.groups.empty() || options.clip_value || options.clip_norm ||
        options.accumulate != 1 || options.average || options.sharpness_aware) {
      throw ModelError(
          {.what = "optimizer: L-BFGS takes no groups, no clipping, no accumulation, no average "
                   "and no sharpness-aware gradient",
           .hint = "Omit these options, or use another optimizer."});
    }
    return hold(inputs.weights);
  }
  UpdateOfWorkers alone;
  UpdateOfWorkers& workers = inputs.workers == nullptr ? alone : *inputs.workers;
  std::vector<Step> steps = make_steps(optimizer, inputs, options);
  std::optional<Accumulator> accumulator;
  if (options.accumulate > 1) accumulator.emplace(g, options.accumulate);
  StepWriter writer(g, inputs.learning_rate, accumulator ? accumulator->is_update() : nullptr);
  if (inputs.schedule != nullptr) write_schedule(writer, inputs);
  if (accumulator) {
    accumulator->accumulate(writer, steps, inputs.denominator);
    add_up(workers, accumulator->is_update(), steps);
  }
  if (inputs.large_norm != nullptr) {
    if (!accumulator) {
      throw OptionError({.what = "noise_scale compares gradients of single and of accumulated "
                                 "batches, but accumulate is 1",
                         .hint = "Give accumulate=2 or more."});
    }
    Value* norm = norm_of(writer, workers, steps);
    *inputs.large_norm = g.where(accumulator->is_update(), norm, g.scalar_like(norm, -1));
  }
  clip(writer, options, workers, steps);
  std::map<const Optimizer*, std::unique_ptr<UpdateRule>> rules;
  std::vector<Value*> updates;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    auto& [step, described] = steps[i];
    step.weight = workers.own_part(step.weight, i);
    if (step.weight == nullptr) {
      updates.push_back(nullptr);
      continue;
    }
    std::unique_ptr<UpdateRule>& rule = rules[described];
    if (rule == nullptr) rule = optimizer_rows().make_rule(writer, *described);
    Value* updated = rule->update(step);
    if (inputs.scales.contains(step.name)) updated = bounded_scale(g, updated, step.weight);
    updates.push_back(writer.where_updating(updated, step.weight));
  }
  updates =
      workers.gather(inputs.weights, updates, accumulator ? accumulator->is_update() : nullptr);
  std::vector<StateBinding> bindings;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    bindings.push_back({.input = inputs.weights[i], .output = updates[i]});
  }
  const auto slots = writer.take_slots();
  bindings.insert(bindings.end(), slots.begin(), slots.end());
  return bindings;
}

}  // namespace onnxgrad::train
