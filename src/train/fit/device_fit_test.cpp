// Fits on a device other than the host: the numbers of the CPU bit for bit, in series of steps that
// the host does not look at.
#include <gmock/gmock.h>

#include <bit>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "device/device_tensor.h"
#include "train/fit/fit_loop.h"
#include "train/testing/counted_device.h"
#include "train/testing/resumed_fit.h"
#include "train/tools/devices.h"

namespace onnxgrad::train::device_fit_test {

using testing::HasSubstr;
using train_test::counted_device;
using DeviceCounts = device::testing::StreamCounts;
using train_test::LinearRows;

/// A fit, on either device.
struct Case {
  std::string name;
  std::function<void(FitOptions&)> change = [](FitOptions&) {};
  std::function<void(TrainingOptions&)> change_session = [](TrainingOptions&) {};
  std::int64_t rows = 203;
  bool has_weights = false;
  std::int64_t bad_row = -1;
  bool is_resident = true;
  bool is_placed = false;  ///< the rows are on the device
  bool has_validation = false;
};

struct Outcome {
  std::vector<double> state;
  History history;
  std::int64_t steps = 0;
  double rate = 0;
  std::string error;
  std::vector<double> seen;  ///< by callbacks
};

// Puts all arrays on the device too.
void place(Dataset& data) {
  const auto placed = [](const Tensor& tensor) {
    return device::copy_to(engine_on("counted")->device, tensor);
  };
  for (const NamedTensor& input : data.inputs) {
    data.placed.push_back({.name = input.name, .tensor = placed(input.tensor)});
  }
  data.placed_targets.push_back({.name = "", .tensor = placed(data.target)});
  if (data.sample_weight.is_defined()) data.placed_weight = placed(data.sample_weight);
}

Outcome run(const Case& one, const std::string& device) {
  counted_device();
  Dataset data = LinearRows(one.rows, 1, 0.1).all();
  if (one.has_weights) {
    std::vector<double> weights;
    for (std::int64_t i = 0; i < one.rows; ++i) weights.push_back(static_cast<double>(i % 3));
    data.sample_weight = Tensor::from(weights, Dims{one.rows}).cast(DataType::kFloat32);
  }
  if (one.bad_row >= 0) {
    data.inputs[0].tensor.mutable_data<float>()[2 * static_cast<std::size_t>(one.bad_row)] = 1e30F;
  }
  if (one.is_placed) place(data);
  Dataset validation = LinearRows(one.rows, 2, 0.1).all();
  if (one.is_placed && one.has_validation) place(validation);
  TrainingOptions options{.engine = {.device = device, .threads = 1}};
  one.change_session(options);
  const Loss loss{.sample_weight = one.has_weights ? "weight" : ""};
  Session session({.file = {}, .working = train_test::linear_model().model}, loss,
                  Adam{.learning_rate = 0.02}, options);
  FitOptions fit{.epochs = 3, .batch_size = 5};
  one.change(fit);
  if (one.has_validation) fit.validation = &validation;
  Outcome outcome;
  if (fit.every_n_steps > 0) {
    fit.on_step_end = [&](const StepLog& log) {
      outcome.seen.insert(outcome.seen.end(),
                          {static_cast<double>(log.step), log.loss, log.grad_norm.value_or(-1)});
      return false;
    };
  }
  if (fit.grad_norm) session.log_gradient_norm(true);
  if (fit.noise_scale) session.log_noise_scale(true);
  if (fit.on_non_finite == OnNonFinite::kSkip) session.guard_updates();
  StopFlag stop;
  try {
    FitLoop(session, data, fit, stop, outcome.history).run();
  } catch (const ConvergenceError& error) {
    outcome.error = error.what();
  }
  for (const NamedTensor& tensor : session.state()) {
    const std::vector<double> values = tensor.tensor.to_doubles();
    outcome.state.insert(outcome.state.end(), values.begin(), values.end());
  }
  outcome.steps = session.runner().steps();
  outcome.rate = session.runner().learning_rate();
  return outcome;
}

/// Bits, except that one NaN is another.
std::vector<std::uint64_t> bits(const std::vector<double>& numbers) {
  std::vector<std::uint64_t> all;
  for (const double number : numbers) {
    all.push_back(std::bit_cast<std::uint64_t>(std::isnan(number) ? std::nan("") : number));
  }
  return all;
}

void expect_equal(const Outcome& here, const Outcome& there) {
  EXPECT_EQ(bits(here.state), bits(there.state));
  EXPECT_EQ(here.steps, there.steps);
  EXPECT_EQ(here.rate, there.rate);
  EXPECT_EQ(here.error, there.error);
  EXPECT_EQ(here.seen, there.seen);
  EXPECT_EQ(bits(here.history.step_losses), bits(there.history.step_losses));
  EXPECT_EQ(here.history.stop_reason, there.history.stop_reason);
  EXPECT_EQ(here.history.skipped_steps, there.history.skipped_steps);
  ASSERT_EQ(here.history.epochs.size(), there.history.epochs.size());
  for (std::size_t i = 0; i < here.history.epochs.size(); ++i) {
    const EpochLog& left = here.history.epochs[i];
    const EpochLog& right = there.history.epochs[i];
    EXPECT_EQ(bits({left.train_loss}), bits({right.train_loss}));
    EXPECT_EQ(left.val_loss, right.val_loss);
    EXPECT_EQ(left.grad_norm, right.grad_norm);
    EXPECT_EQ(left.noise_scale, right.noise_scale);
    EXPECT_EQ(left.steps, right.steps);
    EXPECT_EQ(left.learning_rate, right.learning_rate);
  }
}

class DeviceFit : public testing::TestWithParam<Case> {};

TEST_P(DeviceFit, HasTheBitsOfTheHost) {
  const Outcome here = run(GetParam(), "cpu");
  for (const bool records : {true, false}) {
    counted_device().makes_recordings = records;
    const DeviceCounts before = counted_device();
    const Outcome there = run(GetParam(), "counted");
    expect_equal(here, there);
    const DeviceCounts& after = counted_device();
    EXPECT_EQ(after.repeats > before.repeats, records);
    EXPECT_EQ(after.staged == before.staged, GetParam().is_resident);
  }
  counted_device().makes_recordings = true;
}

// Bytes that a fit saves if its rows are on the device before it, and those that put them there.
std::int64_t saved_bytes(const Case& given) {
  Case placed = given;
  placed.is_placed = true;
  const std::int64_t first = counted_device().bytes_in;
  const Outcome wanted = run(given, "counted");
  const std::int64_t second = counted_device().bytes_in;
  const Outcome found = run(placed, "counted");
  const std::int64_t third = counted_device().bytes_in;
  expect_equal(wanted, found);
  expect_equal(wanted, run(placed, "cpu"));
  return (second - first) - (third - second);
}

TEST(PlacedRows, AreReadWhereTheyAre) {
  EXPECT_EQ(saved_bytes({.name = ""}), 0);  // copied when they were put there, not by the fit
  EXPECT_EQ(saved_bytes({.name = "", .has_weights = true}), 0);
  // Rows of three numbers to validate on, in each of three epochs but the first.
  EXPECT_EQ(saved_bytes({.name = "", .has_validation = true}), 2 * 203 * 3 * 4);
}

const std::vector<Case> kCases{
    {.name = "shuffled"},
    {.name = "in_order_drop_last",
     .change =
         [](FitOptions& o) {
           o.shuffle = false;
           o.drop_last = true;
         }},
    {.name = "single_rows", .change = [](FitOptions& o) { o.batch_size = 1; }},
    {.name = "windows", .change = [](FitOptions& o) { o.sampling = Sampling::kWindows; }},
    {.name = "schedule_step_losses",
     .change =
         [](FitOptions& o) {
           o.schedule = Schedule{CosineDecay{}};
           o.keep_step_losses = true;
         }},
    {.name = "rate_function_double",
     .change =
         [](FitOptions& o) {
           o.learning_rate = [](std::int64_t step) { return 0.1 / static_cast<double>(step + 1); };
         }},
    {.name = "clipped_norm_callbacks",
     .change =
         [](FitOptions& o) {
           o.grad_norm = true;
           o.every_n_steps = 7;
         },
     .change_session = [](TrainingOptions& o) { o.update.clip_norm = 0.5; }},
    {.name = "accumulated_noise_scale",
     .change = [](FitOptions& o) { o.noise_scale = true; },
     .change_session = [](TrainingOptions& o) { o.update.accumulate = 4; }},
    {.name = "weighted_rows",
     .change = [](FitOptions& o) { o.max_steps = 77; },
     .has_weights = true},
    {.name = "float16_scaled",
     .change_session =
         [](TrainingOptions& o) {
           o.precision = {.type = Precision::kFloat16, .growth_interval = 3};
         }},
    {.name = "augmented",
     .change = [](FitOptions& o) { o.augment = {GaussianNoise{.scale = 0.1}}; },
     .is_resident = false},
    {.name = "fault_raises",
     .change =
         [](FitOptions& o) {
           o.shuffle = false;
           o.keep_step_losses = true;
         },
     .bad_row = 150},
    {.name = "fault_stops_after_snapshot",
     .change =
         [](FitOptions& o) {
           o.on_non_finite = OnNonFinite::kStop;
           o.snapshot_every_steps = 6;
           o.schedule = Schedule{CosineDecay{}};
         },
     .bad_row = 150},
    {.name = "fault_skipped",
     .change =
         [](FitOptions& o) {
           o.on_non_finite = OnNonFinite::kSkip;
           o.keep_step_losses = true;
         },
     .bad_row = 150},
    {.name = "fault_ignored",
     .change = [](FitOptions& o) { o.on_non_finite = OnNonFinite::kIgnore; },
     .bad_row = 150},
};

INSTANTIATE_TEST_SUITE_P(Fits, DeviceFit, testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

TEST(DeviceSteps, AFaultNamesItsStep) {
  const Case one{.name = "", .change = [](FitOptions& o) { o.shuffle = false; }, .bad_row = 150};
  const Outcome outcome = run(one, "counted");
  EXPECT_THAT(outcome.error, HasSubstr("at epoch 1, step 31 (batch 31, rows 150, 151, 152, 153"));
  EXPECT_EQ(outcome.steps, 30);
}

// The first epoch brings rows and plans; the others an order, and numbers once for a series.
TEST(DeviceSteps, AStepOfAShuffledEpochCopiesNothingAndWaitsForNothing) {
  constexpr std::int64_t kSteps = 1000;
  std::vector<DeviceCounts> counts;
  const Case one{.name = "",
                 .change =
                     [&](FitOptions& o) {
                       o.epochs = 4;
                       o.batch_size = 2;
                       o.grad_norm = true;
                       o.schedule = Schedule{CosineDecay{}};
                       o.on_epoch_end = [&](const EpochLog&) {
                         counts.push_back(counted_device());
                         return false;
                       };
                     },
                 .rows = 2 * kSteps};
  run(one, "counted");
  ASSERT_EQ(counts.size(), 4U);
  const DeviceCounts& from = counts[2];
  const DeviceCounts& to = counts[3];
  // A machine that is slow makes shorter series.
  EXPECT_LE(to.waits - from.waits, kSteps / 20);
  EXPECT_LE(to.copies_out - from.copies_out, kSteps / 20);
  EXPECT_LE(to.copies_in - from.copies_in, kSteps / 20);
  EXPECT_EQ(to.staged, from.staged);
  const std::int64_t series = to.repeats - from.repeats;
  // The order, and for each series a rate for each step.
  EXPECT_LE(to.bytes_in - from.bytes_in, (2 * kSteps + kSteps + 64 * series + 100) * 8);
  EXPECT_EQ(to.repeated_steps - from.repeated_steps, kSteps);
  EXPECT_EQ(to.records, from.records);
}

}  // namespace onnxgrad::train::device_fit_test
