#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include "onnxgrad/data_files.h"
#include "onnxgrad/error.h"

namespace onnxgrad::train::shards_test {

// Files of the numbers 0, 1, 2, ... with so many rows each.
class Shards : public testing::Test {
 protected:
  Shards() : folder_(testing::TempDir() + "onnxgrad_shards") {
    std::filesystem::create_directories(folder_);
    std::int64_t number = 0;
    for (const std::int64_t rows : {50, 7, 120, 1, 33}) {
      paths_.push_back(folder_ + "/" + std::to_string(paths_.size()) + ".csv");
      std::ofstream file(paths_.back());
      file << "x,y\n";
      for (std::int64_t i = 0; i < rows; ++i, ++number) file << number << ',' << number << '\n';
    }
    rows_ = number;
  }
  ~Shards() override { std::filesystem::remove_all(folder_); }

  std::unique_ptr<DataSource> open() {
    std::vector<Shard> shards;
    for (const std::string& path : paths_) {
      shards.push_back({.name = path, .open = [this, path] {
                          ++num_opened_;
                          return std::shared_ptr<DataSource>(
                              open_csv(path, layout_, {.chunk_bytes = 64}));
                        }});
    }
    return open_shards(std::move(shards));
  }

  // Reads a pass, checks the numbers of rows and lines, and returns the numbers of the rows.
  static std::vector<std::int64_t> read(DataSource& source, const Pass& pass) {
    std::vector<std::int64_t> numbers;
    source.start(pass);
    while (const auto chunk = source.next()) {
      const std::vector<double> x = chunk->inputs[0].tensor.to_doubles();
      for (std::size_t i = 0; i < x.size(); ++i) {
        const auto row = chunk->first_row + static_cast<std::int64_t>(i);
        EXPECT_EQ(x[i], static_cast<double>(row));
        EXPECT_EQ(chunk->target.to_doubles()[i], x[i]);
        numbers.push_back(row);
      }
      EXPECT_GE(chunk->origin->line_of(chunk->first_row), 2);
    }
    return numbers;
  }

  std::string folder_;
  std::vector<std::string> paths_;
  FileLayout layout_{.inputs = {ValueInfo{.name = "x", .dtype = DataType::kFloat32}}};
  std::int64_t rows_ = 0;
  int num_opened_ = 0;
};

TEST_F(Shards, AreReadOneAfterAnother) {
  const auto source = open();
  EXPECT_EQ(source->num_rows(), rows_);
  std::vector<std::int64_t> expected(static_cast<std::size_t>(rows_));
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(read(*source, {}), expected);
  EXPECT_EQ(read(*source, {}), expected);
}

TEST_F(Shards, AnOrderIsAFunctionOfSeedAndEpoch) {
  const auto source = open();
  const Pass pass{.epoch = 2, .shuffle = true, .seed = 5};
  const auto order = read(*source, pass);
  EXPECT_EQ(read(*open(), pass), order);
  auto sorted = order;
  std::ranges::sort(sorted);
  EXPECT_EQ(sorted, read(*source, {}));
  EXPECT_NE(order, sorted);
  EXPECT_NE(read(*source, {.epoch = 3, .shuffle = true, .seed = 5}), order);
  EXPECT_NE(read(*source, {.epoch = 2, .shuffle = true, .seed = 6}), order);
}

TEST_F(Shards, RangesOfAPassMakeUpTheWhole) {
  const auto whole = open();
  for (const bool shuffle : {false, true}) {
    const Pass pass{.epoch = 1, .shuffle = shuffle, .seed = 3};
    const auto order = read(*whole, pass);
    for (const std::int64_t parts : {1, 2, 3, 7, 100}) {
      std::vector<std::int64_t> all;
      for (std::int64_t part = 0; part < parts; ++part) {
        const auto source = open();
        ASSERT_TRUE(source->take_rows(rows_ * part / parts, rows_ * (part + 1) / parts));
        const auto rows = read(*source, pass);
        EXPECT_EQ(std::ssize(rows), rows_ * (part + 1) / parts - rows_ * part / parts);
        all.insert(all.end(), rows.begin(), rows.end());
      }
      EXPECT_EQ(all, order);
    }
  }
}

TEST_F(Shards, OthersAreNotOpened) {
  const auto source = open();
  num_opened_ = 0;
  ASSERT_TRUE(source->take_rows(52, 60));  // the second and the third
  EXPECT_EQ(read(*source, {}).size(), 8U);
  EXPECT_EQ(num_opened_, 2);
}

TEST_F(Shards, NoneOrEmptyOnesAreRefused) { EXPECT_THROW(open_shards({}), DataError); }

}  // namespace onnxgrad::train::shards_test
