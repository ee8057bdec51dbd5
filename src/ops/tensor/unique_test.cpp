#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {

std::vector<OpCase> unique_cases() {
  std::vector<OpCase> cases;
  const auto add = [&](std::string name, const std::string& attributes, CaseInput x) -> OpCase& {
    cases.push_back({.name = std::move(name),
                     .model = "y, places, groups, sizes = Unique " + attributes + " (x)",
                     .inputs = {std::move(x)}});
    return cases.back();
  };
  const std::string equal = "where elements are equal the output jumps";
  for (const std::string sorted : {"0", "1"}) {
    const std::string flag = "sorted = " + sorted;
    add("flat_" + sorted, "<" + flag + ">", uniform({2, 3}, -1, 1));
    add("rows_" + sorted, "<axis = 0, " + flag + ">", uniform({4, 2}, -1, 1));
    add("columns_" + sorted, "<axis = -1, " + flag + ">", uniform({2, 3}, -1, 1));
    add("repeated_" + sorted, "<" + flag + ">", values({2, 1, 1, 3, 4, 3}, {6})).no_gradient =
        equal;
    add("repeated_rows_" + sorted, "<axis = 0, " + flag + ">",
        values({1, 0, 0, 1, 0, 0, 2, 3, 4}, {3, 3}))
        .no_gradient = equal;
    add("middle_axis_" + sorted, "<axis = 1, " + flag + ">",
        integers({2, 3, 2}, 0, 1, DataType::kInt64))
        .no_gradient = "integers";
    add("one_" + sorted, "<" + flag + ">", uniform({1}, -1, 1));
    add("empty_" + sorted, "<" + flag + ">", uniform({0}, -1, 1));
  }
  for (const DataType dtype : {DataType::kInt8, DataType::kInt32, DataType::kUint8}) {
    add(std::string(dtype_name(dtype)), "", integers({9}, 0, 4, dtype)).no_gradient = "integers";
  }
  cases.push_back(
      {.name = "values_only", .model = "y = Unique (x)", .inputs = {uniform({5}, -1, 1)}});
  return cases;
}

std::vector<ErrorCase> unique_error_cases() {
  return {{.name = "axis",
           .model = "[distinct] y = Unique <axis = 2> (x)",
           .inputs = {uniform({2, 2}, -1, 1)},
           .error = "ShapeError",
           .fragments = {"distinct"}},
          {.name = "flag",
           .model = "[distinct] y = Unique <sorted = 2> (x)",
           .inputs = {uniform({2, 2}, -1, 1)},
           .error = "ModelError",
           .fragments = {"distinct", "sorted"}}};
}

}  // namespace onnxgrad::ops_test
