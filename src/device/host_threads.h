#ifndef ONNXGRAD_DEVICE_HOST_THREADS_H_
#define ONNXGRAD_DEVICE_HOST_THREADS_H_

#include <cstdint>

#include "device/device.h"

// The threads of this process that kernels share their work among, for the runtime; kernels use
// device/cpu/threads.h. Each thread of a program that runs kernels has a pool of its own.

namespace onnxgrad::device {

/// Number of threads, at most `most`, that pay for a kernel of a device that takes `cost_ns` on
/// one: they are awake. 1: its kernels do not run on threads of the process.
int threads_of_kernel(const Device& device, double cost_ns, int most);
/// Number that pays for a plan that takes `cost_ns` on one thread, before which they may have to be
/// woken.
int threads_of_plan(const Device& device, double cost_ns, int most);

/// Grows the calling thread's pool to `threads`, itself included, so that no kernel has to. Throws:
/// DeviceError (the system has no more threads).
void start_threads(std::int64_t threads);

/// The most threads that took part in a kernel of this thread since the last call of this function;
/// at least 1.
int take_threads_used();

}  // namespace onnxgrad::device

#endif  // ONNXGRAD_DEVICE_HOST_THREADS_H_
