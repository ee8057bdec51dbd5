#include "device/host_threads.h"

#include "device/cpu/threads.h"

namespace onnxgrad::device {
namespace {

// Nanoseconds of work that pay for another thread: in a kernel, when the threads are awake; in a
// plan, before which they may have to be woken.
constexpr double kKernelShareNs = 1e3;
constexpr double kPlanShareNs = 20e3;

}  // namespace

int threads_of_kernel(const Device& device, double cost_ns, int most) {
  return device.uses_host_threads() ? useful_threads(cost_ns, kKernelShareNs, most) : 1;
}

int threads_of_plan(const Device& device, double cost_ns, int most) {
  return device.uses_host_threads() ? useful_threads(cost_ns, kPlanShareNs, most) : 1;
}

}  // namespace onnxgrad::device
