#ifndef ONNXGRAD_TRAIN_FIT_CHUNK_FEED_H_
#define ONNXGRAD_TRAIN_FIT_CHUNK_FEED_H_

#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "base/checksum.h"
#include "train/data/block_reader.h"
#include "train/fit/batch_feed.h"
#include "train/fit/class_weigher.h"

namespace onnxgrad::train {

/// Feed of rows that come in chunks, read in a separate thread in blocks of a BlockReader.
/// Plans are compiled when a batch of a new shape arrives.
class ChunkFeed final : public BatchFeed {
 public:
  /// The arguments except `stop` outlive this; the batch size is set in `options`.
  /// With ClassWeights::balanced the source is read once, unless `stop` becomes true.
  /// Throws: DataError (options that need all rows at once, or more passes than are possible).
  ChunkFeed(Session& session, DataSource& source, FitOptions& options, StopFlag& stop);

  void begin_epoch(std::int64_t epoch) override;
  const RowBlock* next(StopFlag& stop) override;
  void end_epoch() override { reader_->end_pass(); }
  void open_validation(std::optional<Validation>& validation) override;
  bool gives_single_batches() const override { return as_they_come_; }
  std::optional<std::int64_t> num_rows() const override;
  std::optional<std::int64_t> num_batches() const override;
  bool count_batches(StopFlag& stop) override;
  double waited_s() const override { return reader_->waited_s(); }
  std::string checksum(std::int64_t row) const override;

 private:
  void prepare_class_weights();
  bool count(StopFlag& stop);
  bool is_left_out(const Block& block) const;
  void add_to_checksum(const Block& block);
  void add_own_rows_to_checksum(const Block& block);
  BlockOptions block_options();

  Session& session_;
  DataSource& source_;
  const FitOptions& options_;
  bool as_they_come_ = false;
  bool has_checksum_ = false;
  std::optional<ClassWeigher> weigher_;
  std::optional<SourceCount> count_;
  StopFlag& stop_;
  std::optional<std::int64_t> lane_rows_;  ///< rows of an epoch, if it is read in lanes
  std::optional<BlockReader> reader_;
  const Block* present_ = nullptr;
  RowBlock block_;
  /// Rows of the epoch's first chunk, if chunks are batches.
  std::int64_t first_rows_ = 0;
  std::optional<base::Checksum> checksum_;  ///< over the epoch's rows so far
  struct Mark {
    std::int64_t rows_done = 0;  ///< rows of the epoch, with this block
    std::string checksum;
    std::uint64_t sum = 0;  ///< sum of the hashes of this worker's rows so far, if read in lanes
  };
  std::deque<Mark> marks_;           ///< one for each of the last blocks
  std::string validation_checksum_;  ///< checksum of separate rows in memory
};

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_FIT_CHUNK_FEED_H_
