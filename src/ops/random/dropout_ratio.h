#ifndef ONNXGRAD_OPS_RANDOM_DROPOUT_RATIO_H_
#define ONNXGRAD_OPS_RANDOM_DROPOUT_RATIO_H_

#include <cstddef>
#include <string>

#include "onnxgrad/dtype.h"

namespace onnxgrad::ops {

/// The ratio of a Dropout, a float32 or float64 number; 0.5 if `ratio` is nullptr.
/// Throws: DataError if it is not in [0, 1).
double read_dropout_ratio(const std::byte* ratio, DataType dtype, const std::string& node);

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_RANDOM_DROPOUT_RATIO_H_
