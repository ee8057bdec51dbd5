#ifndef ONNXGRAD_TRAIN_TESTING_WORKER_RUNS_H_
#define ONNXGRAD_TRAIN_TESTING_WORKER_RUNS_H_

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/philox.h"
#include "dist/testing/threads.h"
#include "train/fit/fit_loop.h"
#include "train/testing/draft.h"

// Trainings by several workers, as threads of this process, beside the same one by one worker.

namespace onnxgrad::train_test {

/// A model, its rows, and the options of its training.
struct WorkerCase {
  std::string name;
  DataType dtype = DataType::kFloat64;
  Loss loss = {};
  Optimizer optimizer = Sgd{.learning_rate = 0.1};
  TrainingOptions training = {};
  FitOptions fit = {};
  double dropout = 0;
  bool normalizes = false;
  std::int64_t classes = 0;  ///< 0: a regression
  std::int64_t hidden = 5;
  std::int64_t rows = 29;
  bool has_weights = false;
  std::uint64_t weight_seed = 1;
};

inline Tensor numbers(std::uint64_t seed, const Dims& dims, DataType dtype, double scale = 1) {
  base::PhiloxStream stream(seed, base::RandomUse::kWeights, 0);
  std::vector<double> values;
  for (std::int64_t i = 0; i < dims.num_elements(); ++i) values.push_back(scale * stream.normal());
  return Tensor::from(values, dims).cast(dtype);
}

// x [N, 3] -> hidden units -> outputs; all weights but those of normalisation begin random.
inline std::shared_ptr<const ir::Model> network(const WorkerCase& with) {
  Draft draft;
  ir::GraphBuilder& g = draft.g;
  const DataType type = with.dtype;
  const std::int64_t outputs = with.classes > 0 ? with.classes : 1;
  const auto weight = [&](const char* name, std::uint64_t seed, const Dims& dims) {
    return draft.weight(name, numbers(with.weight_seed + seed, dims, type, 0.5));
  };
  ir::Value* x = draft.input("x", type, {ir::Dim::named("N"), 3});
  ir::Value* hidden =
      g.add(g.matmul(x, weight("W1", 1, Dims{3, with.hidden})), weight("b1", 2, Dims{with.hidden}));
  if (with.normalizes) {
    const auto ones = [&](const char* name, double value) {
      return draft.weight(
          name, Tensor::from(std::vector<double>(static_cast<std::size_t>(with.hidden), value),
                             Dims{with.hidden})
                    .cast(type));
    };
    hidden = g.op("BatchNormalization",
                  {hidden, ones("scale", 1), ones("bias", 0), ones("mean", 0), ones("var", 1)});
  }
  hidden = g.op("Tanh", {hidden});
  if (with.dropout > 0) {
    hidden = g.op("Dropout", {hidden, g.scalar_like(hidden, with.dropout)});
  }
  hidden = g.add(g.matmul(hidden, weight("W2", 3, Dims{with.hidden, outputs})),
                 weight("b2", 4, Dims{outputs}));
  draft.output(hidden, "y");
  return draft.model;
}

inline Dataset data_of(const WorkerCase& with, std::int64_t rows, std::uint64_t seed = 7) {
  Dataset data{.inputs = {{.name = "", .tensor = numbers(seed, Dims{rows, 3}, with.dtype)}},
               .target = {}};
  const auto x = data.inputs[0].tensor.to_doubles();
  std::vector<double> target;
  std::vector<std::int64_t> classes;
  for (std::size_t i = 0; i < static_cast<std::size_t>(rows); ++i) {
    const double value = std::sin(x[3 * i]) + x[3 * i + 1] * x[3 * i + 2];
    target.push_back(value);
    classes.push_back(i % 7 == 3 && with.name.starts_with("ignored")
                          ? -1
                          : static_cast<std::int64_t>(std::abs(value) * 10) %
                                std::max<std::int64_t>(with.classes, 1));
  }
  data.target = with.classes > 0 ? Tensor::from(classes, Dims{rows})
                                 : Tensor::from(target, Dims{rows, 1}).cast(with.dtype);
  if (with.has_weights) {
    std::vector<double> weights;
    for (std::int64_t i = 0; i < rows; ++i) weights.push_back(static_cast<double>(i % 4));
    data.sample_weight = Tensor::from(weights, Dims{rows});
  }
  return data;
}

struct WorkerOutcome {
  NamedTensors state;
  History history;
  EvaluationResult evaluation;
};

inline std::shared_ptr<dist::Communicator> shared(dist::Communicator& communicator) {
  return {std::shared_ptr<void>(), &communicator};
}

inline WorkerOutcome train_as_worker(const WorkerCase& with,
                                     std::shared_ptr<dist::Communicator> communicator) {
  TrainingOptions options = with.training;
  options.engine.threads = 1;
  options.engine.seed = 5;
  options.workers.communicator = std::move(communicator);
  train::Session session({.file = {}, .working = network(with)}, with.loss, with.optimizer,
                         options);
  const Dataset data = data_of(with, with.rows);
  const Dataset validation = data_of(with, 13, 8);
  FitOptions fit = with.fit;
  fit.keep_step_losses = true;
  if (fit.validation_fraction == 0) fit.validation = &validation;
  train::StopFlag stop;
  WorkerOutcome outcome;
  if (fit.on_non_finite == OnNonFinite::kSkip) session.guard_updates();
  session.log_gradient_norm(fit.grad_norm);
  train::FitLoop(session, data, fit, stop, outcome.history).run();
  outcome.state = session.state();
  return outcome;
}

// The outcomes of all ranks.
inline std::vector<WorkerOutcome> train_by(
    const WorkerCase& with, int workers,
    const std::function<WorkerOutcome(const WorkerCase&, std::shared_ptr<dist::Communicator>)>&
        one = train_as_worker) {
  std::vector<WorkerOutcome> outcomes(static_cast<std::size_t>(workers));
  if (workers == 1) {
    outcomes[0] = one(with, nullptr);
    return outcomes;
  }
  dist::ThreadGroup group(workers);
  group.run(
      [&](dist::Communicator& communicator) {
        outcomes[static_cast<std::size_t>(communicator.rank())] = one(with, shared(communicator));
      },
      {.timeout_s = 20});
  return outcomes;
}

inline double difference(const Tensor& a, const Tensor& b) {
  const auto x = a.to_doubles();
  const auto y = b.to_doubles();
  double most = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    most = std::max(most, std::abs(x[i] - y[i]) / std::max(1.0, std::abs(x[i])));
  }
  return most;
}

/// Relative to `a` where that is large.
inline double share_of(double a, double tolerance) {
  return tolerance * std::max(1.0, std::abs(a));
}

inline void expect_near(const History& a, const History& b, double tolerance,
                        const std::string& what) {
  ASSERT_EQ(a.step_losses.size(), b.step_losses.size()) << what;
  for (std::size_t i = 0; i < a.step_losses.size(); ++i) {
    EXPECT_NEAR(a.step_losses[i], b.step_losses[i], share_of(a.step_losses[i], tolerance))
        << what << " step " << i;
  }
  ASSERT_EQ(a.epochs.size(), b.epochs.size()) << what;
  for (std::size_t i = 0; i < a.epochs.size(); ++i) {
    const EpochLog& x = a.epochs[i];
    const EpochLog& y = b.epochs[i];
    EXPECT_NEAR(x.train_loss, y.train_loss, share_of(x.train_loss, tolerance)) << what;
    EXPECT_EQ(x.learning_rate, y.learning_rate) << what;
    EXPECT_EQ(x.rows, y.rows) << what;
    EXPECT_EQ(x.is_best, y.is_best) << what;
    ASSERT_EQ(x.val_loss.has_value(), y.val_loss.has_value()) << what;
    const double val_loss = x.val_loss.value_or(0);
    EXPECT_NEAR(val_loss, y.val_loss.value_or(0), share_of(val_loss, tolerance)) << what;
    EXPECT_NEAR(x.val_accuracy.value_or(0), y.val_accuracy.value_or(0), tolerance) << what;
    EXPECT_NEAR(x.grad_norm.value_or(0), y.grad_norm.value_or(0), 10 * tolerance) << what;
    ASSERT_EQ(x.val_metrics.size(), y.val_metrics.size()) << what;
    for (std::size_t m = 0; m < x.val_metrics.size(); ++m) {
      EXPECT_NEAR(x.val_metrics[m].second, y.val_metrics[m].second, tolerance) << what;
    }
  }
  EXPECT_EQ(a.stop_reason, b.stop_reason) << what;
  EXPECT_EQ(a.best_epoch, b.best_epoch) << what;
  EXPECT_EQ(a.skipped_steps, b.skipped_steps) << what;
}

// n workers: near to one in every number; each rank the same bits as the others.
inline void expect_as_one(const WorkerCase& with, double tolerance,
                          const std::vector<int>& counts = {2, 3, 4}) {
  const WorkerOutcome one = train_by(with, 1).front();
  for (const int workers : counts) {
    const std::string what = fmt::format("{} with {} workers", with.name, workers);
    SCOPED_TRACE(what);
    const auto all = train_by(with, workers);
    expect_near(one.history, all.front().history, tolerance, what);
    ASSERT_EQ(one.state.size(), all.front().state.size());
    for (std::size_t i = 0; i < one.state.size(); ++i) {
      EXPECT_LE(difference(one.state[i].tensor, all.front().state[i].tensor), tolerance)
          << what << " " << one.state[i].name;
      for (const WorkerOutcome& other : all) {
        if (one.state[i].name.starts_with("accumulated/")) continue;  // each rank's part
        EXPECT_TRUE(other.state[i].tensor.equals(all.front().state[i].tensor))
            << what << " " << one.state[i].name;
      }
    }
    for (const WorkerOutcome& other : all) {
      EXPECT_EQ(other.history.step_losses, all.front().history.step_losses) << what;
    }
  }
}

}  // namespace onnxgrad::train_test

#endif  // ONNXGRAD_TRAIN_TESTING_WORKER_RUNS_H_
