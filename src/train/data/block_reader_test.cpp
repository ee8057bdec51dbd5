#include "train/data/block_reader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace onnxgrad::train {
namespace {

// Chunks of rows 0, 1, 2, ...; fails at the chunk `fails_at`.
class Counting final : public DataSource {
 public:
  Counting(std::int64_t rows, std::int64_t chunk, std::int64_t fails_at = -1)
      : rows_(rows), chunk_(chunk), fails_at_(fails_at) {}
  std::optional<std::int64_t> num_rows() const override { return rows_; }
  void start(const Pass& pass) override {
    last_pass = pass;
    next_ = 0;
  }
  std::optional<Dataset> next() override {
    ++chunks_read;
    if (next_ / chunk_ == fails_at_) {
      throw DataError({.what = "chunk " + std::to_string(fails_at_), .hint = "Try again."});
    }
    if (next_ >= rows_) return std::nullopt;
    std::vector<double> values(static_cast<std::size_t>(std::min(chunk_, rows_ - next_)));
    std::iota(values.begin(), values.end(), static_cast<double>(next_));
    Dataset data{
        .inputs = {}, .target = Tensor::from(values, Dims{std::ssize(values)}), .first_row = next_};
    next_ += std::ssize(values);
    return data;
  }

  Pass last_pass;
  std::atomic<int> chunks_read = 0;

 private:
  std::int64_t rows_;
  std::int64_t chunk_;
  std::int64_t fails_at_;
  std::int64_t next_ = 0;
};

PreparedData prepare(const Dataset& chunk) {
  PreparedData data;
  data.rows = chunk.target.dims()[0];
  data.columns.push_back({.name = "y", .values = chunk.target, .row_bytes = sizeof(double)});
  return data;
}

StopFlag kGoOn;

// The rows of a pass in the order of their use, block by block.
std::vector<std::vector<double>> blocks_of(BlockReader& reader, std::uint32_t epoch) {
  std::vector<std::vector<double>> blocks;
  reader.start(epoch);
  while (const Block* const block = reader.next(kGoOn)) {
    const auto values = block->data.columns.front().values.data<double>();
    std::vector<double> rows;
    for (std::int64_t i = 0; i < block->data.rows; ++i) {
      const auto place = static_cast<std::size_t>(i);
      rows.push_back(
          values[block->order.empty() ? place : static_cast<std::size_t>(block->order[place])]);
    }
    blocks.push_back(rows);
  }
  return blocks;
}

std::vector<double> joined(const std::vector<std::vector<double>>& blocks) {
  std::vector<double> all;
  for (const auto& block : blocks) all.insert(all.end(), block.begin(), block.end());
  return all;
}

std::vector<double> sequence(std::size_t count) {
  std::vector<double> rows(count);
  std::iota(rows.begin(), rows.end(), 0.0);
  return rows;
}

class BlockSizes : public testing::TestWithParam<std::pair<std::int64_t, std::int64_t>> {};

TEST_P(BlockSizes, HoldWholeBatchesOfAllRowsInOrder) {
  const auto [rows, chunk] = GetParam();
  Counting source(rows, chunk);
  // 10 rows of 8 bytes: blocks of two batches of 5 rows.
  BlockReader reader(source, prepare, {}, {.batch_size = 5, .block_bytes = 87});
  for (std::uint32_t epoch = 0; epoch < 2; ++epoch) {
    const auto blocks = blocks_of(reader, epoch);
    EXPECT_EQ(joined(blocks), sequence(static_cast<std::size_t>(rows)));
    for (std::size_t i = 0; i + 1 < blocks.size(); ++i) EXPECT_EQ(blocks[i].size() % 5, 0U);
    EXPECT_EQ(source.last_pass.epoch, epoch);
  }
}

INSTANTIATE_TEST_SUITE_P(All, BlockSizes,
                         testing::Values(std::pair(1, 1), std::pair(23, 1), std::pair(23, 7),
                                         std::pair(30, 10), std::pair(100, 100), std::pair(4, 9)));

TEST(BlockReader, ChunksAreBatchesWithoutABatchSize) {
  Counting source(10, 4);
  BlockReader reader(source, prepare, {}, {.batch_size = 0, .shuffle = true});
  const auto blocks = blocks_of(reader, 0);
  ASSERT_EQ(blocks.size(), 3U);
  EXPECT_EQ(blocks[2], (std::vector<double>{8, 9}));
}

TEST(BlockReader, ShufflesByEpochAndSeed) {
  Counting source(200, 9);
  const auto order = [&](std::uint64_t seed, std::uint32_t epoch) {
    BlockReader reader(source, prepare, {},
                       {.batch_size = 8, .block_bytes = 1600, .shuffle = true, .seed = seed});
    auto rows = joined(blocks_of(reader, epoch));
    auto sorted = rows;
    std::ranges::sort(sorted);
    EXPECT_EQ(sorted, sequence(200));
    return rows;
  };
  EXPECT_EQ(order(1, 0), order(1, 0));
  EXPECT_NE(order(1, 0), order(1, 1));
  EXPECT_NE(order(1, 0), order(2, 0));
  EXPECT_NE(order(1, 0), sequence(200));
}

TEST(BlockReader, KeepsChosenRows) {
  Counting source(50, 7);
  const auto odd = [](std::int64_t first, std::int64_t rows) {
    std::vector<std::int64_t> chosen;
    for (std::int64_t row = 0; row < rows; ++row) {
      if ((first + row) % 2 == 1) chosen.push_back(row);
    }
    return chosen;
  };
  BlockReader reader(source, prepare, odd, {.batch_size = 4});
  const auto rows = joined(blocks_of(reader, 0));
  ASSERT_EQ(rows.size(), 25U);
  EXPECT_EQ(rows[24], 49);
}

TEST(BlockReader, HandsOnErrorsAfterTheBlocksBefore) {
  Counting source(100, 10, /*fails_at=*/5);
  BlockReader reader(source, prepare, {}, {.batch_size = 10, .block_bytes = 80});
  reader.start(0);
  int blocks = 0;
  EXPECT_THROW(
      {
        while (reader.next(kGoOn) != nullptr) ++blocks;
      },
      DataError);
  EXPECT_EQ(blocks, 5);
  EXPECT_THROW(blocks_of(reader, 1), DataError);  // usable, and fails there again
}

TEST(BlockReader, IsAtMostTwoBlocksAhead) {
  Counting source(1000, 10);
  BlockReader reader(source, prepare, {}, {.batch_size = 10, .block_bytes = 80});
  reader.start(0);
  ASSERT_NE(reader.next(kGoOn), nullptr);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_LE(source.chunks_read, 3);
  reader.end_pass();
  EXPECT_EQ(joined(blocks_of(reader, 0)).size(), 1000U);
}

TEST(BlockReader, StopsWaiting) {
  class Stuck final : public DataSource {
   public:
    std::optional<std::int64_t> num_rows() const override { return std::nullopt; }
    void start(const Pass& /*pass*/) override {}
    std::optional<Dataset> next() override {
      while (!released) std::this_thread::yield();
      return std::nullopt;
    }
    std::atomic<bool> released = false;
  } source;
  StopFlag stop;
  stop.stop();
  BlockReader reader(source, prepare, {}, {.batch_size = 1});
  reader.start(0);
  EXPECT_EQ(reader.next(stop), nullptr);
  source.released = true;
}

TEST(ValidationRows, AreTheShareAndDoNotDependOnChunks) {
  int count = 0;
  for (std::int64_t row = 0; row < 20000; ++row) count += is_validation_row(3, 0.2, row) ? 1 : 0;
  EXPECT_NEAR(count, 4000, 4 * 57);  // four standard deviations
  EXPECT_FALSE(is_validation_row(3, 0.0, 17));
}

TEST(SourceCount, CountsWhatABlockReaderGives) {
  struct Case {
    std::int64_t batch_size;
    bool drop_last;
    bool is_f16;  // every second row is kept
    SourceCount expected;
  };
  const std::vector<Case> cases{
      {10, false, false, {.rows = 103, .batches = 11}},
      {10, true, false, {.rows = 103, .batches = 10}},
      {0, false, false, {.rows = 103, .batches = 15}},
      {0, true, false, {.rows = 103, .batches = 14}},
      {10, false, true, {.rows = 52, .batches = 6}},
      {0, false, true, {.rows = 52, .batches = 15}},
  };
  const auto even_rows = [](std::int64_t first, std::int64_t rows) {
    std::vector<std::int64_t> chosen;
    for (std::int64_t row = 0; row < rows; ++row) {
      if ((first + row) % 2 == 0) chosen.push_back(row);
    }
    return chosen;
  };
  train::StopFlag stop;
  for (const Case& test : cases) {
    Counting source(103, 7);
    std::int64_t seen = 0;
    const auto found = count_source(
        source, test.batch_size, test.drop_last,
        test.is_f16 ? BlockReader::Keep(even_rows) : BlockReader::Keep(),
        [&](const Dataset& chunk) { seen += chunk.target.dims()[0]; }, stop);
    ASSERT_TRUE(found.has_value());
    EXPECT_EQ(found->rows, test.expected.rows);
    EXPECT_EQ(found->batches, test.expected.batches) << test.batch_size << test.drop_last;
    EXPECT_EQ(seen, 103);
  }
  stop.stop();
  Counting source(103, 7);
  EXPECT_FALSE(count_source(source, 0, false, {}, {}, stop).has_value());
}

}  // namespace
}  // namespace onnxgrad::train
