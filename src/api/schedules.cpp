#include "onnxgrad/schedules.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>

#include "base/check.h"
#include "onnxgrad/option_error.h"
#include "train/schedules.h"

namespace onnxgrad {
namespace {

struct NamedSchedule {
  std::string_view name;
  Schedule schedule;
};

const std::array<NamedSchedule, 13>& named_schedules() {
  static const std::array<NamedSchedule, 13> schedules{{
      {.name = "constant", .schedule = ConstantRate{}},
      {.name = "cosine", .schedule = CosineDecay{}},
      {.name = "cosine_restarts", .schedule = CosineRestarts{}},
      {.name = "exponential", .schedule = ExponentialDecay{}},
      {.name = "inverse_scaling", .schedule = InverseScaling{}},
      {.name = "linear", .schedule = LinearRate{}},
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

const char* name_of(ScheduleUnit unit) { return unit == ScheduleUnit::kEpoch ? "epoch" : "step"; }

std::string list(const std::vector<Schedule>& parts) {
  std::vector<std::string> texts;
  for (const Schedule& part : parts) texts.push_back(to_string(part));
  return fmt::format("[{}]", fmt::join(texts, ", "));
}

struct Describe {
  std::string operator()(const ConstantRate& s) const {
    return fmt::format("ConstantRate(factor={:g})", s.factor);
  }
  std::string operator()(const InverseScaling& s) const {
    return fmt::format("InverseScaling(power={:g}, unit={})", s.power, name_of(s.unit));
  }
  std::string operator()(const OptimalRate& s) const {
    return fmt::format("OptimalRate(alpha={:g}, first_is_rate={}, unit={})", s.alpha,
                       s.first_is_rate, name_of(s.unit));
  }
  std::string operator()(const StepDecay& s) const {
    return fmt::format("StepDecay(every={}, factor={:g}, unit={})", s.every, s.factor,
                       name_of(s.unit));
  }
  std::string operator()(const MultiStepDecay& s) const {
    return fmt::format("MultiStepDecay(milestones=[{}], factor={:g}, unit={})",
                       fmt::join(s.milestones, ", "), s.factor, name_of(s.unit));
  }
  std::string operator()(const ExponentialDecay& s) const {
    return fmt::format("ExponentialDecay(factor={:g}, unit={})", s.factor, name_of(s.unit));
  }
  std::string operator()(const CosineDecay& s) const {
    return fmt::format("CosineDecay(length={:g}, minimum_factor={:g}, unit={})", s.length,
                       s.minimum_factor, name_of(s.unit));
  }
  std::string operator()(const CosineRestarts& s) const {
    return fmt::format(
        "CosineRestarts(length={:g}, length_factor={:g}, restart_factor={:g}, "
        "minimum_factor={:g}, unit={})",
        s.length, s.length_factor, s.restart_factor, s.minimum_factor, name_of(s.unit));
  }
  std::string operator()(const OneCycle& s) const {
    return fmt::format(
        "OneCycle(length={:g}, rise={:g}, start_divisor={:g}, end_divisor={:g}, linear={})",
        s.length, s.rise, s.start_divisor, s.end_divisor, s.linear);
  }
  std::string operator()(const LinearRate& s) const {
    return fmt::format("LinearRate(length={:g}, start_factor={:g}, end_factor={:g}, unit={})",
                       s.length, s.start_factor, s.end_factor, name_of(s.unit));
  }
  std::string operator()(const PolynomialDecay& s) const {
    return fmt::format("PolynomialDecay(length={:g}, power={:g}, end_factor={:g}, unit={})",
                       s.length, s.power, s.end_factor, name_of(s.unit));
  }
  std::string operator()(const Plateau& s) const {
    return fmt::format(
        "Plateau(factor={:g}, patience={}, threshold={:g}, cooldown={}, minimum_factor={:g})",
        s.factor, s.patience, s.threshold, s.cooldown, s.minimum_factor);
  }
  std::string operator()(const ScheduleSequence& s) const {
    return "ScheduleSequence(" + list(s.parts) + ")";
  }
  std::string operator()(const ScheduleProduct& s) const {
    return "ScheduleProduct(" + list(s.parts) + ")";
  }
};

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
  throw OptionError({.what = "there is no schedule '" + std::string(name) + "'." +
                             base::did_you_mean(name, names),
                     .detail = "Known: " + base::quote_list(names, names.size()) + "."});
}

std::vector<std::string> schedule_names() {
  std::vector<std::string> names;
  for (const NamedSchedule& known : named_schedules()) names.emplace_back(known.name);
  return names;
}

std::string to_string(const Schedule& schedule) { return std::visit(Describe{}, schedule.rule); }

}  // namespace onnxgrad
