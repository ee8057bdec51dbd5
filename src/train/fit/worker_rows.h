#ifndef ONNXGRAD_TRAIN_FIT_WORKER_ROWS_H_
#define ONNXGRAD_TRAIN_FIT_WORKER_ROWS_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "onnxgrad/data.h"
#include "train/data/block_reader.h"
#include "train/workers.h"

namespace onnxgrad::train {

/// The rows that one of several workers reads of a source: of each epoch's order, divided into
/// consecutive ranges, one, which has as many rows as the worker takes of all batches together. A
/// block of these is shown as a block of all workers' rows: the positions of its own slices of each
/// batch have its rows, the others are never read.
class WorkerRows {
 public:
  /// Nullopt if the source cannot be divided, or is too small: then each worker reads all rows.
  static std::optional<WorkerRows> divide(DataSource& source, const Workers& workers,
                                          std::int64_t batch_rows);

  /// The rows of this worker, as a source that begins passes of `whole`.
  class Range final : public DataSource {
   public:
    Range(DataSource& whole, std::int64_t begin, std::int64_t end)
        : whole_(whole), begin_(begin), end_(end) {}
    std::optional<std::int64_t> num_rows() const override { return end_ - begin_; }
    void start(const Pass& pass) override {
      whole_.take_rows(begin_, end_);
      whole_.start(pass);
    }
    std::optional<Dataset> next() override { return whole_.next(); }
    bool can_start_again() const override { return whole_.can_start_again(); }

   private:
    DataSource& whole_;
    std::int64_t begin_;
    std::int64_t end_;
  };

  std::int64_t begin() const { return begin_; }  ///< of the range
  std::int64_t end() const { return begin_ + batches_ * slice_.rows + tail_slice_.rows; }
  std::int64_t batch_rows() const { return slice_.rows; }  ///< of this worker
  std::int64_t largest_batch() const { return largest_batch_; }

  /// A part of an epoch: full batches, or the smaller last one.
  struct Part {
    const Block* block = nullptr;  ///< own rows
    std::span<const std::int64_t> order = {};
    std::int64_t rows = 0;  ///< of all workers
  };
  void begin_epoch();
  /// The next part; `read` gives the next block of own rows, or nullptr if it was stopped.
  template <class Read>
  std::optional<Part> next(Read&& read) {
    if (batches_done_ < batches_) {
      if ((block_ = read()) == nullptr) return std::nullopt;
      return full_batches();
    }
    if (tail_ == 0 || is_tail_done_) return std::nullopt;
    is_tail_done_ = true;
    if (tail_slice_.rows > 0 && used_ == block_->data.rows) {
      if ((block_ = read()) == nullptr) return std::nullopt;
      used_ = 0;
    }
    return last_batch();
  }

 private:
  Part full_batches();
  Part last_batch();
  void place(std::int64_t begin, const RowSlice& slice);

  std::int64_t batches_ = 0;   ///< full ones of an epoch
  std::int64_t all_rows_ = 0;  ///< of a full batch
  std::int64_t tail_ = 0;      ///< rows of the last one
  RowSlice slice_ = {};
  RowSlice tail_slice_ = {};
  std::int64_t begin_ = 0;
  std::int64_t largest_batch_ = 0;

  std::int64_t batches_done_ = 0;
  bool is_tail_done_ = false;
  const Block* block_ = nullptr;
  std::int64_t used_ = 0;  ///< rows of it
  std::vector<std::int64_t> order_;
};

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_FIT_WORKER_ROWS_H_
