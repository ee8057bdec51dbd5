#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <string>

#include "device/testing/instruction_sets.h"
#include "ops/testing/case_runner.h"
#include "ops/testing/kernel_run.h"
#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {

std::vector<OpCase> dft_cases() {
  std::vector<OpCase> cases;
  const auto add = [&](std::string name, const std::string& attributes, Dims x, std::int64_t length,
                       std::int64_t axis) {
    cases.push_back(
        {.name = std::move(name),
         .model = "y = DFT <" + attributes + "> (x, n, axis)",
         .inputs = {uniform(std::move(x), -1, 1), int_scalar(length), int_scalar(axis)}});
  };
  for (const std::string inverse : {"0", "1"}) {
    const std::string attribute = "inverse = " + inverse;
    add("complex_" + inverse, attribute, {2, 6, 2}, 6, 1);
    add("real_" + inverse, attribute, {2, 5, 1}, 5, -2);
    add("cut_" + inverse, attribute, {2, 6, 3, 2}, 4, 1);
    add("filled_" + inverse, attribute, {2, 4, 2}, 7, 1);
    add("first_axis_" + inverse, attribute, {4, 3, 2}, 4, 0);
    add("prime_" + inverse, attribute, {1, 17, 2}, 17, 1);
    for (const std::int64_t n : {7, 8}) {
      const std::string size = "_" + std::to_string(n) + "_" + inverse;
      add("onesided" + size, attribute + ", onesided = 1",
          {2, inverse == "1" ? 5 : n, inverse == "1" ? 2 : 1}, n, 1);
      add("two_sided" + size, attribute + ", onesided = 0", {2, n, 2}, n, 1);
    }
  }
  cases.push_back(
      {.name = "default", .model = "y = DFT (x)", .inputs = {uniform({2, 6, 2}, -1, 1)}});
  cases.push_back({.name = "half_default",
                   .model = "y = DFT <inverse = 1, onesided = 1> (x)",
                   .inputs = {uniform({2, 4, 2}, -1, 1)}});
  cases.push_back(
      {.name = "no_signals", .model = "y = DFT (x)", .inputs = {uniform({0, 6, 2}, -1, 1)}});
  cases.push_back({.name = "one", .model = "y = DFT (x)", .inputs = {uniform({2, 1, 2}, -1, 1)}});
  return cases;
}

std::vector<ErrorCase> dft_error_cases() {
  return {{.name = "length",
           .model = "[spectrum] y = DFT (x, n)",
           .inputs = {uniform({2, 6, 2}, -1, 1), int_scalar(0)},
           .error = "ShapeError",
           .fragments = {"spectrum"}},
          {.name = "parts",
           .model = "[spectrum] y = DFT (x)",
           .inputs = {uniform({2, 6, 3}, -1, 1)},
           .error = "ShapeError",
           .fragments = {"spectrum"}}};
}

namespace dft {

// Reference: evaluates the definition in float64.
Tensor by_definition(const Tensor& x, bool inverse) {
  const std::int64_t signals = x.dims()[0];
  const std::int64_t n = x.dims()[1];
  const std::vector<double> from = x.to_doubles();
  std::vector<double> to(from.size());
  for (std::int64_t s = 0; s < signals; ++s) {
    for (std::int64_t k = 0; k < n; ++k) {
      double re = 0;
      double im = 0;
      for (std::int64_t t = 0; t < n; ++t) {
        const double angle = (inverse ? 2 : -2) * std::numbers::pi *
                             static_cast<double>(k * t % n) / static_cast<double>(n);
        const auto at = static_cast<std::size_t>(2 * (s * n + t));
        re += from[at] * std::cos(angle) - from[at + 1] * std::sin(angle);
        im += from[at] * std::sin(angle) + from[at + 1] * std::cos(angle);
      }
      const auto at = static_cast<std::size_t>(2 * (s * n + k));
      to[at] = inverse ? re / static_cast<double>(n) : re;
      to[at + 1] = inverse ? im / static_cast<double>(n) : im;
    }
  }
  return Tensor::from(to, x.dims());
}

void check(std::int64_t signals, std::int64_t n, bool inverse, int threads = 1,
           const device::CpuOptions& cpu = {}) {
  SCOPED_TRACE(n);
  const Tensor x = random_tensor(DataType::kFloat64, {signals, n, 2}, 1);
  for (const DataType dtype : {DataType::kFloat64, DataType::kFloat32}) {
    const KernelCall call{.op_type = "DFT",
                          .attributes = {{.name = "inverse", .value = std::int64_t{inverse}},
                                         {.name = "onesided", .value = std::int64_t{0}}},
                          .inputs = {x.cast(dtype)},
                          .outputs = {{.dtype = dtype, .dims = x.dims()}},
                          .threads = threads,
                          .cpu = &cpu};
    const double tolerance = dtype == DataType::kFloat64 ? 1e-12 : 1e-5;
    EXPECT_EQ(compare(run_plain(call).at(0), by_definition(x, inverse), tolerance), "");
  }
}

}  // namespace dft

TEST(DftKernel, LengthsOfAllKindsFollowTheDefinition) {
  device::for_each_instruction_set([](const device::CpuOptions& cpu) {
    for (const std::int64_t n :
         {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 16, 17, 19, 30, 34, 60, 64, 97}) {
      dft::check(3, n, false, 1, cpu);
    }
  });
  for (const std::int64_t n : {100, 128, 143, 210, 251, 512, 1000, 1021}) {
    for (const std::int64_t signals : {1, 2, 19}) dft::check(signals, n, n % 2 == 0);
  }
  dft::check(200, 128, false, 3);
}

TEST(DftKernel, RealSignalsArePaired) {
  for (const std::int64_t n : {1, 6, 7, 10, 128}) {
    for (const std::int64_t signals : {1, 2, 37}) {
      const Tensor x = random_tensor(DataType::kFloat64, {signals, n, 1}, 1);
      std::vector<double> parts;
      for (const double real : x.to_doubles()) parts.insert(parts.end(), {real, 0});
      const Tensor expected = dft::by_definition(Tensor::from(parts, {signals, n, 2}), false);
      const KernelCall call{.op_type = "DFT",
                            .attributes = {{.name = "inverse", .value = std::int64_t{0}},
                                           {.name = "onesided", .value = std::int64_t{0}}},
                            .inputs = {x},
                            .outputs = {{.dtype = DataType::kFloat64, .dims = expected.dims()}}};
      EXPECT_EQ(compare(run_plain(call).at(0), expected, 1e-12), "") << n << " " << signals;
    }
  }
}

}  // namespace onnxgrad::ops_test
