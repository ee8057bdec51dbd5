#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "device/cuda/cuda_device.h"
#include "onnxgrad/error.h"
#include "ops/testing/card_engine.h"
#include "ops/testing/case_runner.h"

// Values that the CPU's kernels refuse are refused on a card, with the message of the CPU.

namespace onnxgrad::ops_test {
namespace cuda_errors {

std::vector<ErrorCase> all() {
  if (device::cuda::num_cards() == 0) return {};
  std::vector<ErrorCase> cases = all_error_cases();
  std::erase_if(cases, [](const ErrorCase& one) { return one.error != "DataError"; });
  return cases;
}

}  // namespace cuda_errors

TEST(CudaErrors, AreThoseOfTheCpu) {
  for (const ErrorCase& error_case : cuda_errors::all()) {
    SCOPED_TRACE(error_case.name);
    const OpCase op_case = as_op_case(error_case);
    try {
      run_case(op_case, build_case(op_case, {.dtype = DataType::kFloat32}), {}, card_engine());
      ADD_FAILURE() << "not refused";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), error_case.error) << error.what();
      for (const std::string& fragment : error_case.fragments) {
        EXPECT_NE(std::string(error.what()).find(fragment), std::string::npos)
            << "'" << fragment << "' is not in: " << error.what();
      }
    }
  }
}

}  // namespace onnxgrad::ops_test
