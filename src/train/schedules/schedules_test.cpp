#include "train/schedules/schedules.h"

#include <gmock/gmock.h>

#include <cmath>
#include <numbers>
#include <string>
#include <vector>

#include "onnxgrad/error.h"
#include "onnxgrad/option_error.h"

namespace onnxgrad::train::schedules_test {

constexpr double kPi = std::numbers::pi;

struct ScheduleCase {
  std::string name;
  Schedule schedule;
  std::int64_t updates = 8;
  std::int64_t epochs = 4;
  /// (update, rate) for the optimizer's rate 2.
  std::vector<std::pair<std::int64_t, double>> expected;
};

std::vector<double> rates_of(const ScheduleRun& run, std::int64_t updates) {
  std::vector<double> rates;
  for (std::int64_t i = 0; i < updates; ++i) rates.push_back(run.rate(i));
  return rates;
}

// Values computed by hand from the formulas in onnxgrad/schedules.h.
const std::vector<ScheduleCase>& cases() {
  static const std::vector<ScheduleCase> table{
      {.name = "constant", .schedule = ConstantRate{}, .expected = {{0, 2}, {7, 2}}},
      {.name = "constant_factor", .schedule = ConstantRate{.factor = 0.25}, .expected = {{3, 0.5}}},
      {.name = "inverse_scaling",
       .schedule = InverseScaling{.power = 0.5},
       .expected = {{0, 2}, {3, 1}, {7, 2 / std::sqrt(8.0)}}},
      {.name = "inverse_scaling_epochs",
       .schedule = InverseScaling{.power = 1, .unit = ScheduleUnit::kEpoch},
       .expected = {{0, 2}, {1, 2}, {2, 1}, {7, 0.5}}},
      {.name = "optimal",
       .schedule = OptimalRate{.alpha = 1e-4},
       .expected = {{0, 10}, {5, 1 / (1e-4 * (1000 + 5))}}},
      {.name = "optimal_scaled",
       .schedule = OptimalRate{.alpha = 1e-4, .first_is_rate = true},
       .expected = {{0, 2}, {5, 2 * 22000.0 / 22005}}},
      {.name = "step",
       .schedule = StepDecay{.every = 2, .factor = 0.5},
       .expected = {{0, 2}, {3, 2}, {4, 1}, {7, 1}}},
      {.name = "step_by_updates",
       .schedule = StepDecay{.every = 3, .factor = 0.5, .unit = ScheduleUnit::kStep},
       .expected = {{2, 2}, {3, 1}, {6, 0.5}}},
      {.name = "multi_step",
       .schedule = MultiStepDecay{.milestones = {1, 3}, .factor = 0.1},
       .expected = {{1, 2}, {2, 0.2}, {5, 0.2}, {6, 0.02}}},
      {.name = "exponential",
       .schedule = ExponentialDecay{.factor = 0.5, .unit = ScheduleUnit::kStep},
       .expected = {{0, 2}, {3, 0.25}}},
      {.name = "cosine",
       .schedule = CosineDecay{.length = 4, .minimum_factor = 0.5},
       .expected = {{0, 2}, {1, 1.5 + 0.5 * std::cos(kPi / 4)}, {2, 1.5}, {4, 1}, {7, 1}}},
      {.name = "cosine_whole_fit", .schedule = CosineDecay{}, .expected = {{0, 2}, {4, 1}}},
      {.name = "cosine_share_in_epochs",
       .schedule = CosineDecay{.length = 0.5, .unit = ScheduleUnit::kEpoch},
       .expected = {{0, 2}, {1, 2}, {2, 1}, {3, 1}, {4, 0}, {7, 0}}},
      {.name = "restarts",
       .schedule = CosineRestarts{.length = 2, .restart_factor = 0.5},
       .expected = {{0, 2}, {1, 1}, {2, 1}, {3, 0.5}, {4, 0.5}, {7, 0.125}}},
      {.name = "longer_restarts",
       .schedule = CosineRestarts{.length = 2, .length_factor = 2, .minimum_factor = 0.1},
       .expected = {{0, 2}, {1, 1.1}, {2, 2}, {4, 1.1}, {6, 2}}},
      {.name = "one_cycle",
       .schedule =
           OneCycle{
               .length = 8, .rise = 0.5, .start_divisor = 4, .end_divisor = 10, .linear = true},
       .expected = {{0, 0.5}, {3, 2}, {5, 2 - 1.95 / 2}, {7, 0.05}}},
      {.name = "one_cycle_without_rise",
       .schedule = OneCycle{.rise = 0, .linear = true},
       .expected = {{0, 2}, {7, 2.0 / 25 / 1e4}}},
      {.name = "linear",
       .schedule = LinearRate{.length = 4, .start_factor = 1, .end_factor = 0.5},
       .expected = {{0, 2}, {2, 1.5}, {4, 1}, {6, 1}}},
      {.name = "polynomial",
       .schedule = PolynomialDecay{.length = 4, .power = 2, .end_factor = 0.5},
       .expected = {{0, 2}, {2, 1.25}, {4, 1}}},
      {.name = "warm_up",
       .schedule = ScheduleSequence{{LinearRate{.length = 2, .start_factor = 0, .end_factor = 1},
                                     CosineDecay{}}},
       .expected = {{0, 0}, {1, 1}, {2, 2}, {5, 1}, {7, 1 + std::cos(kPi * 5 / 6)}}},
      {.name = "warm_up_by_share",
       .schedule = ScheduleSequence{{LinearRate{.length = 0.3, .start_factor = 0, .end_factor = 1},
                                     ConstantRate{}}},
       .expected = {{0, 0}, {1, 2 / 2.4}, {2, 4 / 2.4}, {3, 2}}},
      {.name = "sequence_in_epochs",
       .schedule = ScheduleSequence{{LinearRate{.length = 1, .unit = ScheduleUnit::kEpoch},
                                     StepDecay{.every = 1, .factor = 0.5}}},
       .expected = {{1, 2}, {2, 2}, {4, 1}, {6, 0.5}}},
      {.name = "first_part_without_end",
       .schedule = ScheduleSequence{{ConstantRate{}, ConstantRate{.factor = 0}}},
       .expected = {{7, 2}}},
      {.name = "product",
       .schedule =
           ScheduleProduct{{ConstantRate{.factor = 0.5}, StepDecay{.every = 1, .factor = 0.1}}},
       .expected = {{0, 1}, {2, 0.1}}},
      {.name = "product_with_absolute_rate",
       .schedule = ScheduleProduct{{OptimalRate{}, ConstantRate{.factor = 0.1}}},
       .expected = {{0, 1}}},
  };
  return table;
}

class Schedules : public testing::TestWithParam<std::size_t> {};

TEST_P(Schedules, FollowTheirFormulas) {
  const ScheduleCase& row = cases().at(GetParam());
  SCOPED_TRACE(row.name);
  const ScheduleRun run(row.schedule, 2, row.updates, row.epochs);
  for (const auto& [update, rate] : row.expected) {
    EXPECT_NEAR(run.rate(update), rate, 1e-12 * std::max(1.0, rate)) << "update " << update;
  }
}

INSTANTIATE_TEST_SUITE_P(Table, Schedules, testing::Range<std::size_t>(0, 25));

TEST(ScheduleTable, IsWhole) { EXPECT_EQ(cases().size(), 25U); }

TEST(ScheduleRates, OfZeroStayZero) {
  const ScheduleRun run(ScheduleProduct{{CosineDecay{}, ExponentialDecay{}}}, 0, 8, 4);
  EXPECT_THAT(rates_of(run, 8), testing::Each(0.0));
}

TEST(PlateauSchedule, WaitsLowersAndCools) {
  ScheduleRun run(
      Plateau{.factor = 0.5, .patience = 1, .threshold = 0.1, .cooldown = 1, .minimum_factor = 0.2},
      2, 100, 100);
  const auto after = [&](double loss) {
    run.end_epoch(loss, 1);
    return run.rate(1);
  };
  EXPECT_EQ(after(1.0), 2);             // the first is the best
  EXPECT_EQ(after(0.95), 2);            // not 10 % below: bad
  EXPECT_EQ(after(0.95), 1);            // bad twice
  EXPECT_EQ(after(2), 1);               // cooling
  EXPECT_EQ(after(2), 1);               // bad
  EXPECT_EQ(after(std::nan("")), 0.5);  // bad twice
  EXPECT_EQ(after(0.1), 0.5);           // better
  EXPECT_EQ(after(2), 0.5);
  EXPECT_EQ(after(2), 0.4);  // not below the minimum
}

TEST(PlateauSchedule, InASequenceSeesItsOwnEpochs) {
  ScheduleRun run(ScheduleSequence{{LinearRate{.length = 2}, Plateau{.patience = 0}}}, 2, 100, 100);
  run.end_epoch(1, 1);
  run.end_epoch(5, 2);
  EXPECT_EQ(run.rate(2), 2);
  run.end_epoch(5, 3);  // the first that it sees
  EXPECT_EQ(run.rate(3), 2);
  run.end_epoch(6, 4);
  EXPECT_NEAR(run.rate(4), 0.2, 1e-15);
}

TEST(PlateauSchedule, StateGoesOnWhereItWas) {
  const Schedule schedule = ScheduleProduct{{Plateau{.patience = 1}, Plateau{.patience = 0}}};
  ScheduleRun run(schedule, 2, 100, 100);
  for (const double loss : {1.0, 2.0}) run.end_epoch(loss, 1);
  ScheduleRun other(schedule, 2, 100, 100);
  other.load_state(run.state());
  for (const double loss : {3.0, 0.5, 0.6}) {
    run.end_epoch(loss, 1);
    other.end_epoch(loss, 1);
    EXPECT_EQ(run.rate(1), other.rate(1));
  }
  EXPECT_THROW(other.load_state({1, 2}), CheckpointError);
}

TEST(ScheduleParameters, OutOfRangeAreRefused) {
  const std::vector<Schedule> bad{
      ConstantRate{.factor = -1},
      InverseScaling{.power = std::nan("")},
      OptimalRate{.alpha = 0},
      StepDecay{.every = 0},
      StepDecay{.factor = -0.1},
      MultiStepDecay{.milestones = {3, 1}},
      ExponentialDecay{.factor = -1},
      CosineDecay{.length = -1},
      CosineDecay{.minimum_factor = -1},
      CosineRestarts{.length = 0},
      CosineRestarts{.length_factor = 0.5},
      OneCycle{.rise = 1.5},
      OneCycle{.start_divisor = 0},
      LinearRate{.start_factor = -1},
      PolynomialDecay{.power = -1},
      Plateau{.factor = 1},
      Plateau{.threshold = 1},
      ScheduleSequence{},
      ScheduleProduct{},
      ScheduleSequence{{ConstantRate{}, StepDecay{.every = 0}}},
  };
  for (std::size_t i = 0; i < bad.size(); ++i) {
    EXPECT_THROW(ScheduleRun(bad[i], 1, 10, 1), OptionError) << "number " << i;
  }
}

}  // namespace onnxgrad::train::schedules_test
