#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "device/cpu/tile_ops.h"
#include "device/testing/instruction_sets.h"

// The C library in long double says what is right.

namespace onnxgrad::device::tile_functions_test {
namespace {

using opdef::ExprOp;

template <class T>
double error_in_ulp(T given, long double right) {
  const T rounded = static_cast<T>(right);
  if (std::isnan(rounded) || std::isnan(given)) {
    return std::isnan(rounded) == std::isnan(given) ? 0 : HUGE_VAL;
  }
  if (std::isinf(rounded) || std::isinf(given)) return rounded == given ? 0 : HUGE_VAL;
  const T size = std::max(std::abs(rounded), std::numeric_limits<T>::min());
  const T ulp = std::nextafter(size, std::numeric_limits<T>::infinity()) - size;
  return static_cast<double>(std::abs(static_cast<long double>(given) - right) /
                             static_cast<long double>(ulp));
}

struct Function {
  const char* name;
  ExprOp op;
  long double (*right)(long double);
  double low, high;
  double max_ulp;
};

const Function kFunctions[] = {
    {"exp", ExprOp::kExp, std::exp, -110, 100, 1.1},
    {"log", ExprOp::kLog, std::log, -1, 1e4, 1.1},
    {"tanh", ExprOp::kTanh, std::tanh, -20, 20, 3.5},
    {"sigmoid", ExprOp::kSigmoid, [](long double x) { return 1 / (1 + std::exp(-x)); }, -120, 120,
     3},
    {"softplus", ExprOp::kSoftplus,
     [](long double x) { return std::max(x, 0.0L) + std::log1p(std::exp(-std::abs(x))); }, -90, 100,
     3},
    {"erf", ExprOp::kErf, std::erf, -7, 7, 2.5},
    {"sin", ExprOp::kSin, std::sin, -1e4, 1e4, 3},
    {"cos", ExprOp::kCos, std::cos, -1e4, 1e4, 3},
    {"sin of large angles", ExprOp::kSin, std::sin, -1e9, 1e9, 3},
    {"sqrt", ExprOp::kSqrt, std::sqrt, -1, 1e4, 0.51},
    {"asinh", ExprOp::kAsinh, std::asinh, -100, 100, 2},
};

/// Numbers over the whole range, near zero, and the special ones.
template <class T>
std::vector<T> arguments(const Function& function) {
  std::mt19937_64 random(1);
  std::uniform_real_distribution<double> uniform(function.low, function.high);
  std::vector<T> x;
  for (int i = 0; i < 20000; ++i) {
    const double number = uniform(random);
    x.push_back(static_cast<T>(number));
    x.push_back(static_cast<T>(number * 1e-3));
    x.push_back(static_cast<T>(number * 1e-9));
  }
  const T infinity = std::numeric_limits<T>::infinity();
  for (const T special :
       {T(0), -T(0), T(1), T(-1), infinity, -infinity, std::numeric_limits<T>::quiet_NaN(),
        std::numeric_limits<T>::max(), std::numeric_limits<T>::lowest(), T(88.7), T(88.73), T(89),
        T(-87.4), T(-104), T(709.7), T(709.79), T(-745), T(1000), T(-1000)}) {
    x.push_back(special);
  }
  return x;
}

template <class T>
void check(Isa isa, const Function& function) {
  const auto x = arguments<T>(function);
  std::vector<T> y(x.size());
  const TileTable table = make_tile_table(isa, dtype_of<T>());
  table.at(tile_op(function.op))(y.data(), x.data(), nullptr, nullptr,
                                 static_cast<std::int64_t>(x.size()), false);
  double worst = 0;
  T at = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double error = error_in_ulp(y[i], function.right(static_cast<long double>(x[i])));
    if (error > worst) {
      worst = error;
      at = x[i];
    }
  }
  EXPECT_LE(worst, function.max_ulp)
      << function.name << " of " << sizeof(T) * 8 << " bit numbers at " << static_cast<double>(at);
}

TEST(TileFunctions, ErrorsAreSmall) {
  for_each_instruction_set([](const CpuOptions& cpu) {
    for (const Function& function : kFunctions) {
      check<float>(cpu.isa, function);
      check<double>(cpu.isa, function);
    }
  });
}

}  // namespace
}  // namespace onnxgrad::device::tile_functions_test
