#include "ops/testing/gradient_checker.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <random>

namespace onnxgrad::ops_test {
namespace {

// Returns a fixed direction of length 1 with normal components.
std::vector<double> unit_direction(std::int64_t size, std::uint64_t seed) {
  std::mt19937_64 engine(seed);
  const auto uniform = [&engine] { return static_cast<double>(engine() >> 11) * 0x1p-53; };
  std::vector<double> direction(static_cast<std::size_t>(size));
  double square = 0;
  for (double& number : direction) {
    number = std::sqrt(-2 * std::log1p(-uniform())) * std::cos(2 * std::numbers::pi * uniform());
    square += number * number;
  }
  for (double& number : direction) number /= std::sqrt(square);
  return direction;
}

// Returns "[1, 2]", the indices of element `position` of a tensor of shape `dims`.
std::string element_name(const Dims& dims, std::int64_t position) {
  std::vector<std::int64_t> indices(dims.rank());
  for (std::size_t axis = dims.rank(); axis-- > 0;) {
    indices[axis] = position % dims[axis];
    position /= dims[axis];
  }
  return fmt::format("element [{}]", fmt::join(indices, ", "));
}

class Checker {
 public:
  Checker(const ScalarFunction& f, std::vector<Tensor> inputs, const CheckOptions& options)
      : f_(f), inputs_(std::move(inputs)), options_(options) {}

  void check_input(std::size_t input, const Tensor& gradient) {
    const Tensor original = inputs_[input];
    if (gradient.dtype() != DataType::kFloat64 || gradient.dims() != original.dims()) {
      differences_.push_back(
          {input,
           fmt::format("the gradient is {}{}, expected float64{}", dtype_name(gradient.dtype()),
                       gradient.dims().to_string(), original.dims().to_string()),
           0, 0});
      return;
    }
    const auto slopes = gradient.data<double>();
    if (original.num_elements() <= options_.max_elements) {
      for (std::int64_t i = 0; i < original.num_elements(); ++i) {
        std::vector<double> direction(slopes.size(), 0.0);
        direction[static_cast<std::size_t>(i)] = 1;
        const double number = original.data<double>()[static_cast<std::size_t>(i)];
        const double size = std::isfinite(number) ? std::abs(number) : 1;  // inf and NaN stay
        compare(input, direction, size, slopes[static_cast<std::size_t>(i)],
                element_name(original.dims(), i));
      }
    } else {
      for (int k = 0; k < options_.num_directions; ++k) {
        const auto seed = static_cast<std::uint64_t>(1000 * input) + static_cast<std::uint64_t>(k);
        const std::vector<double> direction = unit_direction(original.num_elements(), seed);
        double rule = 0;
        for (std::size_t i = 0; i < slopes.size(); ++i) rule += slopes[i] * direction[i];
        compare(input, direction, 1, rule, fmt::format("direction {}", k));
      }
    }
    inputs_[input] = original;
  }

  std::vector<Difference> take() { return std::move(differences_); }

 private:
  double value_at(std::size_t input, const Tensor& original, const std::vector<double>& direction,
                  double step) {
    Tensor moved = original.clone();
    const auto numbers = moved.mutable_data<double>();
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] += step * direction[i];
    inputs_[input] = moved;
    const double value = f_(inputs_);
    inputs_[input] = original;
    return value;
  }

  void compare(std::size_t input, const std::vector<double>& direction, double size, double rule,
               std::string where) {
    const Tensor original = inputs_[input];
    const double step = std::cbrt(std::numeric_limits<double>::epsilon()) * std::max(1.0, size);
    const double above = value_at(input, original, direction, step);
    const double below = value_at(input, original, direction, -step);
    const double numeric = (above - below) / (2 * step);
    if (options_.only_where_smooth) {
      const double here = value_at(input, original, direction, 0);
      if (!is_smooth(above - here, here - below, step)) return;
    }
    const double allowed = options_.tolerance * std::max(1.0, std::abs(numeric));
    // NaN fails.
    if (!(std::abs(rule - numeric) <= allowed)) {
      differences_.push_back({input, std::move(where), rule, numeric});
    }
  }

  // Compares the changes over a step to both sides. A jump changes more than any ordinary slope; at
  // a kink the slopes differ by more than a second derivative of ordinary size explains.
  static bool is_smooth(double to_right, double to_left, double step) {
    const double largest = std::max(std::abs(to_right), std::abs(to_left));
    if (!std::isfinite(to_right - to_left) || largest > 1e-3) return false;
    return std::abs(to_right - to_left) <= 1e-2 * std::max(step, largest);
  }

  const ScalarFunction& f_;
  std::vector<Tensor> inputs_;
  const CheckOptions& options_;
  std::vector<Difference> differences_;
};

}  // namespace

double Difference::absolute() const { return std::abs(rule - numeric); }

double Difference::relative() const {
  return absolute() / std::max(std::abs(numeric), std::numeric_limits<double>::min());
}

std::string Difference::to_string() const {
  return fmt::format(
      "input {}, {}: rule {:.15g}, numeric {:.15g}, absolute error {:.3g}, relative error {:.3g}",
      input, where, rule, numeric, absolute(), relative());
}

std::vector<Difference> check_gradient(const ScalarFunction& f, std::vector<Tensor> inputs,
                                       std::span<const std::size_t> wrt,
                                       std::span<const Tensor> gradients,
                                       const CheckOptions& options) {
  Checker checker(f, std::move(inputs), options);
  for (std::size_t k = 0; k < wrt.size(); ++k) checker.check_input(wrt[k], gradients[k]);
  return checker.take();
}

}  // namespace onnxgrad::ops_test
