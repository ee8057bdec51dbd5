#ifndef ONNXGRAD_DEVICE_TESTING_SIMULATED_DEVICE_H_
#define ONNXGRAD_DEVICE_TESTING_SIMULATED_DEVICE_H_

#include "device/device.h"

namespace onnxgrad::device::testing {

/// A device that is as unlike the CPU as one can be while it runs the CPU's kernels. Its addresses
/// are not pointers: the processor refuses them. Work is queued, and a thread of the stream does it
/// as late as it may: when somebody waits, or when very much is queued. New memory, and host memory
/// that a copy has not reached yet, is full of NaN. Arguments that are not memory of the device,
/// and memory that is freed while work for it is queued, end the process with a message.
///
/// A test binary that is linked with simulated_device.cpp runs on it where the environment says
/// ONNXGRAD_TEST_DEVICE=simulated.
Device& simulated_device();

}  // namespace onnxgrad::device::testing

#endif  // ONNXGRAD_DEVICE_TESTING_SIMULATED_DEVICE_H_
