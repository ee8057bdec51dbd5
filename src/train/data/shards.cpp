#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "onnxgrad/data_files.h"
#include "train/data/chunked_source.h"
#include "train/data/sampler.h"

namespace onnxgrad::train {
namespace {

class ShardedSource final : public DataSource {
 public:
  explicit ShardedSource(std::vector<Shard> shards) : shards_(std::move(shards)) {
    for (Shard& shard : shards_) {
      if (!shard.rows) shard.rows = shard.open()->num_rows();
      if (!shard.rows) {
        throw DataError({.what = shard.name + " does not know its number of rows",
                         .where = {.file = shard.name},
                         .hint = "Give files, whose rows are counted."});
      }
      first_rows_.push_back(rows_);
      rows_ += *shard.rows;
    }
    if (rows_ == 0) {
      throw DataError({.what = "the shards have no rows", .hint = "Check the paths of the files."});
    }
  }

  std::optional<std::int64_t> num_rows() const override { return rows_; }

  bool take_rows(std::int64_t begin, std::int64_t end) override {
    begin_ = begin;
    end_ = end;
    return true;
  }

  void start(const Pass& pass) override {
    pass_ = pass;
    position_ = 0;
    row_ = 0;
    open_.reset();
  }

  std::optional<Dataset> next() override {
    while (open_ || open_next()) {
      if (auto chunk = open_->next()) {
        const std::int64_t rows = rows_in(*chunk);
        const std::int64_t first = std::clamp<std::int64_t>(skipped_, 0, rows);
        const std::int64_t count = std::min(rows - first, left_);
        skipped_ -= first;
        left_ -= count;
        if (count == 0) continue;
        return number(count == rows ? *std::move(chunk) : cut_rows(*chunk, first, count));
      }
      open_.reset();
    }
    return std::nullopt;
  }

 private:
  // The next shard of the pass with rows to take; those without are not opened.
  bool open_next() {
    const auto size = static_cast<std::uint64_t>(shards_.size());
    const KeyedPermutation order(size, pass_.seed, pass_.epoch);
    const std::int64_t end = end_ < 0 ? rows_ : end_;
    while (position_ < size && row_ < end) {
      shard_ = pass_.shuffle ? order(position_) : position_;
      ++position_;
      const std::int64_t rows = *shards_[shard_].rows;
      const std::int64_t first = std::max(begin_ - row_, std::int64_t{0});
      const std::int64_t last = std::min(end - row_, rows);
      row_ += rows;
      if (first >= last) continue;
      open_ = shards_[shard_].open();
      left_ = last - first;
      // Where it cannot leave rows out, they are read and dropped.
      skipped_ = left_ == rows || open_->take_rows(first, last) ? 0 : first;
      origin_.reset();
      Pass pass = pass_;
      pass.seed += shard_;  // shards of the same size are not shuffled alike
      open_->start(pass);
      return true;
    }
    return false;
  }

  // Rows are numbered in the whole data; messages name the shard and its lines.
  Dataset number(Dataset chunk) {
    const std::int64_t offset = first_rows_[shard_];
    chunk.first_row += offset;
    if (chunk.origin == nullptr) return chunk;
    if (origin_ == nullptr) {
      auto origin = std::make_shared<DataOrigin>(*chunk.origin);
      if (origin->line_of) {  // of the source, which lives as long
        origin->line_of = [source = open_, inner = chunk.origin, offset](std::int64_t row) {
          return inner->line_of(row - offset);
        };
      }
      origin_ = std::move(origin);
    }
    chunk.origin = origin_;
    return chunk;
  }

  std::vector<Shard> shards_;
  std::vector<std::int64_t> first_rows_;
  std::int64_t rows_ = 0;
  std::int64_t begin_ = 0;
  std::int64_t end_ = -1;  // -1: all

  Pass pass_;
  std::uint64_t position_ = 0;  // of the next shard in the pass
  std::int64_t row_ = 0;        // its first row in the pass
  std::uint64_t shard_ = 0;     // that is open
  std::shared_ptr<DataSource> open_;
  std::int64_t skipped_ = 0;  // rows of it to drop first
  std::int64_t left_ = 0;     // rows of it to take after these
  std::shared_ptr<const DataOrigin> origin_;
};

}  // namespace
}  // namespace onnxgrad::train

namespace onnxgrad {

std::unique_ptr<DataSource> open_shards(std::vector<Shard> shards) {
  if (shards.empty()) {
    throw DataError({.what = "there are no shards", .hint = "Give at least one file."});
  }
  return std::make_unique<train::ShardedSource>(std::move(shards));
}

}  // namespace onnxgrad
