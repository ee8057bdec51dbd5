#include "device/testing/simulated_device.h"

// The simulated device as a plugin in a library of its own, which tests load as a stranger's.

extern "C" [[gnu::visibility("default")]] const onnxgrad::device::DevicePlugin*
onnxgrad_device_plugin() {
  return &onnxgrad::device::testing::simulated_plugin();
}

extern "C" [[gnu::visibility("default")]] std::int64_t onnxgrad_simulated_copies() {
  return onnxgrad::device::testing::simulated_copies();
}
