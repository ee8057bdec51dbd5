#ifndef ONNXGRAD_TRAIN_FIT_BATCH_BINDER_H_
#define ONNXGRAD_TRAIN_FIT_BATCH_BINDER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "train/data/augment.h"
#include "train/data/row_copy.h"
#include "train/fit/batch_feed.h"
#include "train/fit/device_batches.h"
#include "train/session/step_runner.h"

namespace onnxgrad::train {

/// Maximum number of batches in a series.
inline constexpr std::size_t kLongestSeries = 256;

/// The plans of a fit's batches, and the binding of their rows: read in place if a batch is
/// consecutive rows (one row is), else gathered into a buffer of one batch. On a device other than
/// the host batches are what DeviceBatches says.
class BatchBinder {
 public:
  /// `step` outlives this.
  explicit BatchBinder(StepRunner& step) : step_(step) {
    if (!is_on_host() && step.runs_series()) device_.emplace(step, *this);
  }
  BatchBinder(const BatchBinder&) = delete;
  BatchBinder& operator=(const BatchBinder&) = delete;

  bool is_on_host() const { return step_.executor().device().is_host(); }

  /// Makes batches changed copies of the rows, from the next block on; `augmentations` outlive
  /// this.
  void augment(std::span<const Augmentation> augmentations, std::uint64_t seed) {
    augmentations_ = augmentations;
    seed_ = seed;
  }
  /// Begins an epoch, from 1.
  void begin_epoch(std::int64_t epoch) {
    epoch_ = epoch;
    if (augmenter_) augmenter_->begin_epoch(epoch);
  }
  /// Compiles the plans for the batches of such a block, unless they are those of the last call:
  /// for batch_rows rows, and for the rest unless that is skipped. Then bind() allocates nothing.
  /// Throws: DataError (a batch that cannot be filled up to the model's fixed number of rows).
  void prepare(const RowBlock& block, bool drop_last);
  /// The plan for this many rows from this position on, with the rows bound; each of several
  /// workers binds its slice of them. Call prepare() first.
  runtime::Execution& bind(const RowBlock& block, std::int64_t begin, std::int64_t rows) {
    runtime::Execution& execution = plan(block, rows);
    const RowSlice slice = take_slice(step_, rows);
    bind_to(execution, block, begin + slice.first, slice.rows);
    return execution;
  }
  /// Binds a batch to another step, whose plan is compiled if necessary.
  runtime::Execution& bind(StepRunner& step, const RowBlock& block, std::int64_t begin,
                           std::int64_t rows);
  /// The plan for this many rows; call prepare() first.
  runtime::Execution& plan(const RowBlock& block, std::int64_t rows) const {
    return rows == block.batch_rows ? *full_.execution : *tail_.execution;
  }
  /// Whether batches of this many rows can be a series: on the host, if one worker reads them in
  /// place.
  bool makes_series(const RowBlock& block, std::int64_t rows) const;
  /// A series of `count` batches of this many rows from this position on, on plan(); valid until
  /// the next call.
  runtime::StepSeries series(const RowBlock& block, std::int64_t begin, std::int64_t rows,
                             std::int64_t count);
  /// Writes the rows of a batch to tensors with room for them, one for each column with rows.
  void write_batch(const RowBlock& block, std::int64_t begin, std::int64_t rows,
                   std::vector<Tensor>& to);
  /// Binds the rows to the caller's plan.
  void bind_to(runtime::Execution& plan, const RowBlock& block, std::int64_t begin,
               std::int64_t rows) {
    if (augmenter_) return bind_augmented(plan, block, begin, rows);
    for (std::size_t c = 0; c < block.data->columns.size(); ++c) {
      StepRunner::bind(plan, c, gather(block, c, begin, rows));
    }
  }

 private:
  struct Plan {
    std::int64_t rows = 0;
    std::vector<Dims> dims = {};
    runtime::Execution* execution = nullptr;
    std::optional<runtime::Pin> pin = {};
  };
  /// Whether this many rows are filled up to a batch.
  bool is_filled(std::int64_t rows) const { return rows < step_.fixed_rows(); }
  /// Whether rows of this block are copied before they are bound.
  bool needs_staging(const RowBlock& block, bool drop_last) const;
  /// This worker's rows of a batch, or the first unit, which does not count; tells `step`.
  static RowSlice take_slice(StepRunner& step, std::int64_t rows) {
    const RowSlice slice = step.workers().slice_of(rows);
    if (!step.workers().has_others()) return slice;
    step.set_rows(slice, rows);
    return slice.rows > 0 ? slice : RowSlice{.first = 0, .rows = step.workers().rows_of_unit()};
  }
  std::int64_t own_rows(std::int64_t rows) const;
  bool fits(const Plan& plan, const PreparedData& data, std::int64_t rows) const;
  void bind_augmented(runtime::Execution& plan, const RowBlock& block, std::int64_t begin,
                      std::int64_t rows);
  /// The shapes of a batch.
  std::vector<Dims> batch_dims(const PreparedData& data, std::int64_t rows) const;
  void prepare(Plan& plan, const PreparedData& data, std::int64_t rows);
  void prepare_staging(const RowBlock& block);
  void prepare_device(const RowBlock& block, bool drop_last);
  void write_augmented(const RowBlock& block, std::int64_t begin, std::int64_t rows,
                       std::vector<Tensor>& to);
  const std::byte* gather_filled(const RowBlock& block, std::size_t column, std::int64_t begin,
                                 std::int64_t rows, Tensor& batch) const;
  const std::byte* gather(const RowBlock& block, std::size_t column, std::int64_t begin,
                          std::int64_t rows) {
    const Column& source = block.data->columns[column];
    if (source.is_constant) return source.values.raw();
    if (is_filled(rows)) return gather_filled(block, column, begin, rows, staging_[column]);
    if (block.order.empty()) return source.row(begin);
    if (block.has_windows || rows == 1) {
      return source.row(block.order[static_cast<std::size_t>(begin)]);
    }
    Tensor& batch = staging_[column];
    gather_rows(
        source,
        block.order.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(rows)),
        batch.mutable_raw());
    return batch.raw();
  }

  StepRunner& step_;
  std::span<const Augmentation> augmentations_;
  std::uint64_t seed_ = 0;
  std::int64_t epoch_ = 1;
  std::optional<Augmenter> augmenter_;  ///< made for the first block
  std::vector<Tensor> staging_;         ///< per column, one batch
  std::vector<runtime::StepSeries::Input> series_inputs_;
  std::vector<std::int64_t> series_rows_;
  Plan full_;
  Plan tail_;
  std::optional<DeviceBatches> device_;  ///< none: the host, or steps that are no series
};

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_FIT_BATCH_BINDER_H_
