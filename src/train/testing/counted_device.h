#ifndef ONNXGRAD_TRAIN_TESTING_COUNTED_DEVICE_H_
#define ONNXGRAD_TRAIN_TESTING_COUNTED_DEVICE_H_

#include "device/testing/counting_device.h"

namespace onnxgrad::train_test {

/// Adds a device "counted" to the process: the simulated one with counts of all its streams.
device::testing::StreamCounts& counted_device();

}  // namespace onnxgrad::train_test

#endif  // ONNXGRAD_TRAIN_TESTING_COUNTED_DEVICE_H_
