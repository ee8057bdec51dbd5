#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {

std::vector<OpCase> cumsum_cases() {
  std::vector<OpCase> cases;
  for (const int exclusive : {0, 1}) {
    for (const int reverse : {0, 1}) {
      for (const std::int64_t axis : {0, 1, -1}) {
        cases.push_back({.name = "flags_" + std::to_string(exclusive) + std::to_string(reverse) +
                                 "_axis_" + std::to_string(axis),
                         .model = "y = CumSum <exclusive = " + std::to_string(exclusive) +
                                  ", reverse = " + std::to_string(reverse) + "> (x, axis)",
                         .inputs = {uniform({2, 3, 2}, -1, 1), int_scalar(axis)}});
      }
    }
  }
  const auto sized = [&](std::string name, CaseInput x) {
    cases.push_back({.name = std::move(name),
                     .model = "y = CumSum (x, axis)",
                     .inputs = {std::move(x), int_scalar(0)}});
  };
  sized("vector", uniform({5}, -1, 1));
  sized("one", uniform({1}, -1, 1));
  sized("empty", uniform({0, 3}, -1, 1));
  sized("empty_rows", uniform({3, 0}, -1, 1));
  for (const DataType dtype :
       {DataType::kInt64, DataType::kInt32, DataType::kUint64, DataType::kUint32}) {
    sized(std::string(dtype_name(dtype)), integers({5}, 0, 9, dtype));
    cases.back().no_gradient = "integers";
  }
  return cases;
}

std::vector<ErrorCase> cumsum_error_cases() {
  return {
      {.name = "axis",
       .model = "[running] y = CumSum (x, axis)",
       .inputs = {uniform({2, 3}, -1, 1), int_scalar(2)},
       .error = "ShapeError",
       .fragments = {"running", "2"}},
      {.name = "flag",
       .model = "[running] y = CumSum <reverse = 5> (x, axis)",
       .inputs = {uniform({2, 3}, -1, 1), int_scalar(0)},
       .error = "ModelError",
       .fragments = {"running", "reverse"}},
  };
}

}  // namespace onnxgrad::ops_test
