// Fits of several workers on files: the rows of every batch are those that one worker would take.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include "onnxgrad/data_files.h"
#include "onnxgrad/option_error.h"
#include "train/testing/temporary_folder.h"
#include "train/testing/worker_runs.h"

namespace onnxgrad::train::worker_files_test {

using train_test::difference;
using train_test::expect_near;
using train_test::TemporaryFolder;
using Case = train_test::WorkerCase;
using Outcome = train_test::WorkerOutcome;
using Link = std::shared_ptr<dist::Communicator>;

constexpr double kDouble = 1e-12;

/// CSV files with these numbers of rows; chunks of three or four rows are the pieces.
class WorkerFiles : public testing::Test {
 protected:
  void write(const std::vector<std::int64_t>& sizes) {
    paths_.clear();
    const std::int64_t rows = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
    const Dataset all = train_test::data_of(case_of("files"), rows);
    const auto x = all.inputs[0].tensor.to_doubles();
    const auto y = all.target.to_doubles();
    std::size_t row = 0;
    for (const std::int64_t size : sizes) {
      paths_.push_back(folder_.path(std::to_string(paths_.size()) + ".csv"));
      std::ofstream file(paths_.back());
      file << "a,b,c,y,w\n";
      for (std::int64_t i = 0; i < size; ++i, ++row) {
        file << fmt::format("{},{},{},{},{}\n", x[3 * row], x[3 * row + 1], x[3 * row + 2], y[row],
                            row % 4);
      }
    }
  }

  static Case case_of(const std::string& name) {
    return {.name = name,
            .optimizer = Adam{.learning_rate = 0.02},
            .fit = {.epochs = 3, .batch_size = 10, .seed = 3, .buffer_bytes = 5000}};
  }

  std::unique_ptr<DataSource> open() const {
    FileLayout layout{.inputs = {ValueInfo{.name = "x", .dtype = DataType::kFloat64}},
                      .ignored = {"w"}};
    std::vector<Shard> shards;
    for (const std::string& path : paths_) {
      shards.push_back({.name = path, .open = [path, layout] {
                          return std::shared_ptr<DataSource>(
                              open_csv(path, layout, {.chunk_bytes = 300}));
                        }});
    }
    return open_shards(std::move(shards));
  }

  Outcome train(const Case& with, const Link& link, bool has_validation = false) const {
    TrainingOptions options = with.training;
    options.engine = {.threads = 1, .seed = 5};
    options.workers.communicator = link;
    Session session({.file = {}, .working = train_test::network(with)}, with.loss, with.optimizer,
                    options);
    const auto source = open();
    const auto validation = open();
    FitOptions fit = with.fit;
    fit.keep_step_losses = true;
    if (has_validation) {
      fit.validation_source = validation.get();
      fit.metrics = {{.name = "mae"}};
    }
    StopFlag stop;
    Outcome outcome;
    FitLoop(session, *source, fit, stop, outcome.history).run();
    outcome.state = session.state();
    return outcome;
  }

  void expect_as_one(const Case& with, bool has_validation = false) const {
    const auto run = [&](const Case& one, const Link& link) {
      return train(one, link, has_validation);
    };
    const Outcome one = train_test::train_by(with, 1, run).front();
    for (const int workers : {2, 3, 4}) {
      SCOPED_TRACE(fmt::format("{} with {} workers", with.name, workers));
      const auto all = train_test::train_by(with, workers, run);
      for (const Outcome& other : all) {
        expect_near(one.history, other.history, kDouble, with.name);
        for (std::size_t i = 0; i < one.state.size(); ++i) {
          EXPECT_LE(difference(one.state[i].tensor, other.state[i].tensor), kDouble);
        }
      }
    }
  }

  TemporaryFolder folder_;
  std::vector<std::string> paths_;
};

TEST_F(WorkerFiles, TrainAsOneWorker) {
  for (const std::vector<std::int64_t>& sizes :
       {std::vector<std::int64_t>{200}, {50, 3, 120, 1, 77}, {2}, {31, 31, 31, 31}}) {
    write(sizes);
    for (const bool shuffle : {true, false}) {
      Case with = case_of(fmt::format("{} files, shuffle {}", sizes.size(), shuffle));
      with.fit.shuffle = shuffle;
      expect_as_one(with);
    }
  }
}

TEST_F(WorkerFiles, AFileOfOnePieceIsReadByAll) {
  write({7});
  Case with = case_of("one piece");
  with.fit.batch_size = 4;
  expect_as_one(with);
}

TEST_F(WorkerFiles, ShardsInLargeNumbersArePieces) {
  std::vector<std::int64_t> sizes;
  for (std::int64_t i = 0; i < kShardsAsPieces + 3; ++i) sizes.push_back(1 + i % 7);
  write(sizes);
  expect_as_one(case_of("many shards"));
}

TEST_F(WorkerFiles, ValidateAsOneWorker) {
  write({50, 3, 120, 1, 77});
  Case with = case_of("fraction");
  with.fit.validation_fraction = 0.3;
  expect_as_one(with);
  with.fit.shuffle = false;
  expect_as_one(with);
  expect_as_one(case_of("separate rows"), /*has_validation=*/true);
}

TEST_F(WorkerFiles, ResumeWithAnotherNumberWithinAnEpoch) {
  write({50, 3, 120, 1, 77});
  for (const bool shuffle : {true, false}) {
    for (const auto& [before, after] : {std::pair(2, 3), {1, 2}, {3, 1}, {2, 2}}) {
      TemporaryFolder folder;
      Case with = case_of("resumed");
      with.fit.shuffle = shuffle;
      const auto run = [&](const Case& one, const Link& link) { return train(one, link); };
      const Outcome whole = train_test::train_by(with, before, run).front();
      with.fit.checkpoint = CheckpointOptions{.folder = folder.path("c"), .every_steps = 5};
      with.fit.max_steps = 37;  // in the middle of the second epoch
      train_test::train_by(with, before, run);
      with.fit.max_steps = 0;
      with.fit.resume = folder.path("c");
      const auto resumed = train_test::train_by(with, after, run);
      for (std::size_t i = 0; i < whole.state.size(); ++i) {
        const Tensor& expected = whole.state[i].tensor;
        const Tensor& found = resumed.back().state[i].tensor;
        EXPECT_LE(difference(expected, found), before == after ? 0 : kDouble)
            << before << " to " << after << " " << whole.state[i].name;
      }
    }
  }
}

TEST_F(WorkerFiles, OtherRowsAreNoticedWhenResuming) {
  write({50, 3, 120});
  TemporaryFolder folder;
  Case with = case_of("other rows");
  const auto run = [&](const Case& one, const Link& link) { return train(one, link); };
  with.fit.checkpoint = CheckpointOptions{.folder = folder.path("c"), .every_steps = 5};
  with.fit.max_steps = 10;
  train_test::train_by(with, 2, run);
  write({50, 2, 121});
  with.fit.max_steps = 0;
  with.fit.resume = folder.path("c");
  EXPECT_THROW(train_test::train_by(with, 2, run), Error);
  EXPECT_THROW(train_test::train_by(with, 1, run), CheckpointError);
}

}  // namespace onnxgrad::train::worker_files_test
