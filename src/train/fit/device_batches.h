#ifndef ONNXGRAD_TRAIN_FIT_DEVICE_BATCHES_H_
#define ONNXGRAD_TRAIN_FIT_DEVICE_BATCHES_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/resident_rows.h"
#include "train/fit/batch_feed.h"
#include "train/session/step_runner.h"

namespace onnxgrad::train {

class BatchBinder;

/// The rows of a fit on a device other than the host: there as a whole, if they are the same in all
/// blocks and fit, so that it gathers batches itself; else batches that the binder puts together in
/// one of two slots, from where they are copied ahead.
class DeviceBatches final : public runtime::StagedBatches {
 public:
  /// Both outlive this.
  DeviceBatches(StepRunner& step, BatchBinder& binder) : step_(step), binder_(binder) {}

  /// Puts the rows of a block on the device, once, and its order. False: they are not there.
  bool keep(const RowBlock& block);
  bool has(const RowBlock& block) const { return resident_ != nullptr && data_ == block.data; }
  /// A column of a batch.
  struct Form {
    DataType dtype = DataType::kUndefined;  ///< kUndefined: a column without rows
    Dims dims = {};
  };
  /// Makes room for batches of this form.
  void make_slots(const std::vector<Form>& columns);
  /// A series of `count` batches of so many rows from this position on, with columns without rows
  /// bound to `plan`; valid until the next call.
  runtime::StepSeries series(runtime::Execution& plan, const RowBlock& block, std::int64_t begin,
                             std::int64_t rows, std::int64_t count, bool is_resident);

  void fill(std::size_t step, std::size_t slot) override;
  const std::byte* rows(std::size_t i, std::size_t slot) const override {
    return slots_[slot][inputs_[i].number].raw();
  }

 private:
  StepRunner& step_;
  BatchBinder& binder_;
  const PreparedData* data_ = nullptr;  ///< that `resident_` has, or that does not fit
  std::unique_ptr<runtime::ResidentRows> resident_;
  std::array<std::vector<Tensor>, 2> slots_;  ///< per column
  std::vector<runtime::StepSeries::Input> inputs_;
  RowBlock block_;  ///< of the series
  std::int64_t begin_ = 0;
  std::int64_t rows_ = 0;
};

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_FIT_DEVICE_BATCHES_H_
