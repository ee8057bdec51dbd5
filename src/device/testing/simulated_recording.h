#ifndef ONNXGRAD_DEVICE_TESTING_SIMULATED_RECORDING_H_
#define ONNXGRAD_DEVICE_TESTING_SIMULATED_RECORDING_H_

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "device/work.h"

// Conditions for work that the simulated device records, as a device that captures kernels has
// them.

namespace onnxgrad::device::testing {

/// Kernels that have run, and kernels that cannot be recorded.
class RecordingRules {
 public:
  static RecordingRules& of_process() {
    static RecordingRules rules;
    return rules;
  }

  void note_run(const KernelCall& call) {
    const std::scoped_lock lock(mutex_);
    have_run_.emplace(call.fn, call.data);
  }
  /// The kernel waits, reads on the host or allocates: its offer says so, and it is never recorded.
  void forbid(opdef::KernelFn fn) {
    const std::scoped_lock lock(mutex_);
    forbidden_.insert(fn);
  }
  /// Why work cannot be recorded; "": it can.
  std::string refusal(const Work& work) const {
    const std::scoped_lock lock(mutex_);
    for (std::size_t i = 0; i < work.calls.size(); ++i) {
      const KernelCall& call = work.calls[i];
      const std::string name = work.names.empty() ? "a kernel" : work.names[i];
      if (forbidden_.contains(call.fn)) {
        return "a recording of " + name + " that cannot be recorded";
      }
      if (!have_run_.contains({call.fn, call.data})) {
        return "a recording of " + name + " that has not run before";
      }
    }
    return "";
  }

 private:
  mutable std::mutex mutex_;
  std::set<std::pair<opdef::KernelFn, const void*>> have_run_;
  std::set<opdef::KernelFn> forbidden_;
};

}  // namespace onnxgrad::device::testing

#endif  // ONNXGRAD_DEVICE_TESTING_SIMULATED_RECORDING_H_
