#ifndef ONNXGRAD_TRAIN_TESTING_RESUMED_FIT_H_
#define ONNXGRAD_TRAIN_TESTING_RESUMED_FIT_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/philox.h"
#include "train/data/stop_flag.h"
#include "train/fit/fit_loop.h"
#include "train/testing/draft.h"
#include "train/testing/temporary_folder.h"

// Fits that are stopped and resumed, from any source of rows.

namespace onnxgrad::train_test {

/// Rows of y = 2 a - b + 0.5 with this much normal noise: x has two numbers for each, y has one.
struct LinearRows {
  explicit LinearRows(std::int64_t rows, std::uint64_t seed = 1, double noise = 1) {
    base::PhiloxStream stream(seed, base::RandomUse::kOperator, 0);
    for (std::int64_t i = 0; i < rows; ++i) {
      const double a = stream.normal();
      const double b = stream.normal();
      x.insert(x.end(), {static_cast<float>(a), static_cast<float>(b)});
      const double wrong = noise == 0 ? 0 : noise * stream.normal();
      y.push_back(static_cast<float>(2 * a - b + 0.5 + wrong));
    }
  }
  Dataset all() const {
    const auto rows = static_cast<std::int64_t>(y.size());
    return {.inputs = {{.name = "", .tensor = Tensor::from(x, Dims{rows, 2})}},
            .target = Tensor::from(y, Dims{rows})};
  }

  std::vector<float> x;
  std::vector<float> y;
};

/// A session with the environment of its loop, as in a process.
struct FitProcess {
  explicit FitProcess(const Optimizer& optimizer = Adam{.learning_rate = 0.2},
                      const Loss& loss = {})
      : session({.file = {}, .working = linear_model().model}, loss, optimizer,
                {.engine = {.threads = 1}}) {}

  const History& fit(const Dataset& data, FitOptions options) {
    options.keep_step_losses = true;
    train::FitLoop(session, data, options, stop, history).run();
    return history;
  }
  const History& fit(DataSource& source, FitOptions options) {
    options.keep_step_losses = true;
    train::FitLoop(session, source, options, stop, history).run();
    return history;
  }
  std::vector<double> weights() const { return session.state()[0].tensor.to_doubles(); }

  train::Session session;
  train::StopFlag stop;
  History history;
};

/// Expects equal bits of weights, optimizer state, rates and histories.
inline void expect_same(const FitProcess& a, const FitProcess& b, const std::string& what) {
  const NamedTensors of_a = a.session.state();
  const NamedTensors of_b = b.session.state();
  ASSERT_EQ(of_a.size(), of_b.size());
  for (std::size_t i = 0; i < of_a.size(); ++i) {
    EXPECT_TRUE(of_a[i].tensor.equals(of_b[i].tensor)) << what << " " << of_a[i].name;
  }
  EXPECT_EQ(a.session.runner().steps(), b.session.runner().steps()) << what;
  EXPECT_EQ(a.session.runner().learning_rate(), b.session.runner().learning_rate()) << what;
  EXPECT_EQ(a.history.step_losses, b.history.step_losses) << what;
  EXPECT_EQ(a.history.stop_reason, b.history.stop_reason) << what;
  EXPECT_EQ(a.history.best_epoch, b.history.best_epoch) << what;
  EXPECT_EQ(a.history.epoch_stride, b.history.epoch_stride) << what;
  ASSERT_EQ(a.history.epochs.size(), b.history.epochs.size()) << what;
  for (std::size_t i = 0; i < a.history.epochs.size(); ++i) {
    const EpochLog& left = a.history.epochs[i];
    const EpochLog& right = b.history.epochs[i];
    EXPECT_EQ(left.epoch, right.epoch) << what;
    EXPECT_EQ(left.train_loss, right.train_loss) << what << " epoch " << i;
    EXPECT_EQ(left.val_loss, right.val_loss) << what << " epoch " << i;
    EXPECT_EQ(left.val_accuracy, right.val_accuracy) << what;
    EXPECT_EQ(left.learning_rate, right.learning_rate) << what;
    EXPECT_EQ(left.steps, right.steps) << what;
    EXPECT_EQ(left.rows, right.rows) << what << " epoch " << i;
    EXPECT_EQ(left.is_best, right.is_best) << what;
  }
}

/// Ways to interrupt a training.
enum class Interruption {
  kCallback,  ///< a step's callback asks to stop
  kStop,      ///< stop(), which is checked after the next step
};

/// Trains with stops after `steps` steps, each resumed in a new process, as often as needed.
/// `make_data` creates the data of a process; `options` has no checkpoints yet.
template <class MakeData>
void expect_resumed_is_uninterrupted(const MakeData& make_data, FitOptions options,
                                     std::int64_t steps, std::int64_t every_steps,
                                     Interruption interruption, const std::string& what) {
  FitProcess whole;
  auto rows = make_data();
  whole.fit(rows, options);
  const TemporaryFolder temporary;
  options.checkpoint = {{.folder = temporary.path("run"), .every_steps = every_steps}};
  options.resume = temporary.path("run");
  options.resume_if_any = true;
  const std::string reason =
      interruption == Interruption::kStop ? "stop() was called" : "a callback asked to stop";
  for (int start = 0; start < 100; ++start) {
    FitProcess process;
    FitOptions stopped = options;
    std::int64_t done = 0;
    stopped.every_n_steps = 1;
    stopped.on_step_end = [&](const StepLog&) {
      const bool is_over = ++done == steps;
      if (is_over && interruption == Interruption::kStop) process.stop.stop();
      return is_over && interruption == Interruption::kCallback;
    };
    auto again = make_data();
    process.fit(again, stopped);
    EXPECT_EQ(process.history.checkpoint_problem, "");
    if (process.history.stop_reason == reason) continue;
    expect_same(whole, process, what);
    return;
  }
  FAIL() << "does not end";
}

}  // namespace onnxgrad::train_test

#endif  // ONNXGRAD_TRAIN_TESTING_RESUMED_FIT_H_
