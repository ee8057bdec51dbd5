#ifndef ONNXGRAD_SCHEDULES_H_
#define ONNXGRAD_SCHEDULES_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

// Learning rate schedules as plain descriptions. r is the optimizer's learning rate, t the time
// from 0: the number of updates done in this fit(), or of epochs. Where torch.optim.lr_scheduler
// has the schedule, the formula is torch's, with factors of r where torch takes absolute
// rates. T is a length: that many updates or epochs; below 1, that fraction of the fit;
// 0, the rest of it. schedule_table() (onnxgrad/tables.h) has the formula and source of each,
// and the range and meaning of its fields; docs/training.md shows it.

namespace [[gnu::visibility("default")]] onnxgrad {

/// The unit in which a schedule counts t.
enum class ScheduleUnit { kStep, kEpoch };

struct ConstantRate {
  double factor = 1;
};

/// scikit-learn's 'invscaling'.
struct InverseScaling {
  double power = 0.25;
  ScheduleUnit unit = ScheduleUnit::kStep;
};

/// 'optimal' in scikit-learn's SGD estimators.
struct OptimalRate {
  double alpha = 1e-4;
  bool first_is_rate = false;
  ScheduleUnit unit = ScheduleUnit::kStep;
};

struct StepDecay {
  std::int64_t every = 10;
  double factor = 0.1;
  ScheduleUnit unit = ScheduleUnit::kEpoch;
};

struct MultiStepDecay {
  std::vector<std::int64_t> milestones = {30, 60, 90};
  double factor = 0.1;
  ScheduleUnit unit = ScheduleUnit::kEpoch;
};

struct ExponentialDecay {
  double factor = 0.95;
  ScheduleUnit unit = ScheduleUnit::kEpoch;
};

struct CosineDecay {
  double length = 0;
  double minimum_factor = 0;
  ScheduleUnit unit = ScheduleUnit::kStep;
};

struct CosineRestarts {
  double length = 0.25;
  double length_factor = 1;
  double restart_factor = 1;
  double minimum_factor = 0;
  ScheduleUnit unit = ScheduleUnit::kStep;
};

struct OneCycle {
  double length = 0;
  double rise = 0.3;
  double start_divisor = 25;
  double end_divisor = 1e4;
  bool linear = false;
};

/// Warm-up (from 0 to 1) before other schedules, and linear decay.
struct LinearRate {
  double length = 0;
  double start_factor = 1;
  double end_factor = 0;
  ScheduleUnit unit = ScheduleUnit::kStep;
};

struct PolynomialDecay {
  double length = 0;
  double power = 1;
  double end_factor = 0;
  ScheduleUnit unit = ScheduleUnit::kStep;
};

/// Lowers the rate when the loss stops falling.
struct Plateau {
  double factor = 0.1;
  std::int64_t patience = 10;
  double threshold = 1e-4;
  std::int64_t cooldown = 0;
  double minimum_factor = 0;
};

struct Schedule;

/// A sequence of schedules, each with t from 0. Every part except the last ends after its own
/// length (LinearRate, CosineDecay, PolynomialDecay, OneCycle; others never end). A part with
/// length 0 that is not the last takes all that remains. torch: SequentialLR.
struct ScheduleSequence {
  std::vector<Schedule> parts;  // no initializer: Clang would need the complete Schedule here
};

/// A product of schedules: the rate of each part is the r of the next. torch: ChainedScheduler.
struct ScheduleProduct {
  std::vector<Schedule> parts;  // no initializer: Clang would need the complete Schedule here
};

namespace detail {
template <class T, class Variant>
inline constexpr bool kIsAlternative = false;
template <class T, class... Alternatives>
inline constexpr bool kIsAlternative<T, std::variant<Alternatives...>> =
    (std::is_same_v<T, Alternatives> || ...);
}  // namespace detail

/// A schedule of any kind.
struct Schedule {
  using Rule = std::variant<ConstantRate, InverseScaling, OptimalRate, StepDecay, MultiStepDecay,
                            ExponentialDecay, CosineDecay, CosineRestarts, OneCycle, LinearRate,
                            PolynomialDecay, Plateau, ScheduleSequence, ScheduleProduct>;
  Rule rule = ConstantRate{};

  Schedule() = default;
  template <class R>
    requires(detail::kIsAlternative<R, Rule>)
  Schedule(R kind) : rule(std::move(kind)) {}  // NOLINT(google-explicit-constructor): any rule
};

/// A linear warm-up of length T from start_factor * r, then another schedule.
Schedule with_warm_up(double length, Schedule then, double start_factor = 0);

/// The rates of a whole fit, one per update. `losses`: one per epoch, for plateaus; none: plateaus
/// do not lower the rate.
/// Throws: OptionError (a parameter out of range).
std::vector<double> schedule_rates(const Schedule& schedule, double rate, std::int64_t epochs,
                                   std::int64_t steps_per_epoch,
                                   const std::vector<double>& losses = {});

/// The schedule with this name in the table, or "warmup_cosine", "warmup_linear", where a tenth of
/// the fit is warm-up. Throws: OptionError naming the nearest.
Schedule schedule_from_name(std::string_view name);
/// All primary names of schedule_from_name, sorted.
std::vector<std::string> schedule_names();
/// Text such as "CosineDecay(length=0, minimum_factor=0)".
std::string to_string(const Schedule& schedule);

}  // namespace onnxgrad

#endif  // ONNXGRAD_SCHEDULES_H_
