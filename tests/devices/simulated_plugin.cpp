#include "device/testing/simulated_device.h"

#include <cstdint>

// The simulated device as a plugin in a library of its own, which tests load as a stranger's.

extern "C" [[gnu::visibility("default")]] const onnxgrad::device::DevicePlugin*
onnxgrad_device_plugin() {
  return &onnxgrad::device::testing::simulated_plugin();
}

/// Returns how often the host has waited for the devices or copied from them.
extern "C" [[gnu::visibility("default")]] std::int64_t onnxgrad_simulated_host_reads() {
  const onnxgrad::device::testing::HostReads reads = onnxgrad::device::testing::host_reads();
  return reads.waits + reads.copies_out;
}

/// Returns how many copies from and to host memory there were.
extern "C" [[gnu::visibility("default")]] std::int64_t onnxgrad_simulated_copies() {
  return onnxgrad::device::testing::simulated_copies();
}
