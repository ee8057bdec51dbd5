#include "device/testing/layout_kernels.h"

// The simulated device whose kernels over images ask for channels last, as a plugin.

extern "C" [[gnu::visibility("default")]] const onnxgrad::device::DevicePlugin*
onnxgrad_device_plugin() {
  return &onnxgrad::device::testing::channels_last_plugin();
}
