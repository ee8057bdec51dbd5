#ifndef ONNXGRAD_RUNTIME_FINITE_H_
#define ONNXGRAD_RUNTIME_FINITE_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "onnxgrad/tensor.h"

namespace onnxgrad::runtime {

/// False if one of `count` elements of a floating-point type is infinite or NaN. Other
/// types count as finite. Reads every element once and allocates nothing.
bool all_finite(DataType dtype, const std::byte* data, std::int64_t count);
bool all_finite(std::span<const Tensor> tensors);

}  // namespace onnxgrad::runtime

#endif  // ONNXGRAD_RUNTIME_FINITE_H_
