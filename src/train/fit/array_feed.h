#ifndef ONNXGRAD_TRAIN_FIT_ARRAY_FEED_H_
#define ONNXGRAD_TRAIN_FIT_ARRAY_FEED_H_

#include <optional>
#include <string>
#include <vector>

#include "train/data/sampler.h"
#include "train/fit/batch_feed.h"

namespace onnxgrad::train {

/// Rows that are all in memory: checked, converted and split at construction. An epoch is one
/// block, in the order of the rows or in a permutation that is a function of (seed, epoch); above
/// kMostOrdered rows it is a block after another of a permutation that needs no array of all rows.
inline constexpr std::int64_t kMostOrdered = std::int64_t{1} << 20;

class ArrayFeed final : public BatchFeed {
 public:
  /// Sets the batch size in `options`. Both outlive this.
  /// Throws: DataError, OptionError.
  ArrayFeed(Session& session, const Dataset& data, FitOptions& options);

  void begin_epoch(std::int64_t epoch) override;
  const RowBlock* next(StopFlag& stop) override;
  void open_validation(std::optional<Validation>& validation) override;
  const RowBlock* known_block() const override { return &block_; }
  std::optional<std::int64_t> num_rows() const override { return rows_; }
  std::optional<std::int64_t> num_batches() const override;
  std::string checksum(std::int64_t /*row*/) const override { return checksum_; }

 private:
  std::optional<PreparedData> take_validation();
  void prepare_sampling();
  void take_row_weights(const std::vector<double>& weights);
  void find_classes();
  void draw(std::int64_t epoch);
  std::int64_t reached(std::int64_t rows) const;
  std::int64_t num_train_rows() const {
    return train_rows_.empty() ? data_.rows : static_cast<std::int64_t>(train_rows_.size());
  }

  Session& session_;
  const FitOptions& options_;
  PreparedData data_;
  std::vector<std::int64_t> train_rows_;            ///< empty: all rows of data_
  std::vector<std::int64_t> order_;                 ///< order of the epoch; empty: as they are
  std::vector<double> row_weights_;                 ///< Sampling::kWeighted: of the training rows
  std::vector<std::vector<std::int64_t>> members_;  ///< kBalanced: training rows of each class
  std::optional<PreparedData> validation_;
  std::string checksum_;
  RowBlock block_;
  std::int64_t rows_ = 0;  ///< rows of an epoch
  std::int64_t done_ = 0;  ///< rows of this epoch's blocks so far
  /// The order of an epoch with too many rows for an array of all of them.
  std::optional<KeyedPermutation> permutation_;
};

/// Checksum of names, types, shapes and elements; `validation` may be nullptr.
std::string checksum_of(const PreparedData& data, const PreparedData* validation);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_FIT_ARRAY_FEED_H_
