#ifndef ONNXGRAD_TRAIN_PLACED_FEEDS_H_
#define ONNXGRAD_TRAIN_PLACED_FEEDS_H_

#include "onnxgrad/device_tensor.h"
#include "onnxgrad/weights.h"

namespace onnxgrad::train {

/// Feeds of which some stay in the memory of a session's device.
struct PlacedFeeds {
  /// In host memory; those that stay have a type and a shape here, but no elements.
  NamedTensors all = {};
  NamedDeviceTensors on_device = {};
};

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_PLACED_FEEDS_H_
