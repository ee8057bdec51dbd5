#include "train/fit/fit_history.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "onnxgrad/option_error.h"
#include "train/testing/resumed_fit.h"

namespace onnxgrad::train {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using train_test::FitProcess;
using train_test::LinearRows;
using train_test::TemporaryFolder;

// A history of `count` epochs, of which those in `best` were the best so far.
History history_of(std::int64_t count, std::int64_t most, std::vector<std::int64_t> best) {
  History history;
  for (std::int64_t epoch = 1; epoch <= count; ++epoch) {
    EpochLog log{.epoch = epoch};
    if (std::ranges::find(best, epoch) != best.end()) {
      log.is_best = true;
      history.best_epoch = epoch;
    }
    append_epoch(history, log, most);
  }
  return history;
}

std::vector<std::int64_t> epochs_of(const History& history) {
  std::vector<std::int64_t> numbers;
  std::ranges::transform(history.epochs, std::back_inserter(numbers), &EpochLog::epoch);
  return numbers;
}

TEST(FitHistory, HasEveryEpochUpToTheMost) {
  EXPECT_THAT(epochs_of(history_of(8, 8, {1})), ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
  EXPECT_EQ(history_of(8, 8, {1}).epoch_stride, 1);
  EXPECT_EQ(history_of(1000, 0, {1}).epochs.size(), 1000U);
}

TEST(FitHistory, ThenEverySecondFourthEighth) {
  EXPECT_THAT(epochs_of(history_of(9, 8, {1})), ElementsAre(1, 2, 4, 6, 8, 9));
  EXPECT_THAT(epochs_of(history_of(10, 8, {1})), ElementsAre(1, 2, 4, 6, 8, 10));
  EXPECT_THAT(epochs_of(history_of(11, 8, {1})), ElementsAre(1, 2, 4, 6, 8, 10, 11));
  EXPECT_THAT(epochs_of(history_of(15, 8, {1, 7})), ElementsAre(1, 4, 7, 8, 12, 15));
}

// Whatever the order of best epochs, the numbers of epochs are few, and the promised ones there.
TEST(FitHistory, IsBoundedWithTheFirstTheBestAndTheNewest) {
  std::vector<std::int64_t> falling(20000);
  std::iota(falling.begin(), falling.end(), std::int64_t{1});
  std::vector<std::int64_t> seldom;
  for (std::int64_t epoch = 1; epoch < 20000; epoch += 3) seldom.push_back(epoch);
  for (const auto& best : {std::vector<std::int64_t>{1}, falling, seldom}) {
    for (const std::int64_t most : {8, 9, 50, 1000}) {
      History history;
      for (std::int64_t epoch = 1; epoch <= 20000; ++epoch) {
        EpochLog log{.epoch = epoch};
        log.is_best = std::ranges::binary_search(best, epoch);
        if (log.is_best) history.best_epoch = epoch;
        append_epoch(history, log, most);
        ASSERT_LE(std::ssize(history.epochs), most);
        ASSERT_EQ(history.epochs.back().epoch, epoch);
      }
      const auto numbers = epochs_of(history);
      EXPECT_TRUE(std::ranges::is_sorted(numbers));
      EXPECT_EQ(numbers.front(), 1);
      EXPECT_TRUE(std::ranges::binary_search(numbers, *history.best_epoch));
      for (std::int64_t epoch = history.epoch_stride; epoch < 20000;
           epoch += history.epoch_stride) {
        EXPECT_TRUE(std::ranges::binary_search(numbers, epoch)) << epoch;
      }
      // Not fewer than need be: a quarter is there for the thinning after the next.
      EXPECT_GE(20000 / history.epoch_stride, most / 4 - 1) << most;
    }
  }
}

TEST(FitHistory, ALongFitTakesNoMoreThanAShortOne) {
  const Dataset data = LinearRows(4).all();
  const auto checkpoint_bytes = [&](std::int64_t epochs) {
    const TemporaryFolder folder;
    Session session({.file = {}, .working = train_test::linear_model().model}, {}, Adam{},
                    {.engine = {.threads = 1}});
    StopFlag stop;
    History history;
    FitOptions options{.epochs = epochs, .batch_size = 2, .max_history = 16};
    options.checkpoint = {{.folder = folder.path("run"), .keep = 1, .min_seconds = 1000}};
    FitLoop(session, data, options, stop, history).run();
    EXPECT_LE(history.epochs.size(), 16U);
    EXPECT_TRUE(history.step_losses.empty());
    return std::filesystem::file_size(
        folder.path("run/" + checkpoint_name(session.runner().steps())));
  };
  const auto small = checkpoint_bytes(16);
  EXPECT_LE(checkpoint_bytes(3000), small + 64);  // more digits in the header
}

TEST(FitHistory, EpochsOfACheckpointFollowEachOther) {
  const LinearRows rows(4);
  const TemporaryFolder folder;
  FitOptions options{.epochs = 3, .batch_size = 2};
  options.checkpoint = {{.folder = folder.path("run")}};
  FitProcess first;
  first.fit(rows.all(), options);
  Checkpoint checkpoint = read_checkpoint(folder.path("run/ck-000000000006.safetensors"));
  const auto refusal = [&](const std::vector<std::int64_t>& epochs, std::int64_t stride) {
    std::erase_if(checkpoint.tensors, [](const NamedTensor& tensor) {
      return tensor.name.starts_with("onnxgrad:history/epoch");
    });
    checkpoint.set("onnxgrad:history/epoch",
                   Tensor::from(epochs, Dims{static_cast<std::int64_t>(epochs.size())}));
    checkpoint.set_int("history/epoch_stride", stride);
    History history;
    try {
      read_history(checkpoint, options, {}, history);
    } catch (const CheckpointError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(refusal({1, 2, 4}, 2), "");
  EXPECT_THAT(refusal({1, 3, 3}, 1), HasSubstr("are not consecutive"));
  EXPECT_THAT(refusal({0, 1, 2}, 1), HasSubstr("are not consecutive"));
  EXPECT_THAT(refusal({1, 2, 3}, 0), HasSubstr("are not consecutive"));
  EXPECT_THAT(refusal({1, 2}, 1), HasSubstr("differ in length"));
}

TEST(FitHistory, LossesOfStepsAreThereWhereTheyAreAskedFor) {
  const LinearRows rows(4);
  const TemporaryFolder folder;
  FitOptions options{.epochs = 3, .batch_size = 2};
  options.checkpoint = {{.folder = folder.path("run")}};
  Session session({.file = {}, .working = train_test::linear_model().model}, {}, Adam{}, {});
  StopFlag stop;
  History history;
  const Dataset data = rows.all();
  FitLoop(session, data, options, stop, history).run();
  EXPECT_TRUE(history.step_losses.empty());
  options.epochs = 4;
  options.resume = folder.path("run");
  FitProcess process;
  EXPECT_THROW(process.fit(data, options), CheckpointError);  // which keeps them
  EXPECT_THROW(process.fit(data, {.max_history = 7}), OptionError);
}

}  // namespace
}  // namespace onnxgrad::train
