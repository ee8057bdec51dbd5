#ifndef ONNXGRAD_TRAIN_FIT_BATCH_FEED_H_
#define ONNXGRAD_TRAIN_FIT_BATCH_FEED_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "train/data/dataset.h"
#include "train/fit/evaluator.h"

namespace onnxgrad::train {

inline constexpr std::int64_t kDefaultBatchSize = 32;

/// Rows that are in memory together, split into batches: batch k has the positions
/// [k * batch_rows, (k + 1) * batch_rows) of the block.
struct RowBlock {
  const PreparedData* data = nullptr;
  /// The row of `data` at each position; empty: the rows in order, which are then read in place.
  std::span<const std::int64_t> order = {};
  /// Rows that a row may be mixed with, in an order of their own; empty: all rows of `data`.
  std::span<const std::int64_t> partners = {};
  bool is_kept = false;         ///< `data` has the same rows in all blocks of the fit
  bool has_windows = false;     ///< the rows of a batch are consecutive: they are read in place
  std::int64_t rows = 0;        ///< positions: all of `order`, or all rows of `data`
  std::int64_t batch_rows = 0;  ///< rows of every batch except a smaller last one

  /// The number of the row at this position, in the user's numbering.
  std::int64_t row_number(std::int64_t place) const {
    return data->row_number(order.empty() ? place : order[static_cast<std::size_t>(place)]);
  }
};

/// The source of rows for the epoch loop, block by block. An epoch of arrays is one block, so
/// nothing here is called in the loop over its batches. The rows, blocks and order of an epoch are
/// a function of the data, the options and the number of the epoch: a resumed loop begins the epoch
/// again and skips the blocks that are done.
class BatchFeed {
 public:
  BatchFeed() = default;
  BatchFeed(const BatchFeed&) = delete;
  BatchFeed& operator=(const BatchFeed&) = delete;
  virtual ~BatchFeed() = default;

  /// Begins an epoch, from 1.
  virtual void begin_epoch(std::int64_t epoch) = 0;
  /// The next block of the epoch, valid until the next call; nullptr at its end, or if `stop`
  /// became true meanwhile. Throws: DataError, what a source throws.
  virtual const RowBlock* next(StopFlag& stop) = 0;
  /// Ends the epoch, possibly early.
  virtual void end_epoch() {}

  /// The validation requested by the options; at most one call.
  virtual void open_validation(std::optional<Validation>& validation) = 0;
  /// A block of the form of all blocks, if known before the first epoch; else nullptr.
  virtual const RowBlock* known_block() const { return nullptr; }
  /// True: each block is one batch, with rows that may be kept by copying its PreparedData.
  virtual bool gives_single_batches() const { return false; }
  /// Rows of an epoch; nullopt if not known (yet).
  virtual std::optional<std::int64_t> num_rows() const = 0;
  /// Batches of an epoch; nullopt if not known (yet).
  virtual std::optional<std::int64_t> num_batches() const = 0;
  /// Finds num_batches() by reading all rows, if they can be read again afterwards. False: they
  /// cannot, or `stop` became true meanwhile.
  virtual bool count_batches(StopFlag& /*stop*/) { return true; }
  /// Seconds that next() waited since construction.
  virtual double waited_s() const { return 0; }
  /// Checksum of the rows that a fit resumed after the first `row` rows of the epoch must find
  /// again: all rows of arrays; else the blocks up to there, which are the current one or shortly
  /// before it. Only with checkpoints or a resumed fit; all workers call it together.
  virtual std::string checksum(std::int64_t row) const = 0;
};

/// Ends the epoch of a feed, however its use ends.
struct EpochEnder {
  explicit EpochEnder(BatchFeed& ended) : feed(ended) {}
  ~EpochEnder() { feed.end_epoch(); }
  EpochEnder(const EpochEnder&) = delete;
  EpochEnder& operator=(const EpochEnder&) = delete;
  BatchFeed& feed;
};

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_FIT_BATCH_FEED_H_
