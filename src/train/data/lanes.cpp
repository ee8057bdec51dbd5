#include "train/data/lanes.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "train/data/sampler.h"

namespace onnxgrad::train {
namespace {

// Files and the pieces of each are shuffled with the same seed, from different streams.
constexpr std::uint64_t kPieceStream = 0x9E3779B97F4A7C15;

}  // namespace

std::vector<std::int64_t> shuffle_pieces(std::span<const Piece> pieces, const Pass& pass) {
  std::vector<std::size_t> begins;  // first piece of each file
  for (std::size_t p = 0; p < pieces.size(); ++p) {
    if (p == 0 || pieces[p].file != pieces[p - 1].file) begins.push_back(p);
  }
  const std::size_t files = begins.size();
  begins.push_back(pieces.size());
  const KeyedPermutation file_at(files, pass.seed, pass.epoch);
  std::vector<std::int64_t> order;
  order.reserve(pieces.size());
  for (std::uint64_t f = 0; f < files; ++f) {
    const std::uint64_t file = file_at(f);
    const std::uint64_t count = begins[file + 1] - begins[file];
    const KeyedPermutation piece_at(count, (pass.seed + file) ^ kPieceStream, pass.epoch);
    for (std::uint64_t p = 0; p < count; ++p) {
      order.push_back(static_cast<std::int64_t>(begins[file] + piece_at(p)));
    }
  }
  return order;
}

Lanes::Lanes(std::vector<Lane> lanes) : lanes_(std::move(lanes)) {
  for (const Lane& lane : lanes_) rows_ += lane.rows;
}

std::int64_t count_lanes(std::span<const Piece> pieces, std::int64_t bytes) {
  std::int64_t largest = 1;
  for (const Piece& piece : pieces) largest = std::max(largest, piece.bytes);
  return std::clamp(bytes / largest, kFewestLanes, kMostLanes);
}

Lanes::Lanes(std::span<const Piece> pieces, std::span<const std::int64_t> used, const Pass& pass,
             std::int64_t most) {
  const auto rows_of = [&](std::int64_t piece) {
    const auto p = static_cast<std::size_t>(piece);
    return used.empty() ? pieces[p].rows : used[p];
  };
  for (std::int64_t p = 0; p < std::ssize(pieces); ++p) rows_ += rows_of(p);
  std::vector<std::int64_t> order(pieces.size());
  std::iota(order.begin(), order.end(), std::int64_t{0});
  if (pass.shuffle) order = shuffle_pieces(pieces, pass);
  most = pass.shuffle ? std::min(most, std::ssize(pieces)) : 1;
  lanes_.resize(static_cast<std::size_t>(most));
  // A piece is in the lane in which its middle is.
  const double length = static_cast<double>(rows_) / static_cast<double>(most);
  double before = 0;
  for (const std::int64_t piece : order) {
    const std::int64_t rows = rows_of(piece);
    if (rows == 0) continue;
    const double middle = before + static_cast<double>(rows) / 2;
    const auto place = static_cast<std::int64_t>(middle / std::max(length, 1.0));
    Lane& lane = lanes_[static_cast<std::size_t>(std::min(place, most - 1))];
    lane.pieces.push_back(piece);
    lane.rows += rows;
    before += static_cast<double>(rows);
  }
  std::erase_if(lanes_, [](const Lane& lane) { return lane.rows == 0; });
}

void Lanes::count(std::int64_t position, std::span<std::int64_t> counts) const {
  // Near to the solution: all rows with keys up to position / rows.
  const double share =
      static_cast<double>(position) / static_cast<double>(std::max<std::int64_t>(rows_, 1));
  std::int64_t sum = 0;
  for (std::size_t l = 0; l < lanes_.size(); ++l) {
    const std::int64_t rows = lanes_[l].rows;
    const auto near =
        static_cast<std::int64_t>(std::floor(share * static_cast<double>(rows) + 0.5));
    counts[l] = std::clamp<std::int64_t>(near, 0, rows);
    sum += counts[l];
  }
  // Then exactly: rows are added and taken away until the keys of those inside are the smallest.
  while (true) {
    std::size_t first_out = lanes_.size();  // the lane with the smallest key outside
    std::size_t last_in = lanes_.size();    // the lane with the largest key inside
    for (std::size_t l = 0; l < lanes_.size(); ++l) {
      if (counts[l] < lanes_[l].rows &&
          (first_out == lanes_.size() || key(l, counts[l]) < key(first_out, counts[first_out]))) {
        first_out = l;
      }
      if (counts[l] > 0 && (last_in == lanes_.size() ||
                            key(l, counts[l] - 1) >= key(last_in, counts[last_in] - 1))) {
        last_in = l;
      }
    }
    if (sum < position) {
      ++counts[first_out];
      ++sum;
      continue;
    }
    if (sum > position) {
      --counts[last_in];
      --sum;
      continue;
    }
    if (first_out == lanes_.size() || last_in == lanes_.size()) return;
    const double out = key(first_out, counts[first_out]);
    const double in = key(last_in, counts[last_in] - 1);
    if (in < out || (in == out && last_in <= first_out)) return;
    ++counts[first_out];
    --counts[last_in];
  }
}

}  // namespace onnxgrad::train
