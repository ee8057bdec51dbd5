// Options of several workers crossed with those of a fit: rows of a table in which every pair of
// values occurs, each beside the same training by one worker.
#include <gmock/gmock.h>

#include <fmt/ranges.h>

#include <array>
#include <optional>
#include <string>
#include <utility>

#include "train/testing/worker_runs.h"

namespace onnxgrad::train::workers_crossing_test {

using train_test::difference;
using train_test::Draft;
using train_test::numbers;
using Link = std::shared_ptr<dist::Communicator>;
class WorkersCrossing : public testing::Test {};

enum Factor : std::size_t {
  kPrecision,   // float32, bf16, fp16
  kByValue,     // shapes that depend on values
  kLimit,       // memory_limit
  kBatches,     // even, uneven, of changing lengths
  kAccumulate,  // 1, 2, 3
  kClip,        // no, by norm, by value
  kShare,       // all update all, zero, sync_every
  kOptimizer,   // momentum, Adam
  kNumWorkers,  // 2, 3
  kNumFactors
};
using Row = std::array<int, kNumFactors>;
constexpr Row kNumLevels{3, 2, 2, 3, 3, 3, 3, 2, 2};

// Rows are added that have the most pairs of values that no row before has; candidates are drawn.
std::vector<Row> pairwise_rows() {
  using Pair = std::array<std::size_t, 4>;
  std::vector<Pair> missing;
  for (std::size_t a = 0; a < kNumFactors; ++a) {
    for (std::size_t b = a + 1; b < kNumFactors; ++b) {
      for (std::size_t x = 0; x < static_cast<std::size_t>(kNumLevels[a]); ++x) {
        for (std::size_t y = 0; y < static_cast<std::size_t>(kNumLevels[b]); ++y) {
          missing.push_back({a, b, x, y});
        }
      }
    }
  }
  const auto has = [](const Row& row, const Pair& pair) {
    return row[pair[0]] == static_cast<int>(pair[2]) && row[pair[1]] == static_cast<int>(pair[3]);
  };
  base::PhiloxStream stream(11, base::RandomUse::kWeights, 0);
  std::vector<Row> rows;
  while (!missing.empty()) {
    Row best{};
    std::ptrdiff_t most = 0;
    for (int candidate = 0; candidate < 60; ++candidate) {
      Row row{};
      for (std::size_t f = 0; f < kNumFactors; ++f) {
        row[f] = static_cast<int>(std::abs(stream.normal()) * 1000) % kNumLevels[f];
      }
      row[missing.front()[0]] = static_cast<int>(missing.front()[2]);
      row[missing.front()[1]] = static_cast<int>(missing.front()[3]);
      const auto covered =
          std::ranges::count_if(missing, [&](const Pair& pair) { return has(row, pair); });
      if (covered > most) best = row;
      most = std::max(most, covered);
    }
    std::erase_if(missing, [&](const Pair& pair) { return has(best, pair); });
    rows.push_back(best);
  }
  return rows;
}

// x [N, T, 3] -> 32 hidden units, whose mean over T goes to one output. With shapes that depend on
// values, rows whose first unit is positive are found by NonZero and taken through another layer.
std::shared_ptr<const ir::Model> network(bool by_value) {
  Draft draft;
  ir::GraphBuilder& g = draft.g;
  constexpr DataType kType = DataType::kFloat32;
  constexpr std::int64_t kHidden = 32;
  const auto weight = [&](const char* name, std::uint64_t seed, const Dims& dims) {
    return draft.weight(name, numbers(seed, dims, kType, 0.4));
  };
  ir::Value* x = draft.input("x", kType, {ir::Dim::named("N"), ir::Dim::named("T"), 3});
  ir::Value* hidden =
      g.op("Tanh",
           {g.add(g.matmul(x, weight("W1", 1, Dims{3, kHidden})), weight("b1", 2, Dims{kHidden}))});
  for (const char* name : {"V1", "V2", "V3", "V4", "V5"}) {
    ir::Value* layer =
        g.matmul(hidden, weight(name, static_cast<std::uint64_t>(name[1]), Dims{kHidden, kHidden}));
    hidden = g.op("Tanh", {g.add(hidden, layer)});
  }
  hidden = g.reduce_mean(hidden, {1}, false);
  if (by_value) {
    ir::Value* first = g.slice(hidden, {0}, {1}, {1});
    ir::Value* positive = g.squeeze(g.greater(first, g.scalar_like(first, 0)), {1});
    ir::Value* where = g.transpose(g.op("NonZero", {positive}), {1, 0});
    ir::Value* chosen = g.op("GatherND", {hidden, where});
    ir::Value* changed = g.op("Tanh", {g.matmul(chosen, weight("W2", 3, Dims{kHidden, kHidden}))});
    hidden = g.op("ScatterND", {hidden, where, changed});
  }
  draft.output(g.add(g.matmul(hidden, weight("W3", 4, Dims{kHidden, 1})), weight("b3", 5, Dims{1})),
               "y");
  return draft.model;
}

Dataset rows_of(std::int64_t rows, std::int64_t length, std::uint64_t seed) {
  Dataset data{
      .inputs = {{.name = "x", .tensor = numbers(seed, Dims{rows, length, 3}, DataType::kFloat32)}},
      .target = {}};
  const auto x = data.inputs[0].tensor.to_doubles();
  std::vector<double> target;
  for (std::int64_t i = 0; i < rows; ++i) {
    target.push_back(std::sin(x[static_cast<std::size_t>(3 * length * i)]));
  }
  data.target = Tensor::from(target, Dims{rows, 1}).cast(DataType::kFloat32);
  return data;
}

/// Batches as they come, of sequences of several lengths.
class Sequences final : public DataSource {
 public:
  std::optional<std::int64_t> num_rows() const override { return 56; }
  void start(const Pass& /*pass*/) override { next_ = 0; }
  std::optional<Dataset> next() override {
    if (next_ == 4) return std::nullopt;
    Dataset chunk = rows_of(14, 10 + next_ % 3, static_cast<std::uint64_t>(next_));
    chunk.first_row = 14 * next_++;
    return chunk;
  }

 private:
  std::int64_t next_ = 0;
};

TrainingOptions options_of(const Row& row, const Link& link) {
  TrainingOptions options;
  options.engine = {.threads = 1, .seed = 5};
  options.precision.type =
      std::array{Precision::kFloat32, Precision::kBfloat16,
                 Precision::kFloat16}[static_cast<std::size_t>(row[kPrecision])];
  options.update.accumulate = row[kAccumulate] + 1;
  if (row[kClip] == 1) options.update.clip_norm = 0.1;
  if (row[kClip] == 2) options.update.clip_value = 0.01;
  options.workers.communicator = link;
  options.workers.shares_update = row[kShare] == 1;
  if (row[kShare] == 2) {  // a mean of the workers' weights
    options.workers.sync_every = 2;
    options.workers.outer_learning_rate = 1;
    options.workers.outer_momentum = 0;
  }
  return options;
}

// The least limit in which the largest plan of this worker fits, which the error names; with shapes
// that depend on values, one in which all fits. Plans are made alone: no worker waits for another.
std::int64_t tight_limit(const Row& row, const std::shared_ptr<const ir::Model>& model,
                         const Optimizer& optimizer, TrainingOptions options) {
  const std::int64_t rows = (15 + row[kNumWorkers] + 1) / (row[kNumWorkers] + 2);
  const auto prepare = [&](std::int64_t limit) {
    options.engine.memory_limit_bytes = limit;
    Session session({.file = {}, .working = model}, {}, optimizer, options);
    session.runner().prepare({Dims{rows, 12, 3}, Dims{rows, 1}});
    return session.memory();
  };
  const MemoryReport use = prepare(0);
  const std::int64_t state = use.weights + use.optimizer_state + use.constants;
  if (row[kByValue] == 1) return 4 * (state + use.scratch + use.dynamic + use.activations);
  for (const std::int64_t part : {2, 3, 4, 8, 16}) {  // a device has a limit of its own
    try {
      prepare(state + (use.scratch + use.activations) / part);
    } catch (const Error& error) {
      const std::string text = error.what();
      const std::string before = "The least limit that works is ";
      const std::size_t at = text.find(before);
      if (at != std::string::npos) {
        // Plans of other shapes take a little more.
        return std::stoll(text.substr(at + before.size())) + (use.scratch + use.activations) / 4;
      }
    }
  }
  ADD_FAILURE() << "a sixteenth of the memory is enough";
  return 0;
}

struct Outcome {
  NamedTensors weights;
  History history;
  std::int64_t recomputed = 0;
};

Outcome train(const Row& row, const Link& link) {
  const auto model = network(row[kByValue] == 1);
  // Small steps: means of weights that were updated apart are near to weights updated together.
  const Optimizer optimizer = row[kOptimizer] == 0
                                  ? Optimizer(Sgd{.learning_rate = 0.002, .momentum = 0.9})
                                  : Optimizer(Adam{.learning_rate = 0.0005});
  TrainingOptions options = options_of(row, link);
  FitOptions fit{
      .epochs = 3,
      .batch_size = std::array{std::int64_t{14}, std::int64_t{15},
                               FitOptions::kAsTheyCome}[static_cast<std::size_t>(row[kBatches])],
      .seed = 3,
      .keep_step_losses = true};
  fit.on_non_finite = OnNonFinite::kIgnore;
  Outcome outcome;
  if (row[kLimit] == 1 && link != nullptr) {
    options.engine.memory_limit_bytes = tight_limit(row, model, optimizer, options);
  }
  Session session({.file = {}, .working = model}, {}, optimizer, options);
  StopFlag stop;
  if (row[kBatches] == 2) {
    Sequences source;
    FitLoop(session, source, fit, stop, outcome.history).run();
  } else {
    FitLoop(session, rows_of(56, 12, 9), fit, stop, outcome.history).run();
  }
  outcome.weights = session.weights();
  outcome.recomputed = session.memory().recomputed_bytes;
  return outcome;
}

std::vector<Outcome> train_by(const Row& row, int workers) {
  std::vector<Outcome> all(static_cast<std::size_t>(workers));
  if (workers == 1) {
    all[0] = train(row, nullptr);
    return all;
  }
  dist::ThreadGroup group(workers);
  group.run(
      [&](dist::Communicator& link) {
        all[static_cast<std::size_t>(link.rank())] = train(row, train_test::shared(link));
      },
      {.timeout_s = 20});
  return all;
}

std::string text_of(const Row& row) { return fmt::format("{}", fmt::join(row, " ")); }

TEST_F(WorkersCrossing, EveryPairOfOptions) {
  bool has_recomputed = false;
  for (const Row& row : pairwise_rows()) {
    SCOPED_TRACE(text_of(row));
    Row alone = row;
    alone[kShare] = alone[kLimit] = 0;
    const Outcome one = train_by(alone, 1).front();
    const auto all = train_by(row, row[kNumWorkers] + 2);
    double tolerance = row[kPrecision] == 0 ? 2e-5 : 2e-3;
    if (row[kShare] == 2) tolerance = 0.15;  // weights go apart for two steps
    ASSERT_EQ(one.history.step_losses.size(), all[0].history.step_losses.size());
    for (std::size_t i = 0; i < one.history.step_losses.size(); ++i) {
      EXPECT_NEAR(one.history.step_losses[i], all[0].history.step_losses[i], tolerance) << i;
    }
    EXPECT_LT(all[0].history.epochs.back().train_loss, all[0].history.epochs.front().train_loss);
    for (const Outcome& other : all) {
      EXPECT_EQ(other.history.step_losses, all[0].history.step_losses);
      has_recomputed = has_recomputed || other.recomputed > 0;
      for (std::size_t i = 0; i < one.weights.size(); ++i) {
        EXPECT_TRUE(other.weights[i].tensor.equals(all[0].weights[i].tensor));
        EXPECT_LE(difference(one.weights[i].tensor, other.weights[i].tensor), tolerance)
            << one.weights[i].name;
      }
    }
  }
  EXPECT_TRUE(has_recomputed);
}

// Gradients of one worker's rows are too large for half precision: all halve their scale, and none
// updates.
TEST_F(WorkersCrossing, TheLossScaleIsThatOfAll) {
  constexpr Row kRow{2, 0, 0, 0, 0, 0, 0, 0, 0};
  const auto run = [&](const Link& link, bool shares) {
    TrainingOptions options = options_of(kRow, link);
    options.workers.shares_update = shares;
    options.precision.loss_scale = 1 << 24;
    options.precision.growth_interval = 3;
    Session session({.file = {}, .working = network(false)}, {}, Sgd{.learning_rate = 0.001},
                    options);
    Dataset data = rows_of(56, 12, 9);
    data.target = data.target.clone();
    data.target.mutable_data<float>()[13] = 3e3F;  // the last row of the first batch
    FitOptions fit{.epochs = 2, .batch_size = 14, .shuffle = false, .keep_step_losses = true};
    StopFlag stop;
    Outcome outcome;
    FitLoop(session, data, fit, stop, outcome.history).run();
    outcome.weights = session.state();
    return outcome;
  };
  const Outcome one = run(nullptr, false);
  for (const bool shares : {false, true}) {
    std::vector<Outcome> all(3);
    dist::ThreadGroup group(3);
    group.run([&](dist::Communicator& link) {
      all[static_cast<std::size_t>(link.rank())] = run(train_test::shared(link), shares);
    });
    for (const Outcome& other : all) {
      for (std::size_t i = 0; i < one.weights.size(); ++i) {
        const NamedTensor& mine = one.weights[i];
        ASSERT_EQ(mine.name, other.weights[i].name) << shares;
        const bool is_count = mine.name == "loss_scale" || mine.name == "steps_since_overflow";
        EXPECT_LE(difference(mine.tensor, other.weights[i].tensor), is_count ? 0 : 1e-2)
            << mine.name;
      }
    }
    const auto scale = std::ranges::find(one.weights, "loss_scale", &NamedTensor::name);
    ASSERT_NE(scale, one.weights.end());
    EXPECT_LT(scale->tensor.to_doubles().front(), 1 << 24);
  }
}

}  // namespace onnxgrad::train::workers_crossing_test
