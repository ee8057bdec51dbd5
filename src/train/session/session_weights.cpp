#include "train/session/session_weights.h"

#include <algorithm>
#include <string>
#include <variant>

#include "onnxgrad/option_error.h"
#include "train/graphs/loss_parts.h"
#include "train/optimizers/averages.h"
#include "train/session/session.h"

// The weights of a session, trained and averaged.

namespace onnxgrad::train {
namespace {

[[noreturn]] void refuse_average() {
  throw OptionError(
      {.what = "there is no average of the weights", .hint = "Give average='ema' to the session."});
}

bool is_named(const NamedTensors& tensors, const std::string& name) {
  return std::ranges::find(tensors, name, &NamedTensor::name) != tensors.end();
}

}  // namespace

bool evaluates_average(const UpdateOptions& options) {
  if (!options.average) return true;  // that of the optimizer, if it has one
  return std::visit([](const auto& spec) { return spec.evaluates; }, *options.average);
}

void check_average(const UpdateOptions& options, const Optimizer& optimizer) {
  const auto is_schedule_free = [](const Optimizer& one) {
    return std::holds_alternative<ScheduleFreeAdamW>(one);
  };
  const bool has_own =
      is_schedule_free(optimizer) || std::ranges::any_of(options.groups, [&](const auto& group) {
        return group.optimizer && is_schedule_free(*group.optimizer);
      });
  if (!options.average || !has_own) return;
  throw OptionError({.what = "average= and schedule-free AdamW, which has an average of its own",
                     .hint = "Leave average= out."});
}

void Session::use_average(bool on) {
  if (is_fitting_) {
    throw Error({.what = "the weights of evaluations cannot be changed while fit() runs",
                 .hint = "Change them between two fits."});
  }
  if (on && !has_average()) {
    refuse_average();
  }
  if (step_->reads_averages() == on) return;
  step_->read_averages(on);
  evaluation_.reset();
  predictions_.clear();
}

NamedTensors Session::weights(WeightKind kind) const {
  if (kind == WeightKind::kAverage && !has_average()) {
    refuse_average();
  }
  NamedTensors result;
  const bool averages =
      kind == WeightKind::kAverage || (kind == WeightKind::kEvaluated && step_->reads_averages());
  const NamedTensors own = own_weights(loss_);
  for (const WeightInfo& weight : graph().state_weights()) {
    if (is_named(own, weight.name)) continue;
    const auto average = step_->state().find(average_of(weight.name));
    const Tensor value =
        averages && average ? step_->executor().read_state(*average) : weight_value(weight.name);
    result.push_back({.name = weight.name, .tensor = value.clone()});
  }
  return result;
}

NamedTensors Session::weight_views() const {
  NamedTensors result;
  const NamedTensors own = own_weights(loss_);
  for (const WeightInfo& weight : graph().state_weights()) {
    if (is_named(own, weight.name)) continue;
    result.push_back({.name = weight.name, .tensor = weight_value(weight.name)});
  }
  return result;
}

}  // namespace onnxgrad::train
