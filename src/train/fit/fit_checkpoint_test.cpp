#include <fmt/format.h>
#include <gmock/gmock.h>

#include <limits>

#include "train/session/session_checkpoint.h"
#include "train/testing/resumed_fit.h"

namespace onnxgrad::train::fit_checkpoint_test {

using testing::AnyOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using train_test::expect_same;
using train_test::FitProcess;
using train_test::Interruption;
using train_test::LinearRows;
using train_test::TemporaryFolder;
using train_test::write_bytes;

constexpr std::int64_t kRows = 23;

// With noise, so that the validation loss goes up and down.
Dataset noisy_data(std::uint64_t seed = 1, std::int64_t rows = kRows) {
  return LinearRows(rows, seed).all();
}

struct Process : FitProcess {
  const History& fit(const FitOptions& options, const Dataset& data = noisy_data()) {
    return FitProcess::fit(data, options);
  }
};

FitOptions plain_options() { return {.epochs = 6, .batch_size = 5}; }

void expect_resumed_is_uninterrupted(const FitOptions& options, std::int64_t steps,
                                     std::int64_t every_steps, const std::string& what) {
  const auto make_data = [] { return noisy_data(); };
  train_test::expect_resumed_is_uninterrupted(make_data, options, steps, every_steps,
                                              Interruption::kStop, what);
}

TEST(FitCheckpoint, ResumedIsUninterrupted) {
  for (const std::int64_t steps : {1, 4, 7, 11}) {
    for (const std::int64_t every : {0, 1, 3}) {
      const std::string what = fmt::format("{} steps, checkpoint every {}", steps, every);
      expect_resumed_is_uninterrupted(plain_options(), steps, every, what);
    }
  }
}

TEST(FitCheckpoint, ResumedIsUninterruptedWithEveryOption) {
  FitOptions options = plain_options();
  options.drop_last = true;
  expect_resumed_is_uninterrupted(options, 3, 0, "drop_last");
  options.max_steps = 11;
  expect_resumed_is_uninterrupted(options, 3, 0, "max_steps");
  options = plain_options();
  options.shuffle = false;
  expect_resumed_is_uninterrupted(options, 3, 0, "shuffle");
  options = plain_options();
  options.sampling = Sampling::kWindows;
  expect_resumed_is_uninterrupted(options, 3, 2, "windows");
  options = plain_options();
  options.validation_fraction = 0.3;
  options.early_stopping = {{.patience = 1, .min_delta = 0.01, .restore_best = true}};
  expect_resumed_is_uninterrupted(options, 2, 0, "early stopping");
  options.validation_every = 2;
  options.early_stopping = {};
  expect_resumed_is_uninterrupted(options, 5, 2, "validation");
  options.max_history = 8;
  options.epochs = 21;
  expect_resumed_is_uninterrupted(options, 17, 0, "a history with every fourth epoch");
  options.epochs = plain_options().epochs;
  options.on_non_finite = OnNonFinite::kIgnore;
  options.learning_rate = [](std::int64_t step) { return 0.1 / static_cast<double>(step + 1); };
  expect_resumed_is_uninterrupted(options, 3, 0, "rates");
  options = plain_options();
  options.schedule = OneCycle{};
  expect_resumed_is_uninterrupted(options, 3, 2, "one cycle");
  options.validation_fraction = 0.3;
  options.schedule = Plateau{.factor = 0.5, .patience = 0, .threshold = 0.5};
  expect_resumed_is_uninterrupted(options, 4, 0, "plateau");
}

TEST(FitCheckpoint, EarlyStoppingStaysStopped) {
  FitOptions options = plain_options();
  options.epochs = 50;
  options.validation_fraction = 0.3;
  options.early_stopping = {{.patience = 1, .min_delta = 0.5, .restore_best = true}};
  const TemporaryFolder temporary;
  options.checkpoint = {{.folder = temporary.path("run")}};
  Process first;
  first.fit(options);
  EXPECT_THAT(first.history.stop_reason, HasSubstr("no improvement"));
  options.resume = temporary.path("run");
  Process second;
  second.fit(options);
  expect_same(first, second, "stopped");
}

TEST(FitCheckpoint, MoreEpochsGoOn) {
  const TemporaryFolder temporary;
  FitOptions options = plain_options();
  Process whole;
  whole.fit(options);
  options.checkpoint = {{.folder = temporary.path("run")}};
  options.epochs = 2;
  Process first;
  first.fit(options);
  options.epochs = 6;
  options.resume = temporary.path("run");
  Process second;
  second.fit(options);
  expect_same(whole, second, "more epochs");
  EXPECT_THAT(base::list_files(temporary.path("run")),
              SizeIs(AnyOf(5, 6)));  // 3, best, lock, "best"
}

TEST(FitCheckpoint, ExceptionsLeaveACheckpoint) {
  Process whole;
  whole.fit(plain_options());
  for (const bool in_step : {false, true}) {
    const TemporaryFolder temporary;
    FitOptions options = plain_options();
    options.checkpoint = {
        {.folder = temporary.path("run"), .every_steps = 1000, .keep_best = false}};
    FitOptions failing = options;
    failing.every_n_steps = 1;
    failing.on_step_end = [&](const StepLog& log) -> bool {
      if (in_step && log.step == 8) throw std::runtime_error("callback");
      return false;
    };
    failing.on_epoch_end = [&](const EpochLog& log) -> bool {
      if (!in_step && log.epoch == 2) throw std::runtime_error("callback");
      return false;
    };
    Process first;
    EXPECT_THROW(first.fit(failing), std::runtime_error);
    options.resume = temporary.path("run");
    Process second;
    second.fit(options);
    expect_same(whole, second, in_step ? "step" : "epoch");
  }
}

TEST(FitCheckpoint, NonFiniteLossLeavesTheLastFiniteStep) {
  const TemporaryFolder temporary;
  FitOptions options = plain_options();
  options.shuffle = false;
  Process whole;
  whole.fit(options);
  options.checkpoint = {{.folder = temporary.path("run"), .every_steps = 2}};
  FitOptions diverging = options;
  diverging.learning_rate = [](std::int64_t step) {
    return step == 11 ? std::numeric_limits<double>::infinity() : 0.2;
  };
  Process first;
  EXPECT_THROW(first.fit(diverging), ConvergenceError);
  EXPECT_EQ(first.session.runner().steps(), 11);
  options.resume = temporary.path("run/" + checkpoint_name(first.session.runner().steps()));
  options.checkpoint = {};
  Process second;
  second.fit(options);
  expect_same(whole, second, "after divergence");
}

std::string refusal(const FitOptions& options, const Dataset& data = noisy_data()) {
  Process process;
  const NamedTensors before = process.session.state();
  try {
    process.fit(options, data);
    return "accepted";
  } catch (const CheckpointError& error) {
    const NamedTensors after = process.session.state();
    for (std::size_t i = 0; i < before.size(); ++i) {
      EXPECT_TRUE(before[i].tensor.equals(after[i].tensor));
    }
    return error.what();
  }
}

TEST(FitCheckpoint, OtherDataOrOptionsAreNamed) {
  const TemporaryFolder temporary;
  FitOptions options = plain_options();
  options.checkpoint = {{.folder = temporary.path("run")}};
  Process first;
  first.fit(options);
  EXPECT_THAT(refusal(options), HasSubstr("checkpoints of another training, up to step 30"));
  options.resume = temporary.path("run");
  EXPECT_EQ(refusal(options), "accepted");
  FitOptions other = options;
  other.batch_size = 7;
  EXPECT_THAT(refusal(other), HasSubstr("batch_size is 5 in the checkpoint, 7 now"));
  other = options;
  other.seed = 9;
  EXPECT_THAT(refusal(other), HasSubstr("seed is 0 in the checkpoint, 9 now"));
  other = options;
  other.shuffle = false;
  EXPECT_THAT(refusal(other), HasSubstr("shuffle is true in the checkpoint, false now"));
  other = options;
  other.sampling = Sampling::kWindows;
  EXPECT_THAT(refusal(other), HasSubstr("sampling is rows in the checkpoint, windows now"));
  other = options;
  other.validation_fraction = 0.2;
  EXPECT_THAT(refusal(other), HasSubstr("validation is 0 in the checkpoint, 0.2 now"));
  EXPECT_THAT(refusal(options, noisy_data(2)), HasSubstr("different training or validation rows"));
  const Dataset held_out = noisy_data(3);
  other = options;
  other.validation = &held_out;
  EXPECT_THAT(refusal(other), HasSubstr("different training or validation rows"));
  other = options;
  other.early_stopping.emplace();
  EXPECT_THAT(refusal(other), HasSubstr("early_stopping is none in the checkpoint, the loss, "
                                        "patience 10, min_delta 0.0001, best restored now"));
  other = options;
  other.keep_best = true;
  EXPECT_THAT(refusal(other),
              HasSubstr("early_stopping is none in the checkpoint, none, keep_best"));
  other = options;
  other.schedule = StepDecay{.every = 2};
  EXPECT_THAT(refusal(other), HasSubstr("schedule is none in the checkpoint, StepDecay(every=2, "
                                        "factor=0.1, unit=epoch) now"));
  const Dataset fewer = noisy_data(1, kRows - 1);
  EXPECT_THAT(refusal(options, fewer), HasSubstr("training_rows is 23 in the checkpoint, 22 now"));
  other = options;
  other.resume = temporary.path("none");
  EXPECT_NE(refusal(other), "accepted");
  other.resume = temporary.path("run/lock");
  EXPECT_THAT(refusal(other), HasSubstr("safetensors"));
  Checkpoint of_session = checkpoint_of(first.session);
  write_checkpoint(temporary.path("session"), of_session);
  other.resume = temporary.path("session");
  other.checkpoint = {};
  EXPECT_THAT(refusal(other), HasSubstr("of a session, not of a fit"));
}

TEST(FitCheckpoint, SettingsOfScheduleAndEarlyStoppingAreNamed) {
  const TemporaryFolder temporary;
  FitOptions options = plain_options();
  options.validation_fraction = 0.3;
  options.early_stopping = {{.patience = 3}};
  options.schedule = StepDecay{.every = 3, .factor = 0.5};
  options.checkpoint = {{.folder = temporary.path("run")}};
  Process().fit(options);
  options.resume = temporary.path("run");
  EXPECT_EQ(refusal(options), "accepted");
  const auto with = [&](const auto& change) {
    FitOptions other = options;
    change(other);
    return refusal(other);
  };
  EXPECT_THAT(with([](FitOptions& o) { o.early_stopping->patience = 4; }),
              HasSubstr("the loss, patience 3, min_delta 0.0001, best restored in the checkpoint, "
                        "the loss, patience 4"));
  EXPECT_THAT(with([](FitOptions& o) { o.early_stopping->min_delta = 0.5; }),
              HasSubstr("min_delta 0.5, best restored now"));
  EXPECT_THAT(with([](FitOptions& o) { o.early_stopping->monitor = "train_loss"; }),
              HasSubstr("train_loss, patience 3"));
  EXPECT_THAT(with([](FitOptions& o) { o.schedule = StepDecay{.every = 3, .factor = 0.25}; }),
              HasSubstr("schedule is StepDecay(every=3, factor=0.5, unit=epoch) in the "
                        "checkpoint, StepDecay(every=3, factor=0.25, unit=epoch) now"));
  EXPECT_THAT(with([](FitOptions& o) { o.metrics = {{.name = "mae"}}; }),
              HasSubstr("metrics is none in the checkpoint, mae now"));
  EXPECT_THAT(with([](FitOptions& o) { o.validation_every = 2; }),
              HasSubstr("validation_every is 1 in the checkpoint, 2 now"));
}

TEST(FitCheckpoint, AFailedSaveIsReportedAndTrainingGoesOn) {
  const TemporaryFolder temporary;
  FitOptions options = plain_options();
  options.checkpoint = {{.folder = temporary.path("run")}};
  std::vector<std::string> problems;
  std::vector<std::string> written;
  options.on_checkpoint = [&](const CheckpointLog& log) {
    (log.problem.empty() ? written : problems).push_back(log.path);
    if (log.problem.empty()) {
      EXPECT_TRUE(std::filesystem::exists(log.path));
    }
  };
  options.on_epoch_end = [&](const EpochLog& log) {
    // A folder in the place of the next file: the second and the last save cannot rename to it.
    const auto next = checkpoint_name(5 * log.epoch);
    if (log.epoch == 2 || log.epoch == 6)
      std::filesystem::create_directory(temporary.path("run/" + next));
    return false;
  };
  Process process;
  process.fit(options);
  EXPECT_THAT(problems, SizeIs(3));  // where training ends, it is tried once more
  EXPECT_THAT(written, SizeIs(4));
  EXPECT_THAT(process.history.checkpoint_problem, HasSubstr("not a regular file"));
  EXPECT_THAT(process.history.epochs, SizeIs(6));
  Process whole;
  whole.fit(plain_options());
  EXPECT_EQ(whole.history.step_losses, process.history.step_losses);
}

TEST(FitCheckpoint, DamagedOnesAreLeftOut) {
  const TemporaryFolder temporary;
  FitOptions options = plain_options();
  Process whole;
  whole.fit(options);
  options.checkpoint = {{.folder = temporary.path("run")}};
  Process first;
  options.epochs = 3;
  first.fit(options);
  write_bytes(temporary.path("run/" + checkpoint_name(15)), "damaged");
  std::vector<std::string> problems;
  options.on_checkpoint = [&](const CheckpointLog& log) {
    if (!log.problem.empty()) problems.push_back(log.path);
  };
  options.epochs = 6;
  options.resume = temporary.path("run");
  Process second;
  second.fit(options);
  EXPECT_THAT(problems, SizeIs(1));
  expect_same(whole, second, "damaged");
}

}  // namespace onnxgrad::train::fit_checkpoint_test
