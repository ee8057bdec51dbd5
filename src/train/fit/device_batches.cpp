#include "train/fit/device_batches.h"

#include "base/memory_budget.h"
#include "train/fit/batch_binder.h"

namespace onnxgrad::train {

bool DeviceBatches::keep(const RowBlock& block) {
  if (!block.is_kept) return false;
  runtime::Executor& executor = step_.executor();
  const base::MemoryBudgetScope scope(executor.budget());
  if (data_ != block.data) {
    data_ = block.data;
    std::vector<runtime::ResidentRows::Column> columns;
    for (std::size_t c = 0; c < data_->columns.size(); ++c) {
      const Column& column = data_->columns[c];
      if (column.is_constant) continue;
      columns.push_back(
          {.input = c,
           .data = column.values.raw(),
           .row_bytes = column.row_bytes,
           .placed = executor.has_in_memory(column.placed) ? column.placed : DeviceTensor()});
    }
    resident_ =
        runtime::ResidentRows::copy(executor.device(), *executor.stream(), columns, data_->rows);
  }
  if (resident_ != nullptr) resident_->set_order(block.order);
  return resident_ != nullptr;
}

void DeviceBatches::make_slots(const std::vector<Form>& columns) {
  const auto fits = [](const Tensor& slot, const Form& form) {
    return slot.is_defined() ? slot.dtype() == form.dtype && slot.dims() == form.dims
                             : form.dtype == DataType::kUndefined;
  };
  for (std::vector<Tensor>& slot : slots_) {
    slot.resize(columns.size());
    for (std::size_t c = 0; c < columns.size(); ++c) {
      const Form& form = columns[c];
      if (fits(slot[c], form)) continue;
      const std::shared_ptr<std::byte> memory =
          step_.executor().device().allocate_staging(form.dims.size_bytes(form.dtype));
      slot[c] = Tensor::view(form.dtype, form.dims, memory.get(), memory);
    }
  }
}

runtime::StepSeries DeviceBatches::series(runtime::Execution& plan, const RowBlock& block,
                                          std::int64_t begin, std::int64_t rows, std::int64_t count,
                                          bool is_resident) {
  inputs_.clear();
  for (std::size_t c = 0; c < block.data->columns.size(); ++c) {
    const Column& column = block.data->columns[c];
    if (column.is_constant) {
      StepRunner::bind(plan, c, column.values.raw());
    } else {
      inputs_.push_back({.number = c, .data = nullptr, .row_bytes = column.row_bytes});
    }
  }
  block_ = block;
  begin_ = begin;
  rows_ = rows;
  runtime::StepSeries series{
      .steps = static_cast<std::size_t>(count), .batch_rows = rows, .inputs = inputs_};
  if (is_resident) {
    series.resident = resident_.get();
    series.first_place = begin;
  } else {
    series.staged = this;
  }
  return series;
}

void DeviceBatches::fill(std::size_t step, std::size_t slot) {
  binder_.write_batch(block_, begin_ + static_cast<std::int64_t>(step) * rows_, rows_,
                      slots_[slot]);
}

}  // namespace onnxgrad::train
