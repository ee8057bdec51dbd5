#ifndef ONNXGRAD_TRAIN_DATA_LANES_H_
#define ONNXGRAD_TRAIN_DATA_LANES_H_

#include <cstdint>
#include <span>
#include <vector>

#include "onnxgrad/data.h"

// The order of an epoch of data in pieces, which does not depend on the number of workers. The
// pieces, in an order that is a function of (seed, epoch), are divided into up to 16 lanes. An
// epoch takes rows from all lanes at rates in proportion to their lengths, so the rows of each
// batch are those of one lane after another, and a worker that computes a range of every batch
// reads a few lanes only.

namespace onnxgrad::train {

inline constexpr std::int64_t kMostLanes = 16;
inline constexpr std::int64_t kFewestLanes = 4;

/// Number of lanes: kMostLanes if a piece of each fits into `bytes` of memory together,
/// since one worker reads all of them at a time; else fewer.
std::int64_t count_lanes(std::span<const Piece> pieces, std::int64_t bytes);

/// The lanes of a pass, and how many of the first rows of the epoch are in each of them. The rows i
/// of a lane of N rows have the keys (i + 1/2) / N; an epoch is all rows in the order of their
/// keys, equal ones in the order of lanes.
class Lanes {
 public:
  struct Lane {
    std::vector<std::int64_t> pieces = {};  ///< in the order in which they are read
    std::int64_t rows = 0;                  ///< rows that are used
  };

  Lanes() = default;
  /// `used`: number of rows of each piece that are used; empty: all. `most`: count_lanes(). Without
  /// shuffling there is one lane, of all pieces in order.
  Lanes(std::span<const Piece> pieces, std::span<const std::int64_t> used, const Pass& pass,
        std::int64_t most = kMostLanes);
  explicit Lanes(std::vector<Lane> lanes);

  const std::vector<Lane>& lanes() const { return lanes_; }
  std::int64_t rows() const { return rows_; }
  /// Counts the rows of each lane among the first `position` rows of the epoch, one number in
  /// `counts` for each lane.
  void count(std::int64_t position, std::span<std::int64_t> counts) const;

 private:
  double key(std::size_t lane, std::int64_t row) const {
    return (static_cast<double>(row) + 0.5) / static_cast<double>(lanes_[lane].rows);
  }

  std::vector<Lane> lanes_;
  std::int64_t rows_ = 0;
};

/// The numbers of the pieces in the order of a shuffled pass: files in a random order, and the
/// pieces of each.
std::vector<std::int64_t> shuffle_pieces(std::span<const Piece> pieces, const Pass& pass);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_DATA_LANES_H_
