#ifndef ONNXGRAD_TRAIN_FINITE_H_
#define ONNXGRAD_TRAIN_FINITE_H_

#include <span>

#include "onnxgrad/tensor.h"

namespace onnxgrad::train {

/// False if an element of a floating-point tensor is infinite or not a number. Other types count
/// as finite. Reads every element once and allocates nothing.
bool all_finite(std::span<const Tensor> tensors);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_FINITE_H_
