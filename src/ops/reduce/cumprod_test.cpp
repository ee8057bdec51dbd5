#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {

std::vector<OpCase> cumprod_cases() {
  std::vector<OpCase> cases;
  const auto add = [&](std::string name, int exclusive, int reverse, CaseInput x,
                       std::int64_t axis) -> OpCase& {
    cases.push_back({.name = std::move(name),
                     .model = "y = CumProd <exclusive = " + std::to_string(exclusive) +
                              ", reverse = " + std::to_string(reverse) + "> (x, axis)",
                     .inputs = {std::move(x), int_scalar(axis)}});
    return cases.back();
  };
  for (const int exclusive : {0, 1}) {
    for (const int reverse : {0, 1}) {
      const std::string flags = "flags_" + std::to_string(exclusive) + std::to_string(reverse);
      for (const std::int64_t axis : {0, 1, -1}) {
        add(flags + "_axis_" + std::to_string(axis), exclusive, reverse, uniform({2, 3, 2}, -2, 2),
            axis);
      }
      add(flags + "_one_zero", exclusive, reverse, values({0.5, 0, -2, 1.5}, {4}), 0);
      add(flags + "_two_zeros", exclusive, reverse, values({0.5, 0, -2, 0, 1.5}, {5}), 0);
      add(flags + "_zeros_at_ends", exclusive, reverse, values({0, 0.5, 2, 0}, {2, 2}), 1);
      add(flags + "_one", exclusive, reverse, uniform({1}, -1, 1), 0);
      add(flags + "_empty", exclusive, reverse, uniform({0, 3}, -1, 1), 0);
      add(flags + "_empty_rows", exclusive, reverse, uniform({3, 0}, -1, 1), 0);
    }
  }
  for (const DataType dtype :
       {DataType::kInt64, DataType::kInt32, DataType::kUint32, DataType::kUint64}) {
    add(std::string(dtype_name(dtype)), 0, 0, integers({2, 5}, 0, 9, dtype), 1).no_gradient =
        "integers";
  }
  return cases;
}

std::vector<ErrorCase> cumprod_error_cases() {
  return {
      {.name = "axis",
       .model = "[running] y = CumProd (x, axis)",
       .inputs = {uniform({2, 3}, -1, 1), int_scalar(2)},
       .error = "ShapeError",
       .fragments = {"running", "2"}},
      {.name = "flag",
       .model = "[running] y = CumProd <reverse = 5> (x, axis)",
       .inputs = {uniform({2, 3}, -1, 1), int_scalar(0)},
       .error = "ModelError",
       .fragments = {"running", "reverse"}},
  };
}

}  // namespace onnxgrad::ops_test
