#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "train/schedules/schedules.h"

namespace onnxgrad::train {
namespace {

using Rows = DescriptionTable<Schedule::Rule>;

constexpr const char* kLengthMeaning = "Updates or epochs; below 1 that fraction of the fit.";

template <class Spec>
Field length_field() {
  return zero_is("the rest of it", field("length", &Spec::length, kAboveZero, kLengthMeaning));
}

template <class Spec>
Field unit_field() {
  return field("unit", &Spec::unit, {"step", "epoch"});
}

// A tenth of the fit is warm-up.
ScheduleSequence after_warm_up(Schedule then) {
  return {
      .parts = {LinearRate{.length = 0.1, .start_factor = 0, .end_factor = 1}, std::move(then)}};
}

void add_powers(Rows& rows) {
  rows.add(Described<ConstantRate>{
      .type = "ConstantRate",
      .python_name = "Constant",
      .summary = "A fixed fraction of the rate",
      .formula = "r * factor.",
      .fields = {field("factor", &ConstantRate::factor, kAtLeastZero)},
      .names = {{"constant", {}}},
  });
  rows.add(Described<InverseScaling>{
      .type = "InverseScaling",
      .summary = "An inverse power of the time",
      .source = "scikit-learn: invscaling",
      .formula = "r / (t + 1)^power.",
      .fields = {field("power", &InverseScaling::power, kAtLeastZero,
                       "As in SGDRegressor; MLPRegressor and MLPClassifier have 0.5."),
                 unit_field<InverseScaling>()},
      .names = {{"inverse_scaling", {}, {"invscaling"}}},
  });
  rows.add(Described<OptimalRate>{
      .type = "OptimalRate",
      .python_name = "Optimal",
      .summary = "The rate of scikit-learn's SGD estimators, by Bottou",
      .source = "scikit-learn: optimal",
      .formula = "1 / (alpha * (t0 + t)) with t0 = 1 / (alpha * e) and e = alpha^(-1/4), the rate "
                 "at t = 0; r is not used.",
      .fields = {field("alpha", &OptimalRate::alpha, kAboveZero, "The strength of the penalty."),
                 called("first_is_lr",
                        field("first_is_rate", &OptimalRate::first_is_rate,
                              "As in onnxcustom: e = a / max(1, 2 * (1 + a)) with "
                              "a = alpha^(-1/4), and all rates are multiplied by r / e, so that "
                              "the first is r.")),
                 unit_field<OptimalRate>()},
      .names = {{"optimal", {}}},
  });
  rows.add(Described<StepDecay>{
      .type = "StepDecay",
      .python_name = "Step",
      .summary = "By a factor at regular intervals",
      .source = "torch: StepLR",
      .formula = "r * factor^floor(t / every).",
      .fields = {field("every", &StepDecay::every, kAtLeastOne),
                 field("factor", &StepDecay::factor, kAtLeastZero), unit_field<StepDecay>()},
      .names = {{"step", {}, {"StepLR"}}},
  });
  rows.add(Described<MultiStepDecay>{
      .type = "MultiStepDecay",
      .python_name = "MultiStep",
      .summary = "By a factor at milestones",
      .source = "torch: MultiStepLR",
      .formula = "r * factor^(number of milestones up to t).",
      .fields = {field("milestones", &MultiStepDecay::milestones, kAtLeastZero,
                       "In increasing order."),
                 field("factor", &MultiStepDecay::factor, kAtLeastZero),
                 unit_field<MultiStepDecay>()},
      .names = {{"multi_step", {}, {"MultiStepLR"}}},
      .check =
          [](const MultiStepDecay& spec) {
            if (std::ranges::is_sorted(spec.milestones)) return;
            throw OptionError(
                {.what = "the milestones are not in increasing order", .hint = "Sort them."});
          },
  });
  rows.add(Described<ExponentialDecay>{
      .type = "ExponentialDecay",
      .python_name = "Exponential",
      .summary = "By a factor from one epoch to the next",
      .source = "torch: ExponentialLR",
      .formula = "r * factor^t.",
      .fields = {field("factor", &ExponentialDecay::factor, kAtLeastZero),
                 unit_field<ExponentialDecay>()},
      .names = {{"exponential", {}, {"ExponentialLR", "ExponentialDecay"}}},
  });
}

void add_curves(Rows& rows) {
  rows.add(Described<CosineDecay>{
      .type = "CosineDecay",
      .python_name = "Cosine",
      .summary = "From r down to r * minimum_factor along half a cosine",
      .source = "torch: CosineAnnealingLR",
      .formula = "r * (m + (1 - m) * (1 + cos(pi * t / length)) / 2) with m = minimum_factor; "
                 "then r * m.",
      .fields = {length_field<CosineDecay>(),
                 field("minimum_factor", &CosineDecay::minimum_factor, kAtLeastZero),
                 unit_field<CosineDecay>()},
      .names = {{"cosine", {}, {"CosineAnnealingLR", "CosineDecay"}}},
  });
  rows.add(Described<CosineRestarts>{
      .type = "CosineRestarts",
      .summary = "A cosine with restarts",
      .source = "Loshchilov and Hutter, 2016; torch: CosineAnnealingWarmRestarts",
      .formula = "Each round is length_factor times longer than the one before, and begins at "
                 "restart_factor times its highest rate.",
      .fields = {field("length", &CosineRestarts::length, kAboveZero, "Of the first round."),
                 field("length_factor", &CosineRestarts::length_factor, kAtLeastOne),
                 field("restart_factor", &CosineRestarts::restart_factor, kAtLeastZero),
                 field("minimum_factor", &CosineRestarts::minimum_factor, kAtLeastZero),
                 unit_field<CosineRestarts>()},
      .names = {{"cosine_restarts", {}, {"CosineAnnealingWarmRestarts"}}},
  });
  rows.add(Described<OneCycle>{
      .type = "OneCycle",
      .summary = "Up to r, then down to almost zero",
      .source = "Smith and Topin, 2017; torch: OneCycleLR with max_lr = r",
      .formula = "From r / start_divisor up to r in the first `rise` of the length, then down to "
                 "r / (start_divisor * end_divisor). Momentum is not changed.",
      .fields = {length_field<OneCycle>(),
                 field("rise", &OneCycle::rise, {.minimum = 0, .maximum = 1}),
                 field("start_divisor", &OneCycle::start_divisor, kAboveZero),
                 field("end_divisor", &OneCycle::end_divisor, kAboveZero),
                 field("linear", &OneCycle::linear, "Along lines instead of cosines.")},
      .names = {{"one_cycle", {}, {"OneCycleLR"}}},
  });
  rows.add(Described<LinearRate>{
      .type = "LinearRate",
      .python_name = "Linear",
      .summary = "Linearly from r * start_factor to r * end_factor",
      .source = "torch: LinearLR",
      .formula = "r * (a + (b - a) * t / length) with a = start_factor and b = end_factor; then "
                 "r * b.",
      .fields = {length_field<LinearRate>(),
                 field("start_factor", &LinearRate::start_factor, kAtLeastZero),
                 field("end_factor", &LinearRate::end_factor, kAtLeastZero),
                 unit_field<LinearRate>()},
      .names = {{"linear", {}, {"LinearLR"}}},
  });
  rows.add(Described<PolynomialDecay>{
      .type = "PolynomialDecay",
      .python_name = "Polynomial",
      .summary = "By a power of the remaining time",
      .source = "torch: PolynomialLR",
      .formula = "r * (e + (1 - e) * (1 - t / length)^power) with e = end_factor; then r * e.",
      .fields = {length_field<PolynomialDecay>(),
                 field("power", &PolynomialDecay::power, kAtLeastZero),
                 field("end_factor", &PolynomialDecay::end_factor, kAtLeastZero),
                 unit_field<PolynomialDecay>()},
      .names = {{"polynomial", {}, {"PolynomialLR", "PolynomialDecay"}}},
  });
}

void add_others(Rows& rows) {
  rows.add(Described<Plateau>{
      .type = "Plateau",
      .summary = "Lower the rate when the loss stops falling",
      .source = "torch: ReduceLROnPlateau; scikit-learn: adaptive, with factor 0.2",
      .formula = "Monitors the validation loss (without validation the training loss) of each "
                 "epoch. If it was not below (1 - threshold) * best for more than `patience` "
                 "epochs, the rate is multiplied by `factor`.",
      .fields = {field("factor", &Plateau::factor, {.minimum = 0, .is_open = true, .below = 1}),
                 field("patience", &Plateau::patience, kAtLeastZero),
                 field("threshold", &Plateau::threshold, kBelowOne),
                 field("cooldown", &Plateau::cooldown, kAtLeastZero,
                       "Epochs after a change that are not counted."),
                 field("minimum_factor", &Plateau::minimum_factor, kAtLeastZero,
                       "The rate does not fall below r * minimum_factor.")},
      .names = {{"plateau", {}, {"ReduceLROnPlateau"}}},
  });
  rows.add(Described<ScheduleSequence>{
      .type = "ScheduleSequence",
      .python_name = "",
      .summary = "One after another, each with t from 0",
      .source = "torch: SequentialLR",
      .names = {{"warmup_cosine", after_warm_up(CosineDecay{})},
                {"warmup_linear", after_warm_up(LinearRate{})}},
      .check =
          [](const ScheduleSequence& spec) {
            if (!spec.parts.empty()) return;
            throw OptionError({.what = "a sequence without parts",
                               .hint = "Give one schedule or more, each with its end."});
          },
  });
  rows.add(Described<ScheduleProduct>{
      .type = "ScheduleProduct",
      .python_name = "",
      .summary = "All at once: the rate of each part is the r of the next",
      .source = "torch: ChainedScheduler",
      .check =
          [](const ScheduleProduct& spec) {
            if (!spec.parts.empty()) return;
            throw OptionError(
                {.what = "a product without parts", .hint = "Give one schedule or more."});
          },
  });
}

}  // namespace

const Rows& schedule_rows() {
  static const Rows rows = [] {
    Rows made("schedule");
    add_powers(made);
    add_curves(made);
    add_others(made);
    made.finish();
    return made;
  }();
  return rows;
}

std::string schedule_text(const Schedule& schedule) {
  return std::visit(
      [&](const auto& spec) {
        if constexpr (requires { spec.parts; }) {
          std::vector<std::string> texts;
          for (const Schedule& part : spec.parts) texts.push_back(schedule_text(part));
          constexpr bool kIsProduct = std::is_same_v<std::decay_t<decltype(spec)>, ScheduleProduct>;
          return fmt::format("Schedule{}([{}])", kIsProduct ? "Product" : "Sequence",
                             fmt::join(texts, ", "));
        } else {
          return schedule_rows().to_string(schedule.rule, /*is_whole=*/true);
        }
      },
      schedule.rule);
}

}  // namespace onnxgrad::train
