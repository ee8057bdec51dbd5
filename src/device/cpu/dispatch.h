#ifndef ONNXGRAD_DEVICE_CPU_DISPATCH_H_
#define ONNXGRAD_DEVICE_CPU_DISPATCH_H_

#include <cstddef>

#include "device/isa.h"

namespace onnxgrad::device {

/// Returns the function of an instruction set from the table that HWY_EXPORT makes. Instead of
/// HWY_DYNAMIC_DISPATCH, whose choice is one of the process.
template <class Function, std::size_t kSize>
Function* chosen(Function* const (&table)[kSize], Isa isa) {
  return table[kSize == 1 ? 0 : static_cast<std::size_t>(isa)];  // 1: only the baseline is compiled
}

}  // namespace onnxgrad::device

#endif  // ONNXGRAD_DEVICE_CPU_DISPATCH_H_
