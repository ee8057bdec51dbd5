#ifndef ONNXGRAD_DEVICE_TESTING_SIMULATED_SHADOW_H_
#define ONNXGRAD_DEVICE_TESTING_SIMULATED_SHADOW_H_

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "device/device.h"
#include "device/work.h"

namespace onnxgrad::device::testing {

/// A call with what the host may change after it is submitted.
struct KeptCall {
  opdef::KernelFn fn = nullptr;
  const void* data = nullptr;
  std::string name = {};  ///< for messages
  std::vector<Address> args = {};
  CallPlace place = {};
  std::span<const Operand> operands = {};  ///< one for each argument; empty: not known
};

/// Runs a kernel on copies of its arguments, between zones that nobody may write to, and copies
/// back what it was allowed to write. An operand that the kernel only writes, scratch too, begins
/// as NaN. Arguments that overlap share a copy. Ends the process if the kernel has written outside
/// of what it was given or over what it may only read. `args`: pointers, nullptr: absent.
void run_on_shadows(const KeptCall& call, std::span<std::byte* const> args,
                    const opdef::StepCells& cells);

}  // namespace onnxgrad::device::testing

#endif  // ONNXGRAD_DEVICE_TESTING_SIMULATED_SHADOW_H_
