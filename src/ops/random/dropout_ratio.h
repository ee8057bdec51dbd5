#ifndef ONNXGRAD_OPS_RANDOM_DROPOUT_RATIO_H_
#define ONNXGRAD_OPS_RANDOM_DROPOUT_RATIO_H_

#include <cstddef>
#include <string>

#include "onnxgrad/dtype.h"
#include "opdef/kernel.h"

namespace onnxgrad::ops {

/// Returns the ratio of a Dropout, a float32 or float64 scalar; 0.5 if `ratio` is nullptr.
/// Throws: DataError if it is not in [0, 1).
double read_dropout_ratio(const std::byte* ratio, DataType dtype, const std::string& node);

/// Adds a check of the ratio in `input` to the kernel, unless the ratio is a valid constant or is
/// not read.
void note_dropout_check(const opdef::KernelRequest& request, opdef::KernelOffer& offer,
                        std::size_t input, std::size_t training_mode);

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_RANDOM_DROPOUT_RATIO_H_
