#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "onnxgrad/data_files.h"
#include "train/data/chunked_source.h"
#include "train/data/sampler.h"

namespace onnxgrad::train {
namespace {

// A shard being read: its rows are numbered in the whole data; messages name the shard and its
// lines.
class OpenShard {
 public:
  OpenShard() = default;
  // `source` is `file` or reads from it.
  OpenShard(std::shared_ptr<DataSource> file, std::shared_ptr<DataSource> source,
            std::int64_t first_row)
      : file_(std::move(file)), source_(std::move(source)), first_row_(first_row) {}

  explicit operator bool() const { return source_ != nullptr; }
  void close() { *this = {}; }
  std::optional<Dataset> next() {
    std::optional<Dataset> chunk = source_->next();
    if (!chunk) return chunk;
    chunk->first_row += first_row_;
    if (chunk->origin == nullptr) return chunk;
    if (origin_ == nullptr) {
      auto origin = std::make_shared<DataOrigin>(*chunk->origin);
      if (origin->line_of) {  // reads the source, which outlives the origin
        origin->line_of = [file = file_, source = source_, inner = chunk->origin,
                           offset = first_row_](std::int64_t row) {
          return inner->line_of(row - offset);
        };
      }
      origin_ = std::move(origin);
    }
    chunk->origin = origin_;
    return chunk;
  }

 private:
  std::shared_ptr<DataSource> file_;
  std::shared_ptr<DataSource> source_;
  std::int64_t first_row_ = 0;
  std::shared_ptr<const DataOrigin> origin_;
};

// Shards of the same size are not shuffled alike.
Pass pass_of(Pass pass, std::int64_t shard) {
  pass.seed += static_cast<std::uint64_t>(shard);
  return pass;
}

class ShardedSource final : public DataSource {
 public:
  explicit ShardedSource(std::vector<Shard> shards) : shards_(std::move(shards)) {
    for (Shard& shard : shards_) {
      if (!shard.rows) {
        const auto source = shard.open();
        shard.rows = source->num_rows();
        if (shard.rows && shard.piece_rows.empty()) note_pieces(shard, *source);
      }
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
    opened_.resize(shards_.size());
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
    open_.close();
  }

  std::optional<Dataset> next() override {
    while (open_ || open_next()) {
      if (auto chunk = open_.next()) {
        const std::int64_t rows = rows_in(*chunk);
        const std::int64_t first = std::clamp<std::int64_t>(skipped_, 0, rows);
        const std::int64_t count = std::min(rows - first, left_);
        skipped_ -= first;
        left_ -= count;
        if (count == 0) continue;
        return count == rows ? *std::move(chunk) : cut_rows(*chunk, first, count);
      }
      open_.close();
    }
    return std::nullopt;
  }

  std::vector<Piece> pieces() const override;
  std::unique_ptr<DataSource> open_pieces(const std::vector<std::int64_t>& numbers) const override;

  // Consecutive pieces of one shard.
  struct Run {
    std::int64_t shard = 0;
    std::vector<std::int64_t> pieces = {};  // indices of pieces of the shard
  };
  OpenShard open_run(const Run& run, const Pass& pass) const;

 private:
  bool are_pieces() const { return std::ssize(shards_) >= kShardsAsPieces; }
  // If the rows of a shard come one after another only, it is one piece.
  static void note_pieces(Shard& shard, const DataSource& source) {
    for (const Piece& piece : source.pieces()) {
      shard.piece_rows.push_back(piece.rows);
      shard.piece_bytes = std::max(shard.piece_bytes, piece.bytes);
    }
    if (shard.piece_rows.empty()) shard.piece_rows = {*shard.rows};
  }
  const std::vector<std::int64_t>& piece_rows(const Shard& shard) const;

  // The next shard of the pass with rows to take; those without are not opened.
  bool open_next() {
    const auto size = static_cast<std::uint64_t>(shards_.size());
    const KeyedPermutation order(size, pass_.seed, pass_.epoch);
    const std::int64_t end = end_ < 0 ? rows_ : end_;
    while (position_ < size && row_ < end) {
      const std::uint64_t shard = pass_.shuffle ? order(position_) : position_;
      ++position_;
      const std::int64_t rows = *shards_[shard].rows;
      const std::int64_t first = std::max(begin_ - row_, std::int64_t{0});
      const std::int64_t last = std::min(end - row_, rows);
      row_ += rows;
      if (first >= last) continue;
      const auto source = shards_[shard].open();
      left_ = last - first;
      // A source that cannot leave rows out reads them, and they are dropped.
      skipped_ = left_ == rows || source->take_rows(first, last) ? 0 : first;
      source->start(pass_of(pass_, static_cast<std::int64_t>(shard)));
      open_ = {source, source, first_rows_[shard]};
      return true;
    }
    return false;
  }

  mutable std::vector<Shard> shards_;  // piece_rows are found out when they are needed
  std::vector<std::int64_t> first_rows_;
  std::int64_t rows_ = 0;
  std::int64_t begin_ = 0;
  std::int64_t end_ = -1;  // -1: all
  // Shards that are open now: what is known of a file is shared by all who read its pieces.
  mutable std::vector<std::weak_ptr<DataSource>> opened_;

  Pass pass_;
  std::uint64_t position_ = 0;  // position of the next shard in the pass
  std::int64_t row_ = 0;        // first row of the shard in the pass
  OpenShard open_;
  std::int64_t skipped_ = 0;  // rows of it to drop first
  std::int64_t left_ = 0;     // rows of it to take after these
};

// Pieces of some shards, one run after another.
class ShardPieces final : public DataSource {
 public:
  ShardPieces(const ShardedSource& all, std::vector<ShardedSource::Run> runs)
      : all_(all), runs_(std::move(runs)) {}
  std::optional<std::int64_t> num_rows() const override { return std::nullopt; }
  void start(const Pass& pass) override {
    pass_ = pass;
    next_ = 0;
    open_.close();
  }
  std::optional<Dataset> next() override {
    while (open_ || next_ < runs_.size()) {
      if (!open_) open_ = all_.open_run(runs_[next_++], pass_);
      if (auto chunk = open_.next()) return chunk;
      open_.close();
    }
    return std::nullopt;
  }

 private:
  const ShardedSource& all_;
  std::vector<ShardedSource::Run> runs_;
  std::size_t next_ = 0;
  Pass pass_;
  OpenShard open_;
};

const std::vector<std::int64_t>& ShardedSource::piece_rows(const Shard& shard) const {
  if (shard.piece_rows.empty()) {
    const auto place = static_cast<std::size_t>(&shard - shards_.data());
    note_pieces(shards_[place], *shard.open());
  }
  return shard.piece_rows;
}

std::vector<Piece> ShardedSource::pieces() const {
  std::vector<Piece> pieces;
  for (std::size_t s = 0; s < shards_.size(); ++s) {
    Piece piece{.first_row = first_rows_[s],
                .file = static_cast<std::int64_t>(s),
                .bytes = shards_[s].piece_bytes};
    if (are_pieces()) {
      piece.rows = *shards_[s].rows;
      pieces.push_back(piece);
      continue;
    }
    for (const std::int64_t rows : piece_rows(shards_[s])) {
      piece.rows = rows;
      pieces.push_back(piece);
      piece.first_row += rows;
    }
  }
  return pieces;
}

std::unique_ptr<DataSource> ShardedSource::open_pieces(
    const std::vector<std::int64_t>& numbers) const {
  std::vector<std::int64_t> first_pieces;  // index of the first piece of each shard
  std::int64_t count = 0;
  for (const Shard& shard : shards_) {
    first_pieces.push_back(count);
    count += are_pieces() ? 1 : std::ssize(piece_rows(shard));
  }
  std::vector<Run> runs;
  for (const std::int64_t number : numbers) {
    const auto after = std::ranges::upper_bound(first_pieces, number);
    const std::int64_t shard = after - first_pieces.begin() - 1;
    if (runs.empty() || runs.back().shard != shard) runs.push_back({.shard = shard});
    runs.back().pieces.push_back(number - first_pieces[static_cast<std::size_t>(shard)]);
  }
  return std::make_unique<ShardPieces>(*this, std::move(runs));
}

OpenShard ShardedSource::open_run(const Run& run, const Pass& pass) const {
  const auto place = static_cast<std::size_t>(run.shard);
  const Shard& shard = shards_[place];
  const Pass own = pass_of(pass, run.shard);
  if (are_pieces() || piece_rows(shard).size() == 1) {  // read by one only
    auto whole = shard.open();
    whole->start(own);
    return {whole, whole, first_rows_[place]};
  }
  std::shared_ptr<DataSource> file = opened_[place].lock();
  if (file == nullptr) opened_[place] = file = shard.open();
  std::shared_ptr<DataSource> part = file->open_pieces(run.pieces);
  part->start(own);
  return {std::move(file), std::move(part), first_rows_[place]};
}

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
