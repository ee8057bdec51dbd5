#ifndef ONNXGRAD_TRAIN_PLACED_FEEDS_H_
#define ONNXGRAD_TRAIN_PLACED_FEEDS_H_

#include <utility>
#include <vector>

#include "onnxgrad/device_tensor.h"
#include "onnxgrad/weights.h"
#include "runtime/executor.h"

namespace onnxgrad::train {

/// Feeds of which some stay in the memory of a session's device.
struct PlacedFeeds {
  /// In host memory; those that stay have a type and a shape here, but no elements.
  NamedTensors all = {};
  NamedDeviceTensors on_device = {};
};

/// Tensors that work of an executor may still read when a scope ends, also by an exception.
class InUse {
 public:
  /// `executor` outlives this.
  explicit InUse(runtime::Executor& executor) : executor_(executor) {}
  ~InUse();
  InUse(const InUse&) = delete;
  InUse& operator=(const InUse&) = delete;

  DeviceTensor add(DeviceTensor tensor) { return tensors_.emplace_back(std::move(tensor)); }

 private:
  runtime::Executor& executor_;
  std::vector<DeviceTensor> tensors_;
};

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_PLACED_FEEDS_H_
