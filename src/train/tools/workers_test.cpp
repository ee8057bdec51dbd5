#include "train/tools/workers.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cstdlib>
#include <span>
#include <string_view>

#include "train/testing/worker_runs.h"

// n workers do what one does: every part of a training is run by 1, 2, 3 and 4 of them.

namespace onnxgrad::train::workers_test {

using train_test::difference;
using train_test::expect_as_one;
using train_test::expect_near;
using train_test::train_by;
using Case = train_test::WorkerCase;
using Outcome = train_test::WorkerOutcome;
class Workers : public testing::Test {};

FitOptions two_epochs(std::int64_t batch = 8) {
  return {.epochs = 2, .batch_size = batch, .seed = 3};
}

constexpr double kDouble = 1e-12;
constexpr double kFloat = 2e-5;

TEST_F(Workers, GiveWhatOneGives) {
  for (const std::int64_t batch : {4, 8, 29, 40}) {
    expect_as_one({.name = fmt::format("batch {}", batch), .fit = two_epochs(batch)}, kDouble);
  }
  expect_as_one({.name = "float32", .dtype = DataType::kFloat32, .fit = two_epochs()}, kFloat);
}

// 29 rows in batches of 14: the last one has a row, so that other workers have none.
TEST_F(Workers, SomeHaveNoRows) {
  for (const bool drop_last : {false, true}) {
    Case with{.name = "empty slices", .fit = two_epochs(14)};
    with.fit.drop_last = drop_last;
    expect_as_one(with, kDouble);
    with.normalizes = true;
    with.training.workers.sync_normalization = true;
    expect_as_one(with, kDouble);
  }
}

std::vector<Optimizer> all_optimizers() {
  return {Sgd{.learning_rate = 0.05, .momentum = 0.9, .weight_decay = 0.01},
          Adam{.learning_rate = 0.01},
          AdamW{.learning_rate = 0.01},
          RmsProp{.learning_rate = 0.01},
          Adagrad{.learning_rate = 0.1},
          Lion{.learning_rate = 0.003},
          Lamb{.learning_rate = 0.01},
          Muon{.learning_rate = 0.01}};
}

TEST_F(Workers, EveryOptimizer) {
  for (const Optimizer& optimizer : all_optimizers()) {
    const std::string name = fmt::format("optimizer {}", optimizer.index());
    expect_as_one({.name = name, .optimizer = optimizer, .fit = two_epochs()}, 1e-11, {3});
  }
}

TEST_F(Workers, LbfgsTakesTheSameSteps) {
  // Its line search divides by small differences of losses.
  expect_as_one({.name = "L-BFGS", .optimizer = Lbfgs{}, .fit = {.epochs = 2}}, 1e-4);
}

TEST_F(Workers, EveryKindOfUpdate) {
  const auto with = [](const std::string& name, const UpdateOptions& update) {
    return Case{.name = name,
                .optimizer = Adam{.learning_rate = 0.02},
                .training = {.update = update},
                .fit = two_epochs(6)};
  };
  expect_as_one(with("accumulated", {.accumulate = 3}), kDouble);
  expect_as_one(with("clipped", {.clip_norm = 0.05}), kDouble);
  expect_as_one(with("clipped values", {.clip_value = 0.01}), kDouble);
  Case all = with("accumulated and clipped", {.clip_norm = 0.1, .accumulate = 2});
  all.fit.grad_norm = true;
  expect_as_one(all, kDouble);
  all.fit.on_non_finite = OnNonFinite::kSkip;
  expect_as_one(all, kDouble);
}

// The parts of a state on all workers, one after another.
std::vector<double> joined(const std::vector<Outcome>& all, const std::string& name) {
  std::vector<double> numbers;
  for (const Outcome& one : all) {
    const auto found = std::ranges::find(one.state, name, &NamedTensor::name);
    if (found == one.state.end()) continue;
    const auto own = found->tensor.to_doubles();
    numbers.insert(numbers.end(), own.begin(), own.end());
  }
  return numbers;
}

// Each element of a slot is on one worker; weights and results are those of one worker.
void expect_shared(Case with, double tolerance, const std::vector<int>& counts = {2, 3, 4}) {
  with.training.workers.shares_update = true;
  const Outcome one = train_by(with, 1).front();
  for (const int workers : counts) {
    const std::string what = fmt::format("{} with {} workers", with.name, workers);
    const auto all = train_by(with, workers);
    expect_near(one.history, all.front().history, tolerance, what);
    std::size_t num_slots = 0;
    for (const NamedTensor& entry : one.state) {
      if (entry.name.starts_with("accumulated/")) continue;
      const bool is_slot = entry.name.find('/') != std::string::npos;
      if (is_slot) {
        ++num_slots;
        const auto numbers = joined(all, entry.name);
        ASSERT_EQ(std::ssize(numbers), entry.tensor.num_elements()) << what << " " << entry.name;
        EXPECT_LE(difference(entry.tensor, Tensor::from(numbers, entry.tensor.dims())), tolerance)
            << what << " " << entry.name;
        continue;
      }
      for (const Outcome& other : all) {
        const auto found = std::ranges::find(other.state, entry.name, &NamedTensor::name);
        if (found == other.state.end() && entry.name == "step_count") continue;
        ASSERT_NE(found, other.state.end()) << what << " " << entry.name;
        EXPECT_LE(difference(entry.tensor, found->tensor), tolerance) << what << " " << entry.name;
      }
    }
    EXPECT_GT(num_slots, 0U);
  }
}

// Every weight of every worker.
void expect_as_one_in_weights(const Case& with, int workers) {
  const std::string what = fmt::format("{} with {} workers", with.name, workers);
  const Outcome one = train_by(with, 1).front();
  for (const Outcome& other : train_by(with, workers)) {
    expect_near(one.history, other.history, kDouble, what);
    for (const NamedTensor& entry : one.state) {
      const bool is_slot = entry.name.find('/') != std::string::npos || entry.name == "step_count";
      if (is_slot) continue;  // only its owner has it
      const auto found = std::ranges::find(other.state, entry.name, &NamedTensor::name);
      ASSERT_NE(found, other.state.end()) << what << " " << entry.name;
      EXPECT_LE(difference(entry.tensor, found->tensor), kDouble) << what << " " << entry.name;
    }
  }
}

TEST_F(Workers, ShareTheUpdate) {
  Case with{
      .name = "zero", .optimizer = Adam{.learning_rate = 0.02}, .fit = two_epochs(), .hidden = 50};
  expect_shared(with, kDouble);
  with.training.update = {.clip_norm = 0.05};
  with.fit.grad_norm = true;
  expect_shared(with, kDouble);
  with.training.update.accumulate = 3;
  expect_shared(with, kDouble);
  with.fit.on_non_finite = OnNonFinite::kSkip;
  with.optimizer = Lamb{.learning_rate = 0.01};
  expect_shared(with, kDouble);
  with.training.workers.as_bfloat16 = true;
  with.dtype = DataType::kFloat32;
  with.optimizer = AdamW{.learning_rate = 0.01};
  expect_shared(with, 2e-2);
}

TEST_F(Workers, ShareTheUpdateOfEveryOptimizer) {
  for (const Optimizer& optimizer : all_optimizers()) {
    const std::string name = fmt::format("optimizer {}", optimizer.index());
    Case with{.name = name, .optimizer = optimizer, .fit = two_epochs(), .hidden = 50};
    with.fit.epochs = 1;
    expect_shared(with, 1e-11, {3});
    with.training.update = {
        .groups = {{.patterns = {"b*"}, .rate_factor = 0.5, .weight_decay = 0.1},
                   {.patterns = {"W2"}, .optimizer = Lamb{.learning_rate = 0.01}}},
        .accumulate = 2};
    expect_shared(with, 1e-11, {3});
  }
}

// The update of an element is the same, whoever does it.
TEST_F(Workers, ShareTheUpdateWithTheSameBits) {
  for (const Optimizer& optimizer : all_optimizers()) {
    Case with{.name = fmt::format("optimizer {}", optimizer.index()),
              .dtype = DataType::kFloat32,
              .optimizer = optimizer,
              .fit = two_epochs(),
              .hidden = 77};
    with.training.frozen = {"b2"};
    const auto alone = train_by(with, 3);
    with.training.workers.shares_update = true;
    const auto shared = train_by(with, 3);
    EXPECT_EQ(alone[0].history.step_losses, shared[2].history.step_losses) << with.name;
    for (const NamedTensor& entry : alone[0].state) {
      const auto numbers = joined(shared, entry.name);
      const bool is_slot = entry.name.find('/') != std::string::npos;
      const std::size_t own = numbers.size() / (is_slot ? 1 : shared.size());
      ASSERT_EQ(static_cast<std::int64_t>(own), entry.tensor.num_elements()) << entry.name;
      EXPECT_TRUE(std::ranges::equal(entry.tensor.to_doubles(), std::span(numbers).first(own)))
          << with.name << " " << entry.name;
    }
  }
}

// Each worker has 1/n of the bytes of two slots, 16 elements more or less for each bucket.
TEST_F(Workers, ShareTheMemoryOfSlots) {
  for (const std::int64_t hidden : {std::int64_t{300}, std::int64_t{100'000}}) {
    Case with{.name = "memory",
              .dtype = DataType::kFloat32,
              .optimizer = Adam{.learning_rate = 0.02},
              .hidden = hidden,
              .rows = 8};
    with.fit = {.epochs = 1, .batch_size = 8};
    with.training.workers.shares_update = true;
    const auto bytes_of = [&](int workers) {
      std::vector<std::int64_t> bytes(static_cast<std::size_t>(workers), 0);
      train_by(with, workers, [&](const Case& one, std::shared_ptr<dist::Communicator> link) {
        const int rank = link == nullptr ? 0 : link->rank();
        TrainingOptions options = one.training;
        options.engine.threads = 1;
        options.workers.communicator = std::move(link);
        const Session session({.file = {}, .working = train_test::network(one)}, one.loss,
                              one.optimizer, options);
        bytes[static_cast<std::size_t>(rank)] = session.memory().optimizer_state;
        return Outcome();
      });
      return bytes;
    };
    const std::int64_t whole = bytes_of(1).front();
    EXPECT_EQ(whole, (5 * hidden + 1) * 2 * 4 + 8);
    for (const int workers : {2, 3, 4}) {
      for (const std::int64_t bytes : bytes_of(workers)) {
        constexpr std::int64_t kPadding{2 * 4 * 16 * 3};  // slots, float32, elements, buckets
        EXPECT_LE(std::abs(bytes - whole / workers), kPadding) << workers;
      }
    }
  }
}

// Slots move to other workers when other weights are trained.
TEST_F(Workers, ShareTheUpdateWhileWeightsAreFrozen) {
  Case with{.name = "frozen", .optimizer = Adam{.learning_rate = 0.02}, .hidden = 50, .rows = 12};
  with.training.workers.shares_update = true;
  const auto run = [](const Case& one, std::shared_ptr<dist::Communicator> link) {
    const RowSlice rows = link == nullptr ? RowSlice{.first = 0, .rows = 12}
                                          : slice_of(12, link->rank(), link->size());
    TrainingOptions options = one.training;
    options.engine.threads = 1;
    options.workers.communicator = std::move(link);
    Session session({.file = {}, .working = train_test::network(one)}, one.loss, one.optimizer,
                    options);
    const Dataset data = train_test::data_of(one, one.rows);
    const auto x = data.inputs[0].tensor.to_doubles();
    const auto y = data.target.to_doubles();
    Outcome outcome;
    const auto steps = [&] {
      for (int i = 0; i < 2; ++i) {
        const auto first = static_cast<std::size_t>(rows.first);
        const auto count = static_cast<std::size_t>(rows.rows);
        outcome.history.step_losses.push_back(
            session
                .step({{.name = "x",
                        .tensor = Tensor::from(std::span(x).subspan(3 * first, 3 * count),
                                               Dims{rows.rows, 3})},
                       {.name = "label",
                        .tensor =
                            Tensor::from(std::span(y).subspan(first, count), Dims{rows.rows, 1})}})
                .loss);
      }
    };
    steps();
    session.freeze(std::vector<std::string>{"W2"});
    steps();
    session.freeze(std::vector<std::string>{"b1"});
    session.unfreeze(std::vector<std::string>{"W2"});
    steps();
    session.unfreeze(std::vector<std::string>{"b1"});
    steps();
    outcome.state = session.state();
    return outcome;
  };
  const Outcome one = train_by(with, 1, run).front();
  for (const int workers : {2, 3}) {
    const auto all = train_by(with, workers, run);
    for (std::size_t i = 0; i < one.history.step_losses.size(); ++i) {
      EXPECT_NEAR(one.history.step_losses[i], all[0].history.step_losses[i], kDouble) << i;
    }
    for (const NamedTensor& entry : one.state) {
      const auto numbers = joined(all, entry.name);
      ASSERT_FALSE(numbers.empty()) << entry.name;
      const std::span<const double> own =
          std::span(numbers).first(static_cast<std::size_t>(entry.tensor.num_elements()));
      EXPECT_LE(difference(entry.tensor, Tensor::from(own, entry.tensor.dims())), kDouble)
          << workers << " " << entry.name;
    }
  }
}

// A worker of them reads nothing of some sums, and takes part.
TEST_F(Workers, ShareTheUpdateOfFewOrLargeWeights) {
  Case with{.name = "few", .optimizer = Adam{.learning_rate = 0.02}, .fit = two_epochs()};
  with.training.workers.shares_update = true;
  with.training.update = {.clip_norm = 0.05};
  expect_as_one_in_weights(with, 6);  // six workers, four weights
  with.name = "large";
  with.hidden = 50'000;  // b1 and W2 have a sum of their own
  with.rows = 8;
  with.fit.epochs = 1;
  expect_as_one_in_weights(with, 2);
  expect_as_one_in_weights(with, 3);
  with.training.update.accumulate = 2;
  expect_as_one_in_weights(with, 2);
}

TEST_F(Workers, MeansCountWeightsAndIgnoredRows) {
  Case with{.name = "weights", .fit = two_epochs(), .has_weights = true};
  with.loss.sample_weight = "w";
  expect_as_one(with, kDouble);
  Case ignored{.name = "ignored", .fit = two_epochs(5), .classes = 4};
  ignored.loss.function = SoftmaxCrossEntropy{.ignore_index = -1, .label_smoothing = 0.1};
  ignored.fit.metrics = {{.name = "accuracy"}, {.name = "log_loss"}};
  expect_as_one(ignored, kDouble);
  ignored.has_weights = true;
  ignored.loss.sample_weight = "w";
  ignored.training.update.accumulate = 2;
  expect_as_one(ignored, kDouble);
  Case classes{.name = "class weights", .fit = two_epochs(5), .classes = 3};
  classes.loss.function = SoftmaxCrossEntropy{.class_weights = {1, 0.2, 3}};
  expect_as_one(classes, kDouble);
}

TEST_F(Workers, PenaltiesCountOnce) {
  Case with{.name = "penalties", .fit = two_epochs()};
  with.loss.penalties = {{.l1 = 0.01, .l2 = 0.1, .weights = {"W*"}}};
  expect_as_one(with, kDouble);
  with.loss.reduction = Reduction::kSum;
  with.optimizer = Sgd{.learning_rate = 0.005};
  with.fit.validation_every = 5;  // each batch of it adds the penalty to a sum
  expect_as_one(with, kDouble);
}

TEST_F(Workers, DrawWhatOneDraws) {
  Case with{.name = "dropout", .fit = two_epochs(7), .dropout = 0.4};
  expect_as_one(with, kDouble);
  with.dtype = DataType::kFloat32;
  expect_as_one(with, kFloat);
}

TEST_F(Workers, SyncNormalizationIsThatOfTheBatch) {
  Case with{.name = "sync", .fit = two_epochs(), .normalizes = true};
  with.training.workers.sync_normalization = true;
  expect_as_one(with, 1e-11);
}

// Statistics of each worker's rows: not what one worker computes, but the same on all.
TEST_F(Workers, LocalNormalizationHasMeansOfTheStatistics) {
  const Case with{.name = "local", .fit = two_epochs(14), .normalizes = true};
  const auto all = train_by(with, 3);
  for (const Outcome& other : all) {
    for (std::size_t i = 0; i < other.state.size(); ++i) {
      EXPECT_TRUE(other.state[i].tensor.equals(all[0].state[i].tensor)) << other.state[i].name;
    }
    EXPECT_EQ(other.history.epochs[1].val_loss, all[0].history.epochs[1].val_loss);
  }
}

TEST_F(Workers, DecideAlike) {
  Case with{.name = "early stopping", .optimizer = Sgd{.learning_rate = 0.3}};
  with.fit = {.epochs = 30, .batch_size = 8, .early_stopping = EarlyStopping{.patience = 2}};
  with.fit.schedule = Plateau{.factor = 0.5, .patience = 1};
  expect_as_one(with, 1e-10);
}

// Gradients of several buckets, each with several parts.
TEST_F(Workers, RepeatTheirBits) {
  const Case with{.name = "bits",
                  .dtype = DataType::kFloat32,
                  .optimizer = Adam{.learning_rate = 0.01},
                  .fit = two_epochs()};
  const auto first = train_by(with, 3);
  const auto second = train_by(with, 3);
  for (std::size_t i = 0; i < first[0].state.size(); ++i) {
    EXPECT_TRUE(first[0].state[i].tensor.equals(second[2].state[i].tensor));
  }
  EXPECT_EQ(first[0].history.step_losses, second[1].history.step_losses);
}

TEST_F(Workers, Bfloat16TravelsWithLittleLoss) {
  Case with{.name = "bfloat16", .dtype = DataType::kFloat32, .fit = two_epochs()};
  with.training.workers.as_bfloat16 = true;
  expect_as_one(with, 2e-2);
}

/// A kernel of a plan as text: its line, and the offsets in the arena of what it reads and writes.
struct PlanLine {
  std::string text;
  std::vector<std::int64_t> offsets;
};

std::vector<PlanLine> lines_of(const std::string& plan) {
  std::vector<PlanLine> lines;
  std::size_t begin = 0;
  while (begin < plan.size()) {
    const std::size_t end = std::min(plan.find('\n', begin), plan.size());
    PlanLine line{.text = plan.substr(begin, end - begin), .offsets = {}};
    constexpr std::string_view kMark = "@arena ";
    for (std::size_t at = line.text.find(kMark); at != std::string::npos;
         at = line.text.find(kMark, at + 1)) {
      line.offsets.push_back(std::stoll(line.text.substr(at + kMark.size())));
    }
    lines.push_back(std::move(line));
    begin = end + 1;
  }
  return lines;
}

// Gradients are computed in the buffer that is sent, which starts after the last of them and is
// waited for before the updates alone.
TEST_F(Workers, WriteIntoTheBufferThatIsSent) {
  std::string plan;
  dist::ThreadGroup group(2);
  group.run([&](dist::Communicator& communicator) {
    const Case with{.name = "plan", .dtype = DataType::kFloat32, .optimizer = Adam{}};
    TrainingOptions options = with.training;
    options.engine.threads = 1;
    options.workers.communicator = {std::shared_ptr<void>(), &communicator};
    Session session({.file = {}, .working = train_test::network(with)}, with.loss, with.optimizer,
                    options);
    const Dataset data = train_test::data_of(with, 8);
    session.step(
        {{.name = "x", .tensor = data.inputs[0].tensor}, {.name = "label", .tensor = data.target}});
    if (communicator.rank() == 0) plan = session.runner().plan_summary();
  });
  const auto lines = lines_of(plan);
  const auto is = [](std::string_view op_type) {
    return [op_type](const PlanLine& line) {
      return line.text.find(op_type) != std::string::npos && line.offsets.size() > 3;
    };
  };
  const auto start = std::ranges::find_if(lines, is(" StartExchange "));
  const auto finish = std::ranges::find_if(lines, is(" FinishExchange "));
  ASSERT_NE(start, lines.end()) << plan;
  ASSERT_NE(finish, lines.end()) << plan;
  // Four gradients side by side, then the buffer; its sums are in the same places.
  ASSERT_EQ(start->offsets.size(), 5U) << plan;
  std::vector<std::int64_t> parts(start->offsets.begin(), start->offsets.end() - 1);
  EXPECT_EQ(parts.front(), start->offsets.back());
  EXPECT_TRUE(std::ranges::is_sorted(parts)) << plan;
  EXPECT_EQ(finish->offsets.front(), start->offsets.back());
  EXPECT_TRUE(std::ranges::equal(parts, std::span(finish->offsets).subspan(1))) << plan;
  for (auto line = start + 1; line != finish; ++line) {
    EXPECT_EQ(line->text.find("WeightUpdate"), std::string::npos) << plan;
  }
  EXPECT_EQ(std::count_if(finish, lines.end(),
                          [](const PlanLine& line) {
                            return line.text.find(" WeightUpdate") != std::string::npos;
                          }),
            4)
      << plan;
}

}  // namespace onnxgrad::train::workers_test
