#include "train/data/lanes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "train/data/block_reader.h"
#include "train/tools/workers.h"

namespace onnxgrad::train::lanes_test {

std::vector<Piece> pieces_of(const std::vector<std::int64_t>& rows, std::int64_t per_file = 4) {
  std::vector<Piece> pieces;
  std::int64_t first = 0;
  for (const std::int64_t count : rows) {
    pieces.push_back({.first_row = first, .rows = count, .file = std::ssize(pieces) / per_file});
    first += count;
  }
  return pieces;
}

// The lane of each row of an epoch, by the definition.
std::vector<std::size_t> sorted_by_keys(const Lanes& lanes) {
  std::vector<std::pair<double, std::size_t>> keys;
  for (std::size_t l = 0; l < lanes.lanes().size(); ++l) {
    const auto rows = static_cast<double>(lanes.lanes()[l].rows);
    for (std::int64_t i = 0; i < lanes.lanes()[l].rows; ++i) {
      keys.emplace_back((static_cast<double>(i) + 0.5) / rows, l);
    }
  }
  std::ranges::sort(keys);
  std::vector<std::size_t> order;
  for (const auto& [key, lane] : keys) order.push_back(lane);
  return order;
}

TEST(Lanes, RowsAreInTheOrderOfTheirKeys) {
  for (const std::vector<std::int64_t>& sizes :
       {std::vector<std::int64_t>{7}, {1, 1, 1}, {100, 1, 37, 5}, {64, 64, 64, 64}, {3, 1000}}) {
    std::vector<Lanes::Lane> given;
    for (const std::int64_t rows : sizes) given.push_back({.pieces = {}, .rows = rows});
    const Lanes lanes(given);
    const auto order = sorted_by_keys(lanes);
    std::vector<std::int64_t> expected(sizes.size(), 0);
    std::vector<std::int64_t> counts(sizes.size(), -1);
    for (std::size_t position = 0; position <= order.size(); ++position) {
      lanes.count(static_cast<std::int64_t>(position), counts);
      EXPECT_EQ(counts, expected) << "position " << position;
      if (position < order.size()) ++expected[order[position]];
    }
  }
}

TEST(Lanes, HaveEachPieceOnce) {
  std::vector<std::int64_t> rows;
  for (std::int64_t p = 0; p < 37; ++p) rows.push_back(1 + p % 5 * 20);
  const auto pieces = pieces_of(rows);
  for (const std::uint32_t epoch : {0U, 1U}) {
    const Lanes lanes(pieces, {}, {.epoch = epoch, .shuffle = true, .seed = 3});
    EXPECT_EQ(std::ssize(lanes.lanes()), kMostLanes);
    std::multiset<std::int64_t> seen;
    for (const auto& lane : lanes.lanes()) seen.insert(lane.pieces.begin(), lane.pieces.end());
    EXPECT_EQ(seen.size(), pieces.size());
    EXPECT_EQ(std::set(seen.begin(), seen.end()).size(), pieces.size());
    EXPECT_EQ(lanes.rows(), pieces.back().first_row + pieces.back().rows);
  }
  const Lanes in_order(pieces, {}, {});
  ASSERT_EQ(in_order.lanes().size(), 1U);
  EXPECT_TRUE(std::ranges::is_sorted(in_order.lanes()[0].pieces));
}

TEST(Lanes, OrderOfPiecesIsAFunctionOfSeedAndEpoch) {
  const auto pieces = pieces_of(std::vector<std::int64_t>(40, 10), 10);
  const auto order = shuffle_pieces(pieces, {.epoch = 1, .shuffle = true, .seed = 2});
  EXPECT_EQ(order, shuffle_pieces(pieces, {.epoch = 1, .shuffle = true, .seed = 2}));
  EXPECT_NE(order, shuffle_pieces(pieces, {.epoch = 2, .shuffle = true, .seed = 2}));
  EXPECT_NE(order, shuffle_pieces(pieces, {.epoch = 1, .shuffle = true, .seed = 3}));
  for (std::size_t i = 0; i < order.size(); i += 10) {  // one file after another
    for (std::size_t k = i; k < i + 10; ++k) EXPECT_EQ(order[k] / 10, order[i] / 10);
  }
}

// Rows 0, 1, 2, ... in pieces, of which each gives chunks of three rows.
class Pieces final : public DataSource {
 public:
  explicit Pieces(std::vector<Piece> pieces) : pieces_(std::move(pieces)) {
    read_.resize(pieces_.size(), 0);
  }
  std::optional<std::int64_t> num_rows() const override {
    return pieces_.back().first_row + pieces_.back().rows;
  }
  void start(const Pass& /*pass*/) override { FAIL() << "read as a whole"; }
  std::optional<Dataset> next() override { return std::nullopt; }
  std::vector<Piece> pieces() const override { return pieces_; }
  std::unique_ptr<DataSource> open_pieces(const std::vector<std::int64_t>& numbers) const override {
    return std::make_unique<Reader>(*this, numbers);
  }
  int times_read(std::size_t piece) const { return read_[piece]; }

 private:
  class Reader final : public DataSource {
   public:
    Reader(const Pieces& all, std::vector<std::int64_t> numbers)
        : all_(all), numbers_(std::move(numbers)) {}
    std::optional<std::int64_t> num_rows() const override { return std::nullopt; }
    void start(const Pass& /*pass*/) override {}
    std::optional<Dataset> next() override {
      if (next_ == numbers_.size()) return std::nullopt;
      const auto number = static_cast<std::size_t>(numbers_[next_]);
      const Piece& piece = all_.pieces_[number];
      if (done_ == 0) ++all_.read_[number];
      const std::int64_t first = piece.first_row + done_;
      std::vector<double> values(
          static_cast<std::size_t>(std::min<std::int64_t>(3, piece.rows - done_)));
      std::iota(values.begin(), values.end(), static_cast<double>(first));
      done_ += std::ssize(values);
      if (done_ == piece.rows) {
        done_ = 0;
        ++next_;
      }
      return Dataset{.inputs = {},
                     .target = Tensor::from(values, Dims{std::ssize(values)}),
                     .first_row = first};
    }

   private:
    const Pieces& all_;
    std::vector<std::int64_t> numbers_;
    std::size_t next_ = 0;
    std::int64_t done_ = 0;  // rows of the current piece
  };

  std::vector<Piece> pieces_;
  mutable std::vector<int> read_;
};

PreparedData prepare(const Dataset& chunk) {
  PreparedData data;
  data.rows = chunk.target.dims()[0];
  data.ranges = {{.begin = 0, .first = chunk.first_row}};
  data.columns.push_back({.name = "y", .values = chunk.target, .row_bytes = sizeof(double)});
  return data;
}

struct Reading {
  std::vector<Piece> pieces;
  std::int64_t batch = 8;
  bool shuffle = true;
  std::int64_t block_bytes = 1000;
  std::vector<bool> is_kept = {};  // by row; empty: all
};

// The rows of an epoch in its order as `workers` of them read it; also checks their numbers and
// that nobody reads what only others need. -1: nobody has read it.
std::vector<double> read_epoch(const Reading& with, int workers, std::uint32_t epoch) {
  std::vector<double> all;
  for (int rank = 0; rank < workers; ++rank) {
    Pieces source(with.pieces);
    BlockReader::Keep keep;
    std::vector<std::int64_t> used;
    if (!with.is_kept.empty()) {
      keep = [&](std::int64_t first, std::int64_t rows) {
        std::vector<std::int64_t> chosen;
        for (std::int64_t i = 0; i < rows; ++i) {
          if (with.is_kept[static_cast<std::size_t>(first + i)]) chosen.push_back(i);
        }
        return chosen;
      };
      for (const Piece& piece : with.pieces) {
        used.push_back(std::ssize(keep(piece.first_row, piece.rows)));
      }
    }
    BlockReader reader(source, prepare, keep,
                       {.batch_size = with.batch,
                        .block_bytes = with.block_bytes,
                        .shuffle = with.shuffle,
                        .seed = 5,
                        .pieces = with.pieces,
                        .used = used,
                        .rank = rank,
                        .workers = workers});
    StopFlag stop;
    reader.start(epoch);
    std::size_t done = 0;
    while (const Block* const block = reader.next(stop)) {
      if (all.size() < done + static_cast<std::size_t>(block->rows)) {
        all.resize(done + static_cast<std::size_t>(block->rows), -1);
      }
      const auto values = block->data.columns.front().values.data<double>();
      for (std::int64_t begin = 0; begin < block->rows; begin += with.batch) {
        const RowSlice own = slice_of(std::min(with.batch, block->rows - begin), rank, workers);
        for (std::int64_t i = begin + own.first; i < begin + own.first + own.rows; ++i) {
          const auto place = static_cast<std::size_t>(i);
          const std::int64_t row = block->order.empty() ? i : block->order[place];
          EXPECT_LT(row, block->data.rows);
          const double value = values[static_cast<std::size_t>(row)];
          EXPECT_EQ(static_cast<double>(block->data.row_number(row)), value);
          EXPECT_EQ(all[done + place], -1);
          all[done + place] = value;
        }
      }
      done += static_cast<std::size_t>(block->rows);
    }
    for (std::size_t p = 0; p < with.pieces.size(); ++p) EXPECT_LE(source.times_read(p), 1);
  }
  return all;
}

TEST(Lanes, AnEpochIsTheSameForAnyNumberOfWorkers) {
  const std::vector<std::int64_t> uneven{50, 7,  120, 1, 33, 60, 60, 8, 90, 4,
                                         13, 77, 5,   5, 5,  40, 21, 3, 2,  9};
  for (const std::vector<std::int64_t>& rows :
       {uneven, std::vector<std::int64_t>{100}, {1, 1, 1}, {3, 200}}) {
    for (const std::int64_t batch : {1, 3, 8, 64, 1000}) {
      for (const bool shuffle : {false, true}) {
        Reading with{.pieces = pieces_of(rows), .batch = batch, .shuffle = shuffle};
        const auto one = read_epoch(with, 1, 2);
        auto sorted = one;
        std::ranges::sort(sorted);
        std::vector<double> expected(sorted.size());
        std::iota(expected.begin(), expected.end(), 0.0);
        EXPECT_EQ(std::ssize(one), with.pieces.back().first_row + with.pieces.back().rows);
        EXPECT_EQ(sorted, expected);
        if (one.size() > 3) {
          EXPECT_EQ(one == sorted, !shuffle) << batch;
        }
        for (const int workers : {2, 3, 5, 16, 40}) {
          EXPECT_EQ(read_epoch(with, workers, 2), one) << workers << " workers, batch " << batch;
        }
      }
    }
  }
}

TEST(Lanes, RowsForValidationAreLeftOut) {
  Reading with{.pieces = pieces_of({50, 7, 120, 1, 33, 60})};
  for (std::int64_t row = 0; row < 271; ++row) with.is_kept.push_back(row % 7 != 2 && row > 20);
  for (const bool shuffle : {false, true}) {
    with.shuffle = shuffle;
    const auto one = read_epoch(with, 1, 0);
    EXPECT_EQ(std::ssize(one), std::ranges::count(with.is_kept, true));
    for (const double row : one) EXPECT_TRUE(with.is_kept[static_cast<std::size_t>(row)]);
    for (const int workers : {2, 3, 4}) EXPECT_EQ(read_epoch(with, workers, 0), one);
  }
}

TEST(Lanes, AWorkerReadsItsPiecesOnly) {
  const auto pieces = pieces_of(std::vector<std::int64_t>(64, 10), 64);
  for (const int workers : {2, 4, 3}) {
    std::vector<int> readers(pieces.size(), 0);
    for (int rank = 0; rank < workers; ++rank) {
      Pieces source(pieces);
      BlockReader reader(source, prepare, {},
                         {.batch_size = 16,
                          .block_bytes = 1000,
                          .shuffle = true,
                          .pieces = pieces,
                          .rank = rank,
                          .workers = workers});
      StopFlag stop;
      reader.start(0);
      while (reader.next(stop) != nullptr) {
      }
      for (std::size_t p = 0; p < pieces.size(); ++p) readers[p] += source.times_read(p);
    }
    // Lanes are divided between two at most; none if their number is a multiple of the workers'.
    const auto shared = std::ranges::count(readers, 2);
    EXPECT_EQ(std::ranges::count(readers, 1) + shared, 64);
    EXPECT_LE(shared, workers == 3 ? 2 * 4 : 0);
  }
}

TEST(Lanes, InTheOrderOfTheRowsPiecesOfOthersAreLeftOut) {
  const auto pieces = pieces_of(std::vector<std::int64_t>(40, 10), 40);
  Pieces source(pieces);
  BlockReader reader(source, prepare, {},
                     {.batch_size = 200, .pieces = pieces, .rank = 1, .workers = 4});
  StopFlag stop;
  reader.start(0);
  const Block* const block = reader.next(stop);
  ASSERT_NE(block, nullptr);
  EXPECT_EQ(block->rows, 400);
  EXPECT_EQ(block->data.rows, 100);
  reader.end_pass();
  for (std::size_t p = 0; p < pieces.size(); ++p) {
    const std::size_t in_batch = p % 20;
    EXPECT_EQ(source.times_read(p), in_batch >= 5 && in_batch < 10 ? 1 : 0) << p;
  }
}

}  // namespace onnxgrad::train::lanes_test
