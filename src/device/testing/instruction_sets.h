#ifndef ONNXGRAD_DEVICE_TESTING_INSTRUCTION_SETS_H_
#define ONNXGRAD_DEVICE_TESTING_INSTRUCTION_SETS_H_

#include <gtest/gtest.h>

#include "device/cpu_options.h"
#include "device/isa.h"

namespace onnxgrad::device {

/// Calls f(options) once for each instruction set of this machine that kernels are compiled for.
template <class F>
void for_each_instruction_set(F f) {
  for (const Isa isa : available_isas()) {
    SCOPED_TRACE(isa_name(isa));
    f(CpuOptions{.isa = isa});
    if (testing::Test::HasFatalFailure()) return;
  }
}

}  // namespace onnxgrad::device

#endif  // ONNXGRAD_DEVICE_TESTING_INSTRUCTION_SETS_H_
