#include "train/fit/batch_binder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "train/session/batch_filler.h"

namespace onnxgrad::train {
namespace {

// Whether such rows form a batch of these dimensions, except for the number of rows.
bool have_same_rows(const Dims& batch, const Dims& rows) {
  if (batch.rank() != rows.rank()) return false;
  for (std::size_t axis = 1; axis < batch.rank(); ++axis) {
    if (batch[axis] != rows[axis]) return false;
  }
  return true;
}

bool has_texts(const PreparedData& data) {
  return std::ranges::any_of(data.columns, [](const Column& column) {
    return column.values.dtype() == DataType::kString;
  });
}

}  // namespace

std::int64_t BatchBinder::own_rows(std::int64_t rows) const {
  const Workers& workers = step_.workers();
  return std::max({workers.slice_of(rows).rows, step_.fixed_rows(), workers.rows_of_unit()});
}

runtime::Execution& BatchBinder::bind(StepRunner& step, const RowBlock& block, std::int64_t begin,
                                      std::int64_t rows) {
  const RowSlice slice = take_slice(step, rows);
  runtime::Execution& plan =
      step.prepare(batch_dims(*block.data, std::max(slice.rows, step.fixed_rows())));
  bind_to(plan, block, begin + slice.first, slice.rows);
  return plan;
}

bool BatchBinder::fits(const Plan& plan, const PreparedData& data, std::int64_t rows) const {
  if (plan.execution == nullptr || plan.rows != rows) return false;
  for (std::size_t c = 0; c < data.columns.size(); ++c) {
    const Column& column = data.columns[c];
    const bool are_same =
        augmenter_ ? have_same_rows(plan.dims[c], augmenter_->batch_dims(column, c, rows))
                   : have_same_rows(plan.dims[c], column.values.dims());
    if (!are_same) return false;
  }
  return true;
}

std::vector<Dims> BatchBinder::batch_dims(const PreparedData& data, std::int64_t rows) const {
  if (!augmenter_) return data.batch_dims(rows);
  std::vector<Dims> dims;
  for (std::size_t c = 0; c < data.columns.size(); ++c) {
    dims.push_back(augmenter_->batch_dims(data.columns[c], c, rows));
  }
  return dims;
}

// Rows that fill a batch up to the model's fixed number of rows repeat the last row, with weight 0.
void BatchBinder::write_augmented(const RowBlock& block, std::int64_t begin, std::int64_t rows,
                                  std::vector<Tensor>& to) {
  augmenter_->fill({.data = block.data, .order = block.order, .partners = block.partners}, begin,
                   rows, to);
  if (!is_filled(rows)) return;
  for (std::size_t c = 0; c < block.data->columns.size(); ++c) {
    if (block.data->columns[c].is_constant) continue;
    Tensor& batch = to[c];
    const auto bytes = static_cast<std::size_t>(batch.size_bytes() / batch.dims()[0]);
    for (std::int64_t i = rows; i < step_.fixed_rows(); ++i) {
      std::byte* row = batch.mutable_raw() + static_cast<std::size_t>(i) * bytes;
      std::memcpy(row, batch.raw() + static_cast<std::size_t>(rows - 1) * bytes, bytes);
      if (c == step_.weights_port()) std::memset(row, 0, bytes);
    }
  }
}

void BatchBinder::bind_augmented(runtime::Execution& plan, const RowBlock& block,
                                 std::int64_t begin, std::int64_t rows) {
  write_augmented(block, begin, rows, staging_);
  for (std::size_t c = 0; c < block.data->columns.size(); ++c) {
    const Column& column = block.data->columns[c];
    StepRunner::bind(plan, c, column.is_constant ? column.values.raw() : staging_[c].raw());
  }
}

void BatchBinder::write_batch(const RowBlock& block, std::int64_t begin, std::int64_t rows,
                              std::vector<Tensor>& to) {
  if (augmenter_) return write_augmented(block, begin, rows, to);
  for (std::size_t c = 0; c < block.data->columns.size(); ++c) {
    const Column& source = block.data->columns[c];
    if (source.is_constant) continue;
    if (is_filled(rows)) {
      gather_filled(block, c, begin, rows, to[c]);
    } else if (block.order.empty()) {
      std::memcpy(to[c].mutable_raw(), source.row(begin),
                  static_cast<std::size_t>(rows * source.row_bytes));
    } else {
      gather_rows(
          source,
          block.order.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(rows)),
          to[c].mutable_raw());
    }
  }
}

void BatchBinder::prepare(Plan& plan, const PreparedData& data, std::int64_t rows) {
  if (fits(plan, data, rows)) return;
  std::vector<Dims> dims = batch_dims(data, rows);
  plan.execution = &step_.prepare(dims);
  plan.pin.emplace(*plan.execution);
  plan.rows = rows;
  plan.dims = std::move(dims);
}

void BatchBinder::prepare(const RowBlock& block, bool drop_last) {
  if (!augmentations_.empty() && !augmenter_) {
    const PreparedData& data = *block.data;
    const ir::Type& target = step_.data_ports()[data.target].type;
    Augmenter::Target of_step{.dtype = target.dtype};
    for (std::size_t axis = 1; target.has_rank() && axis < target.rank(); ++axis) {
      const ir::Dim& dim = (*target.shape)[axis];
      of_step.axes.push_back(dim.is_static() ? dim.value() : 1);
    }
    augmenter_.emplace(augmentations_, seed_, data, of_step);
    augmenter_->begin_epoch(epoch_);
  }
  const std::int64_t rest = block.rows % block.batch_rows;
  if (rest > 0 && !drop_last) prepare(tail_, *block.data, own_rows(rest));
  if (block.rows >= block.batch_rows) prepare(full_, *block.data, own_rows(block.batch_rows));
  if (needs_staging(block, drop_last)) prepare_staging(block);
  if (device_) prepare_device(block, drop_last);
  series_inputs_.reserve(block.data->columns.size());
  series_rows_.reserve(kLongestSeries);
}

bool BatchBinder::needs_staging(const RowBlock& block, bool drop_last) const {
  const std::int64_t rest = block.rows % block.batch_rows;
  const bool fills = (is_filled(block.batch_rows) && block.rows >= block.batch_rows) ||
                     (is_filled(rest) && rest > 0 && !drop_last);
  if (fills && !step_.weights_port()) {
    throw DataError(
        {.what = fmt::format("{} rows are no whole batch: the file fixes batches of {}, and this "
                             "loss cannot leave rows out",
                             rest > 0 ? rest : block.batch_rows, step_.fixed_rows()),
         .hint =
             fmt::format("Use drop_last=True with batch_size={}, or export the model with a "
                         "dynamic batch, in PyTorch dynamic_shapes={{\"x\": {{0: \"batch\"}}}}.",
                         step_.fixed_rows())});
  }
  return fills || augmenter_ || (!block.order.empty() && !block.has_windows);
}

// The last row is repeated; the weights of what is added are 0.
const std::byte* BatchBinder::gather_filled(const RowBlock& block, std::size_t column,
                                            std::int64_t begin, std::int64_t rows,
                                            Tensor& batch) const {
  const Column& source = block.data->columns[column];
  if (source.values.dtype() == DataType::kString) {
    std::vector<std::int64_t> rows_of_batch;
    for (std::int64_t i = 0; i < step_.fixed_rows(); ++i) {
      const std::int64_t place = begin + std::min(i, rows - 1);
      rows_of_batch.push_back(block.order.empty() ? place
                                                  : block.order[static_cast<std::size_t>(place)]);
    }
    copy_tensor_rows(source.values, rows_of_batch, batch);
    return batch.raw();
  }
  const auto bytes = static_cast<std::size_t>(source.row_bytes);
  const bool are_weights = column == step_.weights_port();
  std::byte* to = batch.mutable_raw();
  for (std::int64_t i = 0; i < step_.fixed_rows(); ++i, to += bytes) {
    const std::int64_t place = begin + std::min(i, rows - 1);
    if (are_weights && i >= rows) {
      std::memset(to, 0, bytes);
    } else {
      const std::int64_t row =
          block.order.empty() ? place : block.order[static_cast<std::size_t>(place)];
      std::memcpy(to, source.row(row), bytes);
    }
  }
  return batch.raw();
}

void BatchBinder::prepare_staging(const RowBlock& block) {
  const auto& columns = block.data->columns;
  const std::int64_t rows = own_rows(block.batch_rows);
  const auto is_large_enough = [&](std::size_t c) {
    if (augmenter_) {  // its batches have the types of the step
      const Dims dims = augmenter_->batch_dims(columns[c], c, rows);
      return staging_[c].dims().rank() == dims.rank() && staging_[c].dims()[0] >= rows &&
             have_same_rows(staging_[c].dims(), dims);
    }
    return staging_[c].size_bytes() >= rows * columns[c].row_bytes;
  };
  bool fits = staging_.size() == columns.size();
  for (std::size_t c = 0; fits && c < columns.size(); ++c) fits = is_large_enough(c);
  if (fits) return;
  staging_.clear();
  for (std::size_t c = 0; c < columns.size(); ++c) {
    const Column& column = columns[c];
    staging_.push_back(augmenter_ ? Tensor::empty(augmenter_->dtype(column, c),
                                                  augmenter_->batch_dims(column, c, rows))
                                  : Tensor::empty(column.values.dtype(), column.batch_dims(rows)));
  }
}

void BatchBinder::prepare_device(const RowBlock& block, bool drop_last) {
  const auto& columns = block.data->columns;
  if (has_texts(*block.data)) return;
  const std::int64_t rest = block.rows % block.batch_rows;
  const bool fills = is_filled(block.batch_rows) || (is_filled(rest) && rest > 0 && !drop_last);
  if (!augmenter_ && device_->keep(block) && !fills) return;
  std::vector<DeviceBatches::Form> forms;
  const std::int64_t rows = own_rows(block.batch_rows);
  for (std::size_t c = 0; c < columns.size(); ++c) {
    const Column& column = columns[c];
    if (column.is_constant) {
      forms.emplace_back();
    } else if (augmenter_) {
      forms.push_back(
          {.dtype = augmenter_->dtype(column, c), .dims = augmenter_->batch_dims(column, c, rows)});
    } else {
      forms.push_back({.dtype = column.values.dtype(), .dims = column.batch_dims(rows)});
    }
  }
  device_->make_slots(forms);
}

bool BatchBinder::makes_series(const RowBlock& block, std::int64_t rows) const {
  if (!step_.runs_series()) return false;
  if (device_) return !has_texts(*block.data);  // which stay on the host
  const bool are_consecutive = block.order.empty() || block.has_windows || rows == 1;
  return !augmenter_ && are_consecutive && !is_filled(rows);
}

runtime::StepSeries BatchBinder::series(const RowBlock& block, std::int64_t begin,
                                        std::int64_t rows, std::int64_t count) {
  if (device_) {
    const bool is_resident = !augmenter_ && !is_filled(rows) && device_->has(block);
    return device_->series(plan(block, rows), block, begin, rows, count, is_resident);
  }
  const auto first = static_cast<std::size_t>(begin);
  const auto size = static_cast<std::size_t>(count);
  series_inputs_.clear();
  for (const Column& column : block.data->columns) {
    series_inputs_.push_back({.number = series_inputs_.size(),
                              .data = column.values.raw(),
                              .row_bytes = column.row_bytes});
  }
  runtime::StepSeries series{.steps = size, .batch_rows = rows, .inputs = series_inputs_};
  if (rows == 1 && !block.order.empty()) {
    series.first_rows = block.order.subspan(first, size);
    return series;
  }
  series_rows_.clear();
  for (std::int64_t k = 0; k < count; ++k) {
    const std::int64_t place = begin + k * rows;
    series_rows_.push_back(block.order.empty() ? place
                                               : block.order[static_cast<std::size_t>(place)]);
  }
  series.first_rows = series_rows_;
  return series;
}

}  // namespace onnxgrad::train
