#include "onnxgrad/schedules.h"

#include <array>

#include "base/check.h"
#include "onnxgrad/option_error.h"
#include "train/schedules/schedules.h"

namespace onnxgrad {
namespace {

struct NamedSchedule {
  std::string_view name;
  Schedule schedule;
};

const std::array<NamedSchedule, 14>& named_schedules() {
  static const std::array<NamedSchedule, 14> schedules{{
      {.name = "constant", .schedule = ConstantRate{}},
      {.name = "cosine", .schedule = CosineDecay{}},
      {.name = "cosine_restarts", .schedule = CosineRestarts{}},
      {.name = "exponential", .schedule = ExponentialDecay{}},
      {.name = "inverse_scaling", .schedule = InverseScaling{}},
      {.name = "linear", .schedule = LinearRate{}},
      {.name = "multi_step", .schedule = MultiStepDecay{.milestones = {30, 60, 90}}},
      {.name = "one_cycle", .schedule = OneCycle{}},
      {.name = "optimal", .schedule = OptimalRate{}},
      {.name = "plateau", .schedule = Plateau{}},
      {.name = "polynomial", .schedule = PolynomialDecay{}},
      {.name = "step", .schedule = StepDecay{}},
      {.name = "warmup_cosine", .schedule = with_warm_up(0.1, CosineDecay{})},
      {.name = "warmup_linear", .schedule = with_warm_up(0.1, LinearRate{})},
  }};
  return schedules;
}

}  // namespace

Schedule with_warm_up(double length, Schedule then, double start_factor) {
  return ScheduleSequence{
      .parts = {LinearRate{.length = length, .start_factor = start_factor, .end_factor = 1},
                std::move(then)}};
}

std::vector<double> schedule_rates(const Schedule& schedule, double rate, std::int64_t epochs,
                                   std::int64_t steps_per_epoch,
                                   const std::vector<double>& losses) {
  train::ScheduleRun run(schedule, rate, epochs * steps_per_epoch, epochs);
  std::vector<double> rates;
  for (std::int64_t epoch = 0; epoch < epochs; ++epoch) {
    for (std::int64_t step = 0; step < steps_per_epoch; ++step) {
      rates.push_back(run.rate(epoch * steps_per_epoch + step));
    }
    if (epoch < static_cast<std::int64_t>(losses.size())) {
      run.end_epoch(losses[static_cast<std::size_t>(epoch)], (epoch + 1) * steps_per_epoch);
    }
  }
  return rates;
}

Schedule schedule_from_name(std::string_view name) {
  if (name == "invscaling") return InverseScaling{};
  for (const NamedSchedule& known : named_schedules()) {
    if (known.name == name) return known.schedule;
  }
  const auto names = schedule_names();
  throw OptionError({.what = "there is no schedule '" + std::string(name) + "'",
                     .detail = "Known: " + base::quote_list(names, names.size()) + ".",
                     .hint = base::nearest_or(name, names)});
}

std::vector<std::string> schedule_names() {
  std::vector<std::string> names;
  for (const NamedSchedule& known : named_schedules()) names.emplace_back(known.name);
  return names;
}

std::string to_string(const Schedule& schedule) { return train::schedule_text(schedule); }

}  // namespace onnxgrad
