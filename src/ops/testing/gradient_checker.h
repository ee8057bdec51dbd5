#ifndef ONNXGRAD_OPS_TESTING_GRADIENT_CHECKER_H_
#define ONNXGRAD_OPS_TESTING_GRADIENT_CHECKER_H_

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "onnxgrad/tensor.h"

namespace onnxgrad::ops_test {

/// Scalar function of float64 tensors (and others, which are passed through).
using ScalarFunction = std::function<double(const std::vector<Tensor>&)>;

struct CheckOptions {
  /// Tolerated difference of a derivative d from the numeric one n: tolerance * max(1, |n|).
  double tolerance = 1e-6;
  /// Inputs of at most this many elements are checked element by element.
  std::int64_t max_elements = 48;
  /// Larger inputs are checked along this many fixed directions of length 1.
  int num_directions = 12;
  /// Skips elements without a derivative, where the one-sided differences do not agree (a kink or a
  /// jump) or are not finite.
  bool only_where_smooth = false;
};

/// Derivative that a rule computed wrongly.
struct Difference {
  std::size_t input = 0;
  std::string where;  ///< "element [1, 2]" or "direction 3", or the problem of the whole gradient
  double rule = 0;
  double numeric = 0;

  double absolute() const;
  double relative() const;
  /// Returns "input 0, element [1, 2]: rule 2, numeric 1, absolute error 1, relative error 1".
  std::string to_string() const;
};

/// Compares `gradients[k]`, the derivative of `f` with respect to inputs[wrt[k]], with central
/// differences (f(x + h) - f(x - h)) / 2h of step h = cbrt(eps) max(1, |x|), which balances their
/// truncation error h^2 f'''/6 and their rounding error eps f/h. Returns the differences.
std::vector<Difference> check_gradient(const ScalarFunction& f, std::vector<Tensor> inputs,
                                       std::span<const std::size_t> wrt,
                                       std::span<const Tensor> gradients,
                                       const CheckOptions& options = {});

}  // namespace onnxgrad::ops_test

#endif  // ONNXGRAD_OPS_TESTING_GRADIENT_CHECKER_H_
