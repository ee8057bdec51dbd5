#ifndef ONNXGRAD_SCHEDULES_H_
#define ONNXGRAD_SCHEDULES_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

// Schedules of the learning rate as plain descriptions. r is the rate of the optimizer's
// description, t the time from 0: the number of updates done in this fit(), or of epochs. Where
// torch.optim.lr_scheduler has the schedule, the formula is torch's; factors of r stand where torch
// takes absolute rates. T is a length: that many updates or epochs; below 1 that share of the fit;
// 0 what is left of it.

namespace [[gnu::visibility("default")]] onnxgrad {

/// What t counts.
enum class ScheduleUnit { kStep, kEpoch };

/// r * factor.
struct ConstantRate {
  double factor = 1;
};

/// r / (t + 1)^power: 'invscaling' of scikit-learn (power 0.25 in SGDRegressor, 0.5 in
/// MLPRegressor and MLPClassifier).
struct InverseScaling {
  double power = 0.25;
  ScheduleUnit unit = ScheduleUnit::kStep;
};

/// 'optimal' of scikit-learn's SGD estimators, by Bottou: 1 / (alpha * (t0 + t)) with
/// t0 = 1 / (alpha * e) and e = alpha^(-1/4), the rate at t = 0; r is not used. With first_is_rate
/// as in onnxcustom: e = a / max(1, 2 * (1 + a)) with a = alpha^(-1/4), and all rates are
/// multiplied by r / e, so that the first is r.
struct OptimalRate {
  double alpha = 1e-4;
  bool first_is_rate = false;
  ScheduleUnit unit = ScheduleUnit::kStep;
};

/// r * factor^floor(t / every). torch: StepLR.
struct StepDecay {
  std::int64_t every = 10;
  double factor = 0.1;
  ScheduleUnit unit = ScheduleUnit::kEpoch;
};

/// r * factor^(number of milestones <= t). torch: MultiStepLR.
struct MultiStepDecay {
  std::vector<std::int64_t> milestones = {};
  double factor = 0.1;
  ScheduleUnit unit = ScheduleUnit::kEpoch;
};

/// r * factor^t. torch: ExponentialLR.
struct ExponentialDecay {
  double factor = 0.95;
  ScheduleUnit unit = ScheduleUnit::kEpoch;
};

/// r * (m + (1 - m) * (1 + cos(pi * t / T)) / 2), with m = minimum_factor; from T on r * m.
/// torch: CosineAnnealingLR.
struct CosineDecay {
  double length = 0;
  double minimum_factor = 0;
  ScheduleUnit unit = ScheduleUnit::kStep;
};

/// The cosine again and again: the first round has length T, each next one length_factor times the
/// one before, and its highest rate is restart_factor times the one before.
/// torch: CosineAnnealingWarmRestarts (restart_factor 1). Loshchilov and Hutter, 2016.
struct CosineRestarts {
  double length = 0.25;
  double length_factor = 1;
  double restart_factor = 1;
  double minimum_factor = 0;
  ScheduleUnit unit = ScheduleUnit::kStep;
};

/// Smith and Topin, 2017: from r / start_divisor up to r in the first `rise` of T, then down to
/// r / (start_divisor * end_divisor) at T - 1, both along a cosine, or along a line if `linear`.
/// torch: OneCycleLR with max_lr = r. Momentum is not changed.
struct OneCycle {
  double length = 0;
  double rise = 0.3;
  double start_divisor = 25;
  double end_divisor = 1e4;
  bool linear = false;
};

/// r * (a + (b - a) * t / T), with a = start_factor, b = end_factor; from T on r * b.
/// torch: LinearLR. The warm-up of other schedules (a = 0, b = 1) and linear decay.
struct LinearRate {
  double length = 0;
  double start_factor = 1;
  double end_factor = 0;
  ScheduleUnit unit = ScheduleUnit::kStep;
};

/// r * (b + (1 - b) * (1 - t / T)^power), with b = end_factor; from T on r * b.
/// torch: PolynomialLR (b = 0).
struct PolynomialDecay {
  double length = 0;
  double power = 1;
  double end_factor = 0;
  ScheduleUnit unit = ScheduleUnit::kStep;
};

/// At the end of each epoch: where the validation loss (without validation the training loss) was
/// not below (1 - threshold) * best for more than `patience` epochs, the rate is multiplied by
/// `factor`, but not below r * minimum_factor, and the next `cooldown` epochs are not counted.
/// torch: ReduceLROnPlateau. scikit-learn's 'adaptive' has factor 0.2.
struct Plateau {
  double factor = 0.1;
  std::int64_t patience = 10;
  double threshold = 1e-4;
  std::int64_t cooldown = 0;
  double minimum_factor = 0;
};

struct Schedule;

/// One after the other, each with t from 0. Every part but the last ends after its own length
/// (LinearRate, CosineDecay, PolynomialDecay, OneCycle; others never end). A part with length 0
/// that is not the last takes all the rest. torch: SequentialLR.
struct ScheduleSequence {
  std::vector<Schedule> parts;  // without initializer: Clang would need the whole Schedule here
};

/// All at once: the rate of each part is the r of the next. torch: ChainedScheduler.
struct ScheduleProduct {
  std::vector<Schedule> parts;  // without initializer: Clang would need the whole Schedule here
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

/// The rates of a whole fit, one per update. `losses`: one per epoch, for plateaus; none: they stay
/// where they are.
/// Throws: OptionError (a parameter out of its range).
std::vector<double> schedule_rates(const Schedule& schedule, double rate, std::int64_t epochs,
                                   std::int64_t steps_per_epoch,
                                   const std::vector<double>& losses = {});

/// With the defaults above: "constant", "cosine", "cosine_restarts", "exponential",
/// "inverse_scaling" ("invscaling"), "linear", "one_cycle", "optimal", "plateau", "polynomial",
/// "step", and "warmup_cosine", "warmup_linear": a tenth of the fit is warm-up.
/// Throws: OptionError naming the nearest.
Schedule schedule_from_name(std::string_view name);
/// All first names of schedule_from_name, sorted.
std::vector<std::string> schedule_names();
/// "CosineDecay(length=0, minimum_factor=0)".
std::string to_string(const Schedule& schedule);

}  // namespace onnxgrad

#endif  // ONNXGRAD_SCHEDULES_H_
