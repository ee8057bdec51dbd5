#include "train/fit/worker_rows.h"

#include <algorithm>

namespace onnxgrad::train {

std::optional<WorkerRows> WorkerRows::divide(DataSource& source, const Workers& workers,
                                             std::int64_t batch_rows) {
  const std::optional<std::int64_t> rows = source.num_rows();
  if (!rows || *rows < batch_rows || batch_rows < workers.size()) return std::nullopt;
  if (!source.take_rows(0, *rows)) return std::nullopt;
  WorkerRows result;
  result.all_rows_ = batch_rows;
  result.batches_ = *rows / batch_rows;
  result.tail_ = *rows % batch_rows;
  result.slice_ = workers.slice_of(batch_rows);
  result.tail_slice_ = workers.slice_of(result.tail_);
  result.begin_ = result.batches_ * result.slice_.first + result.tail_slice_.first;
  result.largest_batch_ = train::slice_of(batch_rows, 0, workers.size()).rows;
  return result;
}

void WorkerRows::begin_epoch() {
  batches_done_ = 0;
  is_tail_done_ = false;
  block_ = nullptr;
  used_ = 0;
}

WorkerRows::Part WorkerRows::full_batches() {
  used_ = 0;
  const std::int64_t here = std::min(block_->data.rows / slice_.rows, batches_ - batches_done_);
  batches_done_ += here;
  order_.assign(static_cast<std::size_t>(here * all_rows_), 0);
  for (std::int64_t batch = 0; batch < here; ++batch) place(batch * all_rows_, slice_);
  return {.block = block_, .order = order_, .rows = here * all_rows_};
}

WorkerRows::Part WorkerRows::last_batch() {
  order_.assign(static_cast<std::size_t>(tail_), 0);
  place(0, tail_slice_);
  return {.block = block_, .order = order_, .rows = tail_};
}

// The next rows of the block are those of the slice of a batch that begins there.
void WorkerRows::place(std::int64_t begin, const RowSlice& slice) {
  for (std::int64_t i = 0; i < slice.rows; ++i, ++used_) {
    order_[static_cast<std::size_t>(begin + slice.first + i)] =
        block_->order.empty() ? used_ : block_->order[static_cast<std::size_t>(used_)];
  }
}

}  // namespace onnxgrad::train
