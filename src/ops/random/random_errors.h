#ifndef ONNXGRAD_OPS_RANDOM_RANDOM_ERRORS_H_
#define ONNXGRAD_OPS_RANDOM_RANDOM_ERRORS_H_

#include <cstdint>
#include <string>

// Errors for values that kernels refuse while they run. All throw DataError.

namespace onnxgrad::ops {

/// The ratio of a Dropout is not in [0, 1).
[[noreturn]] void throw_dropout_ratio(double ratio, const std::string& node);
/// A probability of a Bernoulli is not in [0, 1].
[[noreturn]] void throw_probability(double probability, const std::string& node);
/// No class of a row of a Multinomial has a probability.
[[noreturn]] void throw_row_without_class(std::int64_t row, const std::string& node);

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_RANDOM_RANDOM_ERRORS_H_
