#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "ir/builder.h"
#include "opdef/guarded_update.h"
#include "ops/testing/kernel_run.h"
#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {

// Nothing is differentiated through it: loss scales are tested with it.
std::vector<OpCase> fault_sum_cases() { return {}; }
std::vector<ErrorCase> fault_sum_error_cases() { return {}; }

namespace fault_sum_test {
namespace {

float fault_sum(const Tensor& x, int threads) {
  const std::vector<Tensor> result = run_plain({.op_type = opdef::kFaultSum,
                                                .inputs = {x},
                                                .outputs = {{DataType::kFloat32, Dims{}}},
                                                .domain = ir::kFunctionDomain,
                                                .threads = threads});
  return static_cast<float>(result.at(0).to_doubles().at(0));
}

TEST(FaultSum, FindsEachNumberThatIsNotFinite) {
  const double inf = std::numeric_limits<double>::infinity();
  for (const DataType dtype :
       {DataType::kFloat16, DataType::kBfloat16, DataType::kFloat32, DataType::kFloat64}) {
    const double most = dtype == DataType::kFloat16    ? 65504
                        : dtype == DataType::kBfloat16 ? 0x1.FEp127
                        : dtype == DataType::kFloat32  ? std::numeric_limits<float>::max()
                                                       : std::numeric_limits<double>::max();
    for (const std::int64_t size : {1, 7, 64, 1001}) {
      std::vector<double> x(static_cast<std::size_t>(size), -most);
      for (std::size_t i = 0; i < x.size(); i += 2) x[i] = i % 3 == 0 ? 0.0 : most;
      const auto tensor = [&] { return Tensor::from(x, Dims{size}).cast(dtype); };
      EXPECT_EQ(fault_sum(tensor(), 1), 0) << dtype_name(dtype);
      for (const std::int64_t place : {std::int64_t{0}, size / 2, size - 1}) {
        double& one = x[static_cast<std::size_t>(place)];
        const double before = one;
        for (const double fault : {inf, -inf, std::nan("")}) {
          one = fault;
          EXPECT_TRUE(std::isnan(fault_sum(tensor(), 2))) << dtype_name(dtype) << " " << place;
        }
        one = before;
      }
    }
  }
}

TEST(FaultSum, OfAnyShapeAndOnThreads) {
  for (const Dims& dims : {Dims{}, Dims{0}, Dims{3, 0, 2}, Dims{3, 5, 7}, Dims{1200, 1100}}) {
    for (const int threads : {1, 2, 3}) {
      EXPECT_EQ(fault_sum(random_tensor(DataType::kFloat32, dims, 1), threads), 0);
    }
  }
}

}  // namespace
}  // namespace fault_sum_test
}  // namespace onnxgrad::ops_test
