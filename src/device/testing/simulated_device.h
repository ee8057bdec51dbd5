#ifndef ONNXGRAD_DEVICE_TESTING_SIMULATED_DEVICE_H_
#define ONNXGRAD_DEVICE_TESTING_SIMULATED_DEVICE_H_

#include <cstdint>

#include "device/device.h"
#include "device/plugin.h"

namespace onnxgrad::device::testing {

/// A device that differs from the CPU as much as possible while running the CPU's kernels. Its
/// addresses are not pointers: accessing them faults. It has two compute streams, and does work as
/// late as possible, when somebody waits or much is queued, in an order that its streams, waits
/// and events leave to chance (simulated_schedule.h): the environment's ONNXGRAD_SIMULATED_SEED
/// chooses. New memory, and host memory that a copy has not reached yet, is filled with NaN.
/// Arguments that are not memory of the device, and memory that is freed while work for it is
/// queued, end the process with a message.
Device& simulated_device();

/// Questions of the host to all simulated devices so far.
struct HostReads {
  std::int64_t waits = 0;  ///< calls of Stream::synchronize and Event::wait
  std::int64_t copies_out = 0;
  bool operator==(const HostReads&) const = default;
};
HostReads host_reads();
/// Starts the generator of a simulated device's order again.
void set_seed(Device& simulated, std::uint64_t seed);
/// Copies from and to host memory so far, on all of them.
std::int64_t simulated_copies();

/// The device that test binaries run on: simulated_device() if the environment has
/// ONNXGRAD_DEVICE=simulated, else cpu().
Device& test_device();

/// Such devices as a plugin: "simulated:0" and "simulated:1".
const DevicePlugin& simulated_plugin();

}  // namespace onnxgrad::device::testing

#endif  // ONNXGRAD_DEVICE_TESTING_SIMULATED_DEVICE_H_
