// Fits of several workers: sources of rows, checkpoints, reasons to end, what must be the same.
#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <limits>
#include <optional>
#include <stdexcept>
#include <thread>
#include <tuple>

#include "onnxgrad/option_error.h"
#include "train/fit/array_feed.h"
#include "train/testing/temporary_folder.h"
#include "train/testing/worker_runs.h"

namespace onnxgrad::train::workers_fit_test {

using testing::AllOf;
using testing::HasSubstr;
using train_test::difference;
using train_test::expect_near;
using train_test::TemporaryFolder;
using Case = train_test::WorkerCase;
using Outcome = train_test::WorkerOutcome;
class WorkersFit : public testing::Test {};
using Link = std::shared_ptr<dist::Communicator>;

constexpr double kDouble = 1e-12;

Case adam_case(const std::string& name) {
  return {.name = name,
          .optimizer = Adam{.learning_rate = 0.02},
          .fit = {.epochs = 3, .batch_size = 6, .seed = 3}};
}

int rank_of(const Link& link) { return link == nullptr ? 0 : link->rank(); }

/// The rows of a case in chunks of seven.
class Chunks final : public DataSource {
 public:
  explicit Chunks(Dataset all) : all_(std::move(all)), rows_(all_.target.dims()[0]) {}
  std::optional<std::int64_t> num_rows() const override { return rows_; }
  void start(const Pass& /*pass*/) override { next_ = 0; }
  std::optional<Dataset> next() override {
    if (next_ >= rows_) return std::nullopt;
    const std::int64_t count = std::min<std::int64_t>(7, rows_ - next_);
    const auto part = [&](const Tensor& tensor) {
      auto dims = std::vector<std::int64_t>(tensor.dims().begin(), tensor.dims().end());
      const std::int64_t row = tensor.num_elements() / dims[0];
      dims[0] = count;
      const auto all = tensor.to_doubles();
      const auto first = all.begin() + next_ * row;
      return Tensor::from(std::vector<double>(first, first + count * row), Dims(dims))
          .cast(tensor.dtype());
    };
    Dataset chunk{.inputs = {{.name = "x", .tensor = part(all_.inputs[0].tensor)}},
                  .target = part(all_.target),
                  .first_row = next_};
    next_ += count;
    return chunk;
  }

 private:
  Dataset all_;
  std::int64_t rows_;
  std::int64_t next_ = 0;
};

/// A session of a case, and its environment.
struct Worker {
  Worker(const Case& with, const Link& link)
      : session({.file = {}, .working = train_test::network(with)}, with.loss, with.optimizer,
                options_of(with, link)),
        data(train_test::data_of(with, with.rows)) {}

  static TrainingOptions options_of(const Case& with, const Link& link) {
    TrainingOptions options = with.training;
    options.engine = {.threads = 1, .seed = 5};
    options.workers.communicator = link;
    return options;
  }
  Outcome fit(FitOptions options) {
    options.keep_step_losses = true;
    Outcome outcome;
    FitLoop(session, data, options, stop, outcome.history).run();
    outcome.state = session.state();
    return outcome;
  }

  Session session;
  Dataset data;
  StopFlag stop;
};

Outcome train_in_chunks(const Case& with, const Link& link) {
  Worker worker(with, link);
  Chunks chunks(worker.data);
  Outcome outcome;
  FitOptions options = with.fit;
  options.keep_step_losses = true;
  FitLoop(worker.session, chunks, options, worker.stop, outcome.history).run();
  outcome.state = worker.session.state();
  return outcome;
}

TEST_F(WorkersFit, ReadChunksLikeOne) {
  Case with = adam_case("chunks");
  for (const std::int64_t batch : {std::int64_t{5}, FitOptions::kAsTheyCome}) {
    with.fit.batch_size = batch;
    with.fit.validation_fraction = batch > 0 ? 0.25 : 0;
    const Outcome one = train_by(with, 1, train_in_chunks).front();
    for (const int workers : {2, 4}) {
      const auto all = train_by(with, workers, train_in_chunks);
      expect_near(one.history, all.front().history, kDouble, "chunks");
      for (std::size_t i = 0; i < one.state.size(); ++i) {
        EXPECT_LE(difference(one.state[i].tensor, all.back().state[i].tensor), kDouble);
      }
    }
  }
}

// Stopped after `steps` and resumed by `later` workers; in a folder of its own.
struct Resumed {
  Outcome stopped;
  Outcome whole;
};

Outcome train_with_checkpoints(Case with, int workers, const std::string& folder,
                               std::int64_t max_steps, bool resumes) {
  with.fit.checkpoint = CheckpointOptions{.folder = folder, .every_steps = 2, .keep = 2};
  with.fit.max_steps = max_steps;
  if (resumes) with.fit.resume = folder;
  const auto all = train_by(with, workers, [](const Case& one, const Link& link) {
    Worker worker(one, link);
    return worker.fit(one.fit);
  });
  return all.back();
}

void expect_resumes(const Case& with, int before, int after, double tolerance) {
  TemporaryFolder straight;
  TemporaryFolder stopped;
  const std::string what = fmt::format("{}: {} then {} workers", with.name, before, after);
  const Outcome whole = train_with_checkpoints(with, after, straight.path("c"), 13, false);
  train_with_checkpoints(with, before, stopped.path("c"), 7, false);
  const Outcome resumed = train_with_checkpoints(with, after, stopped.path("c"), 13, true);
  ASSERT_EQ(whole.state.size(), resumed.state.size()) << what;
  for (std::size_t i = 0; i < whole.state.size(); ++i) {
    EXPECT_LE(difference(whole.state[i].tensor, resumed.state[i].tensor), tolerance)
        << what << " " << whole.state[i].name;
  }
  ASSERT_EQ(whole.history.step_losses.size(), resumed.history.step_losses.size()) << what;
  for (std::size_t i = 0; i < whole.history.step_losses.size(); ++i) {
    EXPECT_NEAR(whole.history.step_losses[i], resumed.history.step_losses[i], tolerance) << what;
  }
}

TEST_F(WorkersFit, ResumeBitForBitWithAsManyWorkers) {
  for (const DataType dtype : {DataType::kFloat32, DataType::kFloat64}) {
    Case with = adam_case("resumed");
    with.dtype = dtype;
    with.dropout = 0.3;
    expect_resumes(with, 3, 3, 0);
    with.training.update.accumulate = 3;
    expect_resumes(with, 2, 2, 0);
    with.normalizes = true;
    expect_resumes(with, 2, 2, 0);
    with.training.workers.shares_update = true;
    expect_resumes(with, 3, 3, 0);
    with.training.workers = {.sync_every = 3};
    expect_resumes(with, 3, 3, 0);
  }
}

TEST_F(WorkersFit, ResumeWithAnotherNumberOfWorkers) {
  Case with = adam_case("resumed elsewhere");
  with.dropout = 0.3;
  for (const auto& [before, after] : {std::pair(2, 4), {3, 1}, {1, 3}}) {
    expect_resumes(with, before, after, 1e-11);
  }
  with.training.workers.shares_update = true;
  for (const auto& [before, after] : {std::pair(2, 4), {3, 1}, {1, 3}, {4, 2}}) {
    expect_resumes(with, before, after, 1e-11);
  }
}

// Whoever had which part of a slot: checkpoints give each worker its own.
TEST_F(WorkersFit, ResumeWithAndWithoutSharedUpdates) {
  Case alone = adam_case("shared or not");
  alone.hidden = 50;
  alone.fit.keep_best = true;
  Case shared = alone;
  shared.training.workers.shares_update = true;
  Case accumulates = shared;
  accumulates.training.update = {.clip_norm = 0.1, .accumulate = 2};
  Case accumulates_alone = accumulates;
  accumulates_alone.training.workers = {};
  TemporaryFolder folder;
  int number = 0;
  const auto resumed = [&](const Case& first, int before, const Case& then, int after) {
    const std::string path = folder.path(fmt::format("c{}", number++));
    train_with_checkpoints(first, before, path, 8, false);
    return train_with_checkpoints(then, after, path, 13, true);
  };
  for (const auto& [plain, zero] :
       {std::pair(&alone, &shared), {&accumulates_alone, &accumulates}}) {
    const Outcome whole =
        train_with_checkpoints(*plain, 1, folder.path(fmt::format("whole{}", number++)), 13, false);
    for (const auto& [first, before, then, after] : {std::tuple(zero, 3, zero, 3),
                                                     {zero, 3, zero, 4},
                                                     {zero, 4, plain, 1},
                                                     {zero, 2, plain, 3},
                                                     {plain, 1, zero, 4},
                                                     {plain, 3, zero, 3}}) {
      const Outcome found = resumed(*first, before, *then, after);
      ASSERT_EQ(found.history.step_losses.size(), whole.history.step_losses.size());
      for (std::size_t i = 0; i < whole.history.step_losses.size(); ++i) {
        EXPECT_NEAR(whole.history.step_losses[i], found.history.step_losses[i], 1e-11)
            << before << " then " << after;
      }
      for (std::size_t i = 0; i < 4; ++i) {
        EXPECT_LE(difference(whole.state[i].tensor, found.state[i].tensor), 1e-11)
            << before << " then " << after << " " << whole.state[i].name;
      }
    }
  }
}

// So many rows are shuffled without an array of them, in blocks.
TEST_F(WorkersFit, ShuffleManyRowsWithoutAnArray) {
  Case with = adam_case("many");
  with.rows = kMostOrdered + 1000;
  with.hidden = 2;
  with.fit = {.epochs = 1, .batch_size = 50'000, .seed = 3};
  train_test::expect_as_one(with, kDouble, {2});
  expect_resumes(with, 2, 3, 1e-11);
}

TEST_F(WorkersFit, APartThatIsMissingMakesACheckpointIncomplete) {
  TemporaryFolder folder;
  Case with = adam_case("parts");
  with.training.workers.shares_update = true;
  train_with_checkpoints(with, 2, folder.path("c"), 7, false);
  std::vector<std::string> parts;
  std::size_t num_checkpoints = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path("c"))) {
    const std::string name = entry.path().filename();
    if (name.find(".worker-1-of-2") != std::string::npos) parts.push_back(entry.path());
    num_checkpoints += checkpoint_step(name) ? 1 : 0;
  }
  std::ranges::sort(parts);
  EXPECT_EQ(parts.size(), num_checkpoints);  // parts were deleted with their checkpoints
  std::filesystem::remove(parts.back());
  const Outcome resumed = train_with_checkpoints(with, 2, folder.path("c"), 13, true);
  TemporaryFolder straight;
  const Outcome whole = train_with_checkpoints(with, 2, straight.path("c"), 13, false);
  for (std::size_t i = 0; i < whole.state.size(); ++i) {
    EXPECT_TRUE(whole.state[i].tensor.equals(resumed.state[i].tensor)) << whole.state[i].name;
  }
}

// One of three takes longer for each step: the others wait for it.
TEST_F(WorkersFit, TheHistoryNamesTheSlowestWorker) {
  TemporaryFolder folder;
  Case with = adam_case("slow");
  with.fit.checkpoint = CheckpointOptions{.folder = folder.path("c")};
  const auto run = [](const Case& one, const Link& link) {
    Worker worker(one, link);
    FitOptions options = one.fit;
    options.every_n_steps = 1;
    options.on_step_end = [&](const StepLog& /*log*/) {
      if (rank_of(link) == 1) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      return false;
    };
    return worker.fit(options);
  };
  const auto check = [](const std::vector<Outcome>& all, std::int64_t epochs) {
    for (const Outcome& one : all) {
      ASSERT_EQ(std::ssize(one.history.epochs), epochs);
      for (const EpochLog& epoch : one.history.epochs) {
        EXPECT_EQ(epoch.slowest_rank, 1);
        EXPECT_GT(epoch.slowest_lag_s, 0.01);   // in five steps
        EXPECT_GT(epoch.network_wait_s, 0.01);  // two of three wait for it
        EXPECT_LT(epoch.network_wait_s, epoch.seconds);
      }
      EXPECT_FALSE(one.history.epochs.back().slowest_host.empty());
    }
  };
  check(train_by(with, 3, run), 3);
  with.fit.resume = with.fit.checkpoint->folder;  // a checkpoint has them
  with.fit.epochs = 4;
  check(train_by(with, 3, run), 4);
  with.fit.checkpoint.reset();
  with.fit.resume.clear();
  EXPECT_EQ(train_by(with, 1).front().history.epochs[0].slowest_rank, -1);
}

// Any of them may ask: all end with the same step, or epoch.
TEST_F(WorkersFit, EndTogether) {
  for (const int stopping : {0, 2}) {
    Case with = adam_case("stopped");
    with.fit.epochs = 50;
    const auto all = train_by(with, 3, [&](const Case& one, const Link& link) {
      Worker worker(one, link);
      FitOptions options = one.fit;
      options.every_n_steps = 4;
      options.on_step_end = [&](const StepLog& log) {
        return rank_of(link) == stopping && log.step >= 8;
      };
      return worker.fit(options);
    });
    for (const Outcome& one : all) {
      EXPECT_EQ(one.history.stop_reason, "a callback asked to stop");
      EXPECT_EQ(one.history.step_losses.size(), 9U);
      EXPECT_TRUE(one.state[0].tensor.equals(all[0].state[0].tensor));
    }
    const auto at_epoch = train_by(with, 3, [&](const Case& one, const Link& link) {
      Worker worker(one, link);
      FitOptions options = one.fit;
      options.on_epoch_end = [&](const EpochLog& log) {
        return rank_of(link) == stopping && log.epoch == 2;
      };
      return worker.fit(options);
    });
    for (const Outcome& one : at_epoch) EXPECT_EQ(one.history.epochs.size(), 2U);
    const auto by_flag = train_by(with, 3, [&](const Case& one, const Link& link) {
      Worker worker(one, link);
      FitOptions options = one.fit;
      options.every_n_steps = 1;
      options.on_step_end = [&](const StepLog& log) {
        if (rank_of(link) == stopping && log.step == 3) worker.stop.stop();
        return false;
      };
      return worker.fit(options);
    });
    for (const Outcome& one : by_flag) {
      EXPECT_EQ(one.history.stop_reason, "a worker was stopped");
      EXPECT_EQ(one.history.step_losses.size(), 4U);
    }
  }
}

// The exception of an interrupt comes when all have ended, after the checkpoint.
TEST_F(WorkersFit, AnInterruptOfOneEndsAllWithACheckpoint) {
  TemporaryFolder folder;
  Case with = adam_case("interrupted");
  with.fit.checkpoint = CheckpointOptions{.folder = folder.path("c"), .every_steps = 100};
  std::atomic<int> interrupted = 0;
  const auto all = train_by(with, 3, [&](const Case& one, const Link& link) {
    Worker worker(one, link);
    FitOptions options = one.fit;
    options.keep_step_losses = true;
    options.every_n_steps = 1;
    options.on_step_end = [&](const StepLog& log) {
      if (link->rank() == 1 && log.step == 4) worker.stop.interrupt();
      return false;
    };
    options.on_interrupt = []() -> bool { throw std::runtime_error("interrupted"); };
    Outcome outcome;
    try {
      FitLoop(worker.session, worker.data, options, worker.stop, outcome.history).run();
    } catch (const std::runtime_error&) {
      ++interrupted;
    }
    return outcome;
  });
  EXPECT_EQ(interrupted, 1);
  for (const Outcome& one : all) {
    EXPECT_EQ(one.history.step_losses.size(), 5U);
    EXPECT_EQ(one.history.stop_reason, "a worker was stopped");
  }
  EXPECT_TRUE(std::filesystem::exists(folder.path("c/ck-000000000005.safetensors")));
}

// Data of one row, which only one worker reads, makes the loss infinite.
TEST_F(WorkersFit, AFaultNamesTheWorkerAndRestoresTheWeights) {
  Case with = adam_case("fault");
  with.optimizer = Sgd{.learning_rate = 0.01};
  with.fit.shuffle = false;
  const auto spoil = [](Dataset& data) {
    data.target = data.target.clone();
    data.target.mutable_data<double>()[16] = 1e300;
  };
  const auto run = [&](const Case& one, const Link& link) {
    Worker worker(one, link);
    spoil(worker.data);
    return worker.fit(one.fit);
  };
  with.fit.on_non_finite = OnNonFinite::kStop;
  const Outcome alone = train_by(with, 1, run).front();
  const auto all = train_by(with, 3, run);
  EXPECT_THAT(alone.history.stop_reason, HasSubstr("step 3"));
  for (const Outcome& one : all) {
    EXPECT_EQ(one.history.stop_reason, all[0].history.stop_reason);
    EXPECT_THAT(one.history.stop_reason,
                AllOf(HasSubstr("step 3"), HasSubstr("on rank 2 on host ")));
    for (std::size_t i = 0; i < one.state.size(); ++i) {
      EXPECT_LE(difference(alone.state[i].tensor, one.state[i].tensor), kDouble);
    }
  }
  with.fit.on_non_finite = OnNonFinite::kSkip;
  const auto skips = [&](const Case& one, const Link& link) {
    Worker worker(one, link);
    worker.session.guard_updates();
    spoil(worker.data);
    return worker.fit(one.fit);
  };
  const Outcome skipped = train_by(with, 1, skips).front();
  EXPECT_EQ(skipped.history.skipped_steps, 3);
  for (const Outcome& one : train_by(with, 3, skips)) {
    EXPECT_EQ(one.history.skipped_steps, 3);
    EXPECT_LE(difference(skipped.state[0].tensor, one.state[0].tensor), kDouble);
  }
}

// One row, which only one worker has, has a finite loss and a gradient that is not. It reaches the
// others in the sum; the worker that had it is named on all of them.
TEST_F(WorkersFit, AGradientThatIsNotFiniteNamesTheWorker) {
  train_test::Draft draft;
  ir::GraphBuilder& g = draft.g;
  ir::Value* x = draft.input("x", DataType::kFloat64, {ir::Dim::named("N"), 3});
  ir::Value* w = draft.weight("w", Tensor::from(std::vector{0.0, 0.25, 0.125}, Dims{3, 1}));
  draft.output(g.matmul(x, w), "y");
  std::vector<double> rows(std::size_t{3} * 24, 1);
  std::vector<double> target(24, 2);
  rows[std::size_t{3} * 16] = 1e300;
  target[16] = 1e10;
  const Dataset data{.inputs = {{.name = "x", .tensor = Tensor::from(rows, Dims{24, 3})}},
                     .target = Tensor::from(target, Dims{24, 1})};
  for (const bool shares : {false, true}) {
    std::vector<std::string> messages(3);
    dist::ThreadGroup group(3);
    group.run([&](dist::Communicator& link) {
      TrainingOptions options{.engine = {.threads = 1}};
      options.workers = {.communicator = train_test::shared(link), .shares_update = shares};
      Session session({.file = {}, .working = draft.model}, {}, Adam{.learning_rate = 0}, options);
      StopFlag stop;
      History history;
      const FitOptions fit{.epochs = 2, .batch_size = 6, .shuffle = false};
      try {
        FitLoop(session, data, fit, stop, history).run();
      } catch (const ConvergenceError& error) {
        messages[static_cast<std::size_t>(link.rank())] = error.what();
      }
    });
    EXPECT_THAT(messages[0], AllOf(HasSubstr("step 3"), HasSubstr("on rank 2 on host ")));
    EXPECT_EQ(messages[1], messages[0]);
    EXPECT_EQ(messages[2], messages[0]);
  }
}

// The message of the first worker's error.
std::string error_of(const std::function<void(Case&, int)>& change) {
  std::string message;
  std::mutex mutex;
  try {
    train_by(adam_case("different"), 3, [&](const Case& given, const Link& link) {
      Case mine = given;
      change(mine, link->rank());
      Worker worker(mine, link);
      try {
        return worker.fit(mine.fit);
      } catch (const OptionError& error) {
        const std::scoped_lock lock(mutex);
        EXPECT_TRUE(message.empty() || message == error.what());  // equal on all workers
        message = error.what();
        throw;
      }
    });
  } catch (const Error&) {  // NOLINT(bugprone-empty-catch): known
  }
  return message;
}

TEST_F(WorkersFit, WhatDiffersIsFoundAtTheStart) {
  EXPECT_THAT(error_of([](Case& mine, int rank) { mine.fit.batch_size = rank == 2 ? 9 : 6; }),
              AllOf(HasSubstr("batch_size differs between workers"), HasSubstr("9 on rank 2")));
  EXPECT_THAT(error_of([](Case& mine, int rank) { mine.fit.seed = rank == 1 ? 9 : 6; }),
              AllOf(HasSubstr("seed differs"), HasSubstr("on rank 1")));
  EXPECT_THAT(error_of([](Case& mine, int rank) { mine.rows = rank == 1 ? 28 : 29; }),
              HasSubstr("the number of training rows differs between workers: 29 on rank 0"));
  EXPECT_THAT(error_of([](Case& mine, int rank) {
                if (rank == 1) mine.optimizer = Adam{.learning_rate = 0.02, .beta1 = 0.8};
              }),
              HasSubstr("the graph of model, loss and optimizer differs"));
  EXPECT_THAT(error_of([](Case& mine, int rank) { mine.weight_seed = rank == 2 ? 50 : 1; }),
              AllOf(HasSubstr("the weights differs between workers"), HasSubstr("on rank 2")));
  EXPECT_EQ(error_of([](Case& /*mine*/, int /*rank*/) {}), "");
}

// The outer step by hand: each worker's steps are those of a session of its own.
TEST_F(WorkersFit, UpdateAloneAndMeetAtTheOuterStep) {
  Case with = adam_case("alone");
  with.optimizer = Sgd{.learning_rate = 0.1};
  with.rows = 24;
  with.fit = {.epochs = 1, .batch_size = 6, .shuffle = false, .max_steps = 4};
  with.training.workers = {.sync_every = 2, .outer_learning_rate = 0.6, .outer_momentum = 0.5};
  constexpr int kWorkers = 3;
  const auto all = train_by(with, kWorkers, [](const Case& one, const Link& link) {
    Worker worker(one, link);
    return worker.fit(one.fit);
  });
  Case own = with;
  own.training.workers = {};
  std::vector<std::unique_ptr<Worker>> alone;
  for (int i = 0; i < kWorkers; ++i) alone.push_back(std::make_unique<Worker>(own, nullptr));
  const auto x = alone[0]->data.inputs[0].tensor.to_doubles();
  const auto y = alone[0]->data.target.to_doubles();
  std::vector<std::vector<double>> start;
  std::vector<std::vector<double>> momentum;
  for (const NamedTensor& entry : alone[0]->session.state()) {
    start.push_back(entry.tensor.to_doubles());
    momentum.emplace_back(start.back().size(), 0.0);
  }
  for (int step = 0; step < 4; ++step) {
    double loss = 0;
    for (int i = 0; i < kWorkers; ++i) {
      const auto first = static_cast<std::size_t>(6 * step + 2 * i);
      loss += alone[static_cast<std::size_t>(i)]
                  ->session
                  .step({{.name = "x",
                          .tensor = Tensor::from(std::span(x).subspan(3 * first, 6), Dims{2, 3})},
                         {.name = "label",
                          .tensor = Tensor::from(std::span(y).subspan(first, 2), Dims{2, 1})}})
                  .loss /
              kWorkers;
    }
    EXPECT_NEAR(all[0].history.step_losses[static_cast<std::size_t>(step)], loss, kDouble);
    if (step % 2 == 0) continue;
    NamedTensors next = alone[0]->session.state();
    for (std::size_t i = 0; i < start.size(); ++i) {
      std::vector<double> mean(start[i].size(), 0);
      for (const auto& one : alone) {
        const auto now = one->session.state()[i].tensor.to_doubles();
        for (std::size_t k = 0; k < mean.size(); ++k) mean[k] += (start[i][k] - now[k]) / kWorkers;
      }
      for (std::size_t k = 0; k < mean.size(); ++k) {
        momentum[i][k] = 0.5 * momentum[i][k] + mean[k];
        start[i][k] -= 0.6 * (mean[k] + 0.5 * momentum[i][k]);
      }
      next[i].tensor = Tensor::from(start[i], next[i].tensor.dims());
    }
    for (const auto& one : alone) one->session.runner().state().load(next);
  }
  for (const Outcome& one : all) {
    for (std::size_t i = 0; i < start.size(); ++i) {
      EXPECT_LE(difference(Tensor::from(start[i], one.state[i].tensor.dims()), one.state[i].tensor),
                kDouble)
          << one.state[i].name;
    }
  }
}

TEST_F(WorkersFit, RefuseWhatMakesNoSense) {
  const auto refused = [](const std::function<void(Case&)>& change) {
    Case with = adam_case("refused");
    change(with);
    std::atomic<int> count = 0;
    try {
      train_by(with, 2, [&](const Case& one, const Link& link) {
        try {
          Worker worker(one, link);
          return worker.fit(one.fit);
        } catch (const OptionError&) {
          ++count;
          throw;
        }
      });
    } catch (const Error&) {  // NOLINT(bugprone-empty-catch): counted
    }
    return count.load();
  };
  EXPECT_EQ(refused([](Case& with) { with.fit.batch_size = 1; }), 2);
  EXPECT_EQ(refused([](Case& with) { with.training.workers.sync_every = 0; }), 2);
  EXPECT_EQ(
      refused([](Case& with) { with.training.workers = {.shares_update = true, .sync_every = 4}; }),
      2);
  EXPECT_EQ(refused([](Case& with) {
              with.optimizer = Lbfgs{};
              with.training.workers.shares_update = true;
            }),
            2);
}

}  // namespace onnxgrad::train::workers_fit_test
