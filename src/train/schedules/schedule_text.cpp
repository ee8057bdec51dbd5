// Schedules as texts: what users see, and what a resumed fit compares.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>
#include <vector>

#include "train/schedules/schedules.h"

namespace onnxgrad::train {
namespace {

const char* name_of(ScheduleUnit unit) { return unit == ScheduleUnit::kEpoch ? "epoch" : "step"; }

std::string list(const std::vector<Schedule>& parts) {
  std::vector<std::string> texts;
  for (const Schedule& part : parts) texts.push_back(schedule_text(part));
  return fmt::format("[{}]", fmt::join(texts, ", "));
}

struct Describe {
  std::string operator()(const ConstantRate& s) const {
    return fmt::format("ConstantRate(factor={})", s.factor);
  }
  std::string operator()(const InverseScaling& s) const {
    return fmt::format("InverseScaling(power={}, unit={})", s.power, name_of(s.unit));
  }
  std::string operator()(const OptimalRate& s) const {
    return fmt::format("OptimalRate(alpha={}, first_is_rate={}, unit={})", s.alpha, s.first_is_rate,
                       name_of(s.unit));
  }
  std::string operator()(const StepDecay& s) const {
    return fmt::format("StepDecay(every={}, factor={}, unit={})", s.every, s.factor,
                       name_of(s.unit));
  }
  std::string operator()(const MultiStepDecay& s) const {
    return fmt::format("MultiStepDecay(milestones=[{}], factor={}, unit={})",
                       fmt::join(s.milestones, ", "), s.factor, name_of(s.unit));
  }
  std::string operator()(const ExponentialDecay& s) const {
    return fmt::format("ExponentialDecay(factor={}, unit={})", s.factor, name_of(s.unit));
  }
  std::string operator()(const CosineDecay& s) const {
    return fmt::format("CosineDecay(length={}, minimum_factor={}, unit={})", s.length,
                       s.minimum_factor, name_of(s.unit));
  }
  std::string operator()(const CosineRestarts& s) const {
    return fmt::format(
        "CosineRestarts(length={}, length_factor={}, restart_factor={}, "
        "minimum_factor={}, unit={})",
        s.length, s.length_factor, s.restart_factor, s.minimum_factor, name_of(s.unit));
  }
  std::string operator()(const OneCycle& s) const {
    return fmt::format("OneCycle(length={}, rise={}, start_divisor={}, end_divisor={}, linear={})",
                       s.length, s.rise, s.start_divisor, s.end_divisor, s.linear);
  }
  std::string operator()(const LinearRate& s) const {
    return fmt::format("LinearRate(length={}, start_factor={}, end_factor={}, unit={})", s.length,
                       s.start_factor, s.end_factor, name_of(s.unit));
  }
  std::string operator()(const PolynomialDecay& s) const {
    return fmt::format("PolynomialDecay(length={}, power={}, end_factor={}, unit={})", s.length,
                       s.power, s.end_factor, name_of(s.unit));
  }
  std::string operator()(const Plateau& s) const {
    return fmt::format(
        "Plateau(factor={}, patience={}, threshold={}, cooldown={}, minimum_factor={})", s.factor,
        s.patience, s.threshold, s.cooldown, s.minimum_factor);
  }
  std::string operator()(const ScheduleSequence& s) const {
    return "ScheduleSequence(" + list(s.parts) + ")";
  }
  std::string operator()(const ScheduleProduct& s) const {
    return "ScheduleProduct(" + list(s.parts) + ")";
  }
};

}  // namespace

std::string schedule_text(const Schedule& schedule) {
  return std::visit(Describe{}, schedule.rule);
}

}  // namespace onnxgrad::train
