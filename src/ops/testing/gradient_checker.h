#ifndef ONNXGRAD_OPS_TESTING_GRADIENT_CHECKER_H_
#define ONNXGRAD_OPS_TESTING_GRADIENT_CHECKER_H_

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "onnxgrad/tensor.h"

namespace onnxgrad::ops_test {

/// A scalar function of float64 tensors (and others, which are passed through).
using ScalarFunction = std::function<double(const std::vector<Tensor>&)>;

struct CheckOptions {
  /// A derivative d may differ from the numeric one n by tolerance * max(1, |n|).
  double tolerance = 1e-6;
  /// Inputs of at most this many elements are checked element by element.
  std::int64_t max_elements = 48;
  /// Larger ones along this many fixed directions of length 1.
  int num_directions = 12;
  /// Elements without a derivative are skipped: where the one-sided differences do not agree
  /// (a kink or a jump), or are not finite.
  bool only_where_smooth = false;
};

/// One derivative that the rule computed wrongly.
struct Difference {
  std::size_t input = 0;
  std::string
      where;  ///< "element [1, 2]" or "direction 3"; or what is wrong with the whole gradient
  double rule = 0;
  double numeric = 0;

  double absolute() const;
  double relative() const;
  /// "input 0, element [1, 2]: rule 2, numeric 1, absolute error 1, relative error 1".
  std::string to_string() const;
};

/// Compares `gradients[k]`, the derivative of `f` with respect to inputs[wrt[k]], with central
/// differences (f(x + h) - f(x - h)) / 2h of step h = cbrt(eps) max(1, |x|): their truncation error
/// h^2 f'''/6 and their rounding error eps f/h are then of one size. Returns what differs.
std::vector<Difference> check_gradient(const ScalarFunction& f, std::vector<Tensor> inputs,
                                       std::span<const std::size_t> wrt,
                                       std::span<const Tensor> gradients,
                                       const CheckOptions& options = {});

}  // namespace onnxgrad::ops_test

#endif  // ONNXGRAD_OPS_TESTING_GRADIENT_CHECKER_H_
