#ifndef ONNXGRAD_BASE_ROUNDING_H_
#define ONNXGRAD_BASE_ROUNDING_H_

#include <cstdint>

namespace onnxgrad::base {

/// Returns a / b, rounded up; a >= 0, b > 0.
constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
/// Returns the least multiple of `unit` that is at least `value`.
constexpr std::int64_t round_up(std::int64_t value, std::int64_t unit) {
  return ceil_div(value, unit) * unit;
}

}  // namespace onnxgrad::base

#endif  // ONNXGRAD_BASE_ROUNDING_H_
