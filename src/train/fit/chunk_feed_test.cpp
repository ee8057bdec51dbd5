// The epoch loop over data that comes in chunks: the same promises as for arrays.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cmath>
#include <functional>
#include <limits>

#include "train/testing/resumed_fit.h"

namespace onnxgrad::train::chunk_feed_test {

using testing::Each;
using testing::HasSubstr;
using testing::Truly;
using train_test::FitProcess;
using train_test::Interruption;
using train_test::LinearRows;
using train_test::TemporaryFolder;

/// In chunks of so many rows.
class NoisyChunks final : public LinearRows, public DataSource {
 public:
  explicit NoisyChunks(std::int64_t rows = 47, std::int64_t chunk = 6, std::uint64_t seed = 1)
      : LinearRows(rows, seed), rows_(rows), chunk_(chunk) {}
  std::optional<std::int64_t> num_rows() const override { return rows_; }
  void start(const Pass& pass) override {
    // The chunks of epoch e begin with chunk e: a function of the epoch alone.
    const std::int64_t chunks = (rows_ + chunk_ - 1) / chunk_;
    order_.clear();
    for (std::int64_t c = 0; c < chunks; ++c) {
      order_.push_back(pass.shuffle ? (c + pass.epoch) % chunks : c);
    }
    ++passes;
    next_ = 0;
  }
  std::optional<Dataset> next() override {
    if (next_ >= order_.size()) return std::nullopt;
    const std::int64_t first = order_[next_++] * chunk_;
    return rows(first, std::min(chunk_, rows_ - first));
  }
  Dataset rows(std::int64_t first, std::int64_t count) const {
    const auto f = static_cast<std::size_t>(first);
    const auto n = static_cast<std::size_t>(count);
    return {
        .inputs = {{.name = "x",
                    .tensor = Tensor::from(std::span(x).subspan(2 * f, 2 * n), Dims{count, 2})}},
        .target = Tensor::from(std::span(y).subspan(f, n), Dims{count}),
        .first_row = first};
  }

  int passes = 0;

 private:
  std::int64_t rows_;
  std::int64_t chunk_;
  std::vector<std::int64_t> order_;
  std::size_t next_ = 0;
};

struct Process : FitProcess {
  using FitProcess::FitProcess;
  const History& fit(const FitOptions& options) { return FitProcess::fit(source, options); }

  NoisyChunks source;
};

/// Blocks of 10 to 20 rows, so that an epoch has several.
FitOptions small_blocks() { return {.epochs = 4, .batch_size = 5, .buffer_bytes = 2 * 10 * 20}; }

void expect_resumed_is_uninterrupted(const FitOptions& options, std::int64_t steps,
                                     std::int64_t every_steps, const std::string& what) {
  const auto make_data = [] { return NoisyChunks(); };
  train_test::expect_resumed_is_uninterrupted(make_data, options, steps, every_steps,
                                              Interruption::kCallback, what);
}

TEST(ChunkFeed, ResumedIsUninterrupted) {
  struct Case {
    std::string name;
    std::function<void(FitOptions&)> change;
  };
  const std::vector<Case> cases{
      {"blocks", [](FitOptions&) {}},
      {"one block", [](FitOptions& o) { o.buffer_bytes = 2 << 20; }},
      {"in order", [](FitOptions& o) { o.shuffle = false; }},
      {"drop_last", [](FitOptions& o) { o.drop_last = true; }},
      {"as they come", [](FitOptions& o) { o.batch_size = FitOptions::kAsTheyCome; }},
      {"validation share",
       [](FitOptions& o) {
         o.validation_fraction = 0.3;
         o.early_stopping = {{.patience = 1, .min_delta = 0.01}};
       }},
      {"schedule", [](FitOptions& o) { o.schedule = OneCycle{}; }},
      {"no snapshots", [](FitOptions& o) { o.on_non_finite = OnNonFinite::kIgnore; }},
  };
  for (const Case& test : cases) {
    FitOptions options = small_blocks();
    test.change(options);
    expect_resumed_is_uninterrupted(options, 3, 0, test.name);
    expect_resumed_is_uninterrupted(options, 7, 2, test.name + ", every second step");
  }
}

TEST(ChunkFeed, OtherRowsAreNoticed) {
  const TemporaryFolder temporary;
  FitOptions options = small_blocks();
  options.checkpoint = {{.folder = temporary.path("run")}};
  FitOptions stopped = options;
  stopped.every_n_steps = 13;
  stopped.on_step_end = [](const StepLog&) { return true; };
  Process().fit(stopped);
  options.resume = temporary.path("run");
  struct Case {
    std::string expected;
    std::function<void(Process&, FitOptions&)> change;
  };
  const Dataset held_out = NoisyChunks(10, 10, 2).all();
  const std::vector<Case> cases{
      {"different training or validation rows",
       [](Process& p, FitOptions&) { p.source.y[20] += 1; }},
      {"buffer_bytes is 400 in the checkpoint, 200 now",
       [](Process&, FitOptions& o) { o.buffer_bytes = 200; }},
      {"different training or validation rows",
       [&held_out](Process&, FitOptions& o) { o.validation = &held_out; }},
      {"seed is 0 in the checkpoint, 1 now", [](Process&, FitOptions& o) { o.seed = 1; }},
      {"batch_size is 5 in the checkpoint, as they come now",
       [](Process&, FitOptions& o) { o.batch_size = FitOptions::kAsTheyCome; }},
  };
  for (const Case& test : cases) {
    Process process;
    FitOptions other = options;
    test.change(process, other);
    try {
      process.fit(other);
      ADD_FAILURE() << "accepted: " << test.expected;
    } catch (const CheckpointError& error) {
      EXPECT_THAT(error.what(), HasSubstr(test.expected));
      EXPECT_NE(error.problem().hint.text(), "");
    }
    EXPECT_THAT(process.weights(), Each(0)) << test.expected;
    EXPECT_EQ(process.session.runner().steps(), 0);
  }
}

// A fit from chunks ends like a fit from arrays, which fit_loop_test.cpp compares with steps.
TEST(ChunkFeed, AFaultIsFoundAndTheLastFiniteWeightsStay) {
  for (const std::int64_t batch_size : {std::int64_t{6}, FitOptions::kAsTheyCome}) {
    for (const std::int64_t every : {0, 1, 3}) {
      const auto rates = [](std::int64_t step) {
        return step == 12 ? 1e35 : 0.1 / static_cast<double>(step + 1);
      };
      FitOptions options{.epochs = 3, .batch_size = 6, .shuffle = false};
      options.learning_rate = rates;
      Process arrays(Sgd{.learning_rate = 0.1});
      std::string expected;
      try {
        const Dataset rows = arrays.source.all();
        arrays.FitProcess::fit(rows, options);
      } catch (const ConvergenceError& error) {
        expected = error.what();
      }
      EXPECT_THAT(expected, HasSubstr("at epoch 2, step 14 (batch 6, rows 30, 31, 32, 33, ...)"));
      options.batch_size = batch_size;
      options.buffer_bytes = 2 * 12 * 12;
      options.snapshot_every_steps = every;
      Process chunks(Sgd{.learning_rate = 0.1});
      try {
        chunks.fit(options);
        ADD_FAILURE() << "no error";
      } catch (const ConvergenceError& error) {
        if (every == 0) {
          EXPECT_EQ(error.what(), expected);
        }
        EXPECT_THAT(error.what(), HasSubstr("the first value that is not finite is"));
      }
      EXPECT_EQ(chunks.weights(), arrays.weights()) << batch_size << " " << every;
      EXPECT_EQ(chunks.session.runner().steps(), arrays.session.runner().steps());
    }
  }
}

// The update of the last step of a block overflows: no loss of the block shows it.
TEST(ChunkFeed, AFaultInTheLastStepOfABlockIsFoundBeforeItsRowsAreGone) {
  for (const std::int64_t batch_size : {std::int64_t{5}, FitOptions::kAsTheyCome}) {
    for (const std::int64_t bad_step : {3, 7, 9}) {
      FitOptions options = small_blocks();
      options.batch_size = batch_size;
      options.on_non_finite = OnNonFinite::kStop;
      options.learning_rate = [bad_step](std::int64_t step) {
        return step == bad_step ? std::numeric_limits<double>::infinity() : 0.1;
      };
      Process process(Sgd{.learning_rate = 0.1});
      EXPECT_THAT(process.fit(options).stop_reason, HasSubstr("not finite"));
      EXPECT_EQ(process.session.runner().steps(), bad_step);
      EXPECT_THAT(process.weights(), Each(Truly([](double w) { return std::isfinite(w); })));
    }
  }
}

TEST(ChunkFeed, FaultsCanPass) {
  FitOptions options = small_blocks();
  options.learning_rate = [](std::int64_t step) { return step == 3 ? 1e35 : 0.1; };
  options.on_non_finite = OnNonFinite::kIgnore;
  Process process(Sgd{.learning_rate = 0.1});
  EXPECT_EQ(process.fit(options).epochs.size(), 4U);
}

TEST(ChunkFeed, SnapshotsAreCounted) {
  FitOptions options = small_blocks();
  Process process;
  std::int64_t bytes = 0;
  options.on_epoch_end = [&](const EpochLog&) {
    bytes = process.session.memory().snapshots;
    return false;
  };
  options.on_non_finite = OnNonFinite::kIgnore;
  process.fit(options);
  EXPECT_EQ(bytes, 0);
  options.on_non_finite = OnNonFinite::kRaise;
  process.fit(options);
  std::int64_t state = 0;
  for (const NamedTensor& tensor : process.session.state()) state += tensor.tensor.size_bytes();
  EXPECT_EQ(bytes, state);
}

}  // namespace onnxgrad::train::chunk_feed_test
