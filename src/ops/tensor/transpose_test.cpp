#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <vector>

#include "device/testing/instruction_sets.h"
#include "ops/tensor/strided_copy_cpu.h"
#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {

std::vector<OpCase> transpose_cases() {
  const auto x = [](Dims dims) { return uniform(std::move(dims), -1, 1); };
  std::vector<OpCase> cases;
  const auto add = [&cases](std::string name, const std::string& perm, CaseInput input) {
    cases.push_back({.name = std::move(name),
                     .model = "s = Exp (x)\ny = Transpose " + perm + " (s)",
                     .inputs = {std::move(input)}});
  };
  add("default", "", x({2, 3, 4}));
  add("matrix", "<perm = [1, 0]>", x({3, 5}));
  add("large_matrix", "<perm = [1, 0]>", x({37, 41}));
  add("cycle", "<perm = [2, 0, 1]>", x({2, 3, 4}));
  add("channels_last", "<perm = [0, 2, 3, 1]>", x({2, 3, 4, 5}));
  add("rows_together", "<perm = [1, 0, 2]>", x({3, 4, 5}));
  add("identity", "<perm = [0, 1]>", x({3, 4}));
  add("vector", "", x({4}));
  add("scalar", "", x({}));
  add("ones", "<perm = [2, 1, 0]>", x({1, 3, 1}));
  add("empty", "<perm = [1, 0]>", x({0, 3}));
  for (const DataType dtype :
       {DataType::kBool, DataType::kInt8, DataType::kInt32, DataType::kInt64, DataType::kInt16}) {
    cases.push_back({.name = std::string(dtype_name(dtype)),
                     .model = "y = Transpose <perm = [0, 2, 1]> (x)",
                     .inputs = {integers({2, 17, 19}, 0, 1, dtype)},
                     .no_gradient = "not of the floating type under test"});
  }
  return cases;
}

std::vector<ErrorCase> transpose_error_cases() {
  const CaseInput x = uniform({2, 3}, -1, 1);
  return {
      {.name = "too_long",
       .model = "[turned] y = Transpose <perm = [0, 1, 2]> (x)",
       .inputs = {x},
       .error = "ModelError",
       .fragments = {"turned"}},
      {.name = "repeated",
       .model = "[turned] y = Transpose <perm = [0, 0]> (x)",
       .inputs = {x},
       .error = "ModelError",
       .fragments = {"turned"}},
      {.name = "negative",
       .model = "[turned] y = Transpose <perm = [-1, 0]> (x)",
       .inputs = {x},
       .error = "ModelError",
       .fragments = {"turned", "perm"}},
  };
}

namespace transpose {

// y[c, a, b] = x[a, b, c], or with `swaps` y[a, c, b].
template <class T>
void check_copy(bool swaps, int threads, device::Isa isa) {
  constexpr std::int64_t kA = 5;
  constexpr std::int64_t kB = 131;
  constexpr std::int64_t kC = 219;
  std::vector<T> x(kA * kB * kC);
  std::iota(x.begin(), x.end(), T(1));
  std::vector<T> y(x.size());
  ops::CopyRequest copy{.element_bytes = sizeof(T), .sizes = {kC, kA, kB}};
  copy.source_strides = {1, kB * kC, kC};
  if (swaps) copy.sizes = {kA, kC, kB}, copy.source_strides = {kB * kC, 1, kC};
  copy.target_strides = ops::dense_strides(copy.sizes);
  const ops::CopyPlan plan = ops::plan_copy(copy, isa, threads);
  EXPECT_EQ(plan.threads > 1, threads > 1);
  ops::run_copy(plan, reinterpret_cast<const std::byte*>(x.data()),
                reinterpret_cast<std::byte*>(y.data()));
  std::int64_t wrong = 0;
  for (std::int64_t a = 0; a < kA; ++a) {
    for (std::int64_t b = 0; b < kB; ++b) {
      for (std::int64_t c = 0; c < kC; ++c) {
        const std::int64_t place = swaps ? (a * kC + c) * kB + b : (c * kA + a) * kB + b;
        wrong += y[static_cast<std::size_t>(place)] !=
                 x[static_cast<std::size_t>((a * kB + b) * kC + c)];
      }
    }
  }
  EXPECT_EQ(wrong, 0) << sizeof(T) << " bytes, " << threads << " threads";
}

}  // namespace transpose

TEST(StridedCopy, TransposesWithAnyInstructionSetAndThreads) {
  device::for_each_instruction_set([](const device::CpuOptions& cpu) {
    for (const int threads : {1, 3}) {
      for (const bool swaps : {false, true}) {
        transpose::check_copy<std::int16_t>(swaps, threads, cpu.isa);
        transpose::check_copy<float>(swaps, threads, cpu.isa);
        transpose::check_copy<std::int64_t>(swaps, threads, cpu.isa);
      }
    }
  });
}

}  // namespace onnxgrad::ops_test
