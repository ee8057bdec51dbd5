#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {

std::vector<OpCase> one_hot_cases() {
  std::vector<OpCase> cases;
  const CaseInput off_on = values({-0.5, 2}, {2});
  const auto add = [&](std::string name, const std::string& axis, CaseInput indices) {
    cases.push_back({.name = std::move(name),
                     .model = "y = OneHot " + axis + " (i, depth, values)",
                     .inputs = {std::move(indices), int_scalar(4), off_on}});
  };
  add("labels", "", values({0, 3, 1}, {3}, DataType::kInt64));
  add("last", "<axis = -1>", values({0, 3, 1, 1}, {2, 2}, DataType::kInt64));
  add("first", "<axis = 0>", values({0, 3, 1, 1}, {2, 2}, DataType::kInt64));
  add("middle", "<axis = 1>", values({0, 3, 1, 1}, {2, 2}, DataType::kInt64));
  add("negative_and_outside", "", values({-1, -4, -5, 4}, {4}, DataType::kInt64));
  for (const DataType dtype :
       {DataType::kInt32, DataType::kInt16, DataType::kInt8, DataType::kUint64, DataType::kUint32,
        DataType::kUint16, DataType::kUint8}) {
    add(std::string(dtype_name(dtype)), "", values({0, 3, 1}, {3}, dtype));
  }
  add("empty", "", values({}, {0}, DataType::kInt64));
  add("one", "", values({2}, {1}, DataType::kInt64));
  cases.push_back({.name = "float_indices",
                   .model = "y = OneHot (i, depth, values)",
                   .inputs = {values({0, 3, 1}, {3}, DataType::kFloat32), int_scalar(4), off_on},
                   .wrt = {"values"}});
  cases.push_back({.name = "integers",
                   .model = "y = OneHot (i, depth, values)",
                   .inputs = {values({0, 3, 1}, {3}, DataType::kInt64), int_scalar(4),
                              values({0, 1}, {2}, DataType::kInt64)},
                   .no_gradient = "integers"});
  return cases;
}

std::vector<ErrorCase> one_hot_error_cases() {
  const CaseInput labels = values({0, 3, 1}, {3}, DataType::kInt64);
  return {
      {.name = "axis",
       .model = "[hot] y = OneHot <axis = 2> (i, depth, values)",
       .inputs = {labels, int_scalar(4), values({0, 1}, {2})},
       .error = "ShapeError",
       .fragments = {"hot"}},
      {.name = "values",
       .model = "[hot] y = OneHot (i, depth, values)",
       .inputs = {labels, int_scalar(4), values({0, 1, 2}, {3})},
       .error = "ModelError",
       .fragments = {"hot"}},
      {.name = "depth",
       .model = "[hot] y = OneHot (i, depth, values)",
       .inputs = {labels, int_scalar(-4), values({0, 1}, {2})},
       .error = "ShapeError",
       .fragments = {"hot"}},
  };
}

}  // namespace onnxgrad::ops_test
