#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {

std::vector<OpCase> topk_cases() {
  std::vector<OpCase> cases;
  const auto add = [&](std::string name, const std::string& attributes, CaseInput x,
                       std::int64_t k) -> OpCase& {
    cases.push_back({.name = std::move(name),
                     .model = "values, indices = TopK " + attributes + " (x, k)",
                     .inputs = {std::move(x), ints({k})}});
    return cases.back();
  };
  for (const std::string largest : {"0", "1"}) {
    for (const std::string axis : {"0", "1", "-1"}) {
      add("largest_" + largest + "_axis_" + axis,
          "<largest = " + largest + ", axis = " + axis + ">", uniform({3, 5, 4}, -1, 1), 2);
    }
    const auto flags = "<largest = " + largest + ", sorted = 1>";
    add("all_" + largest, flags, uniform({2, 6}, -1, 1), 6);
    add("none_" + largest, flags, uniform({2, 6}, -1, 1), 0);
    add("long_" + largest, flags, uniform({2, 700}, -1, 1), 3);
    add("many_" + largest, flags, uniform({700}, -1, 1), 400).no_gradient =
        "neighbours are so close that a step changes their order";
    add("far_" + largest, "<largest = " + largest + ", axis = 1>", uniform({2, 300, 20}, -1, 1), 2)
        .no_gradient = "as above";
    // Among equal elements the first comes first.
    add("ties_" + largest, flags, values({1, 3, 3, 0, -0.0, 3, 1, 0}, {8}), 5).no_gradient =
        "at ties either side has a slope of its own";
    for (const DataType dtype :
         {DataType::kInt8, DataType::kInt16, DataType::kInt32, DataType::kInt64, DataType::kUint8,
          DataType::kUint16, DataType::kUint32, DataType::kUint64}) {
      const bool is_signed = !std::string(dtype_name(dtype)).starts_with("u");
      add(std::string(dtype_name(dtype)) + "_" + largest, flags,
          integers({3, 9}, is_signed ? -99 : 0, 99, dtype), 4)
          .no_gradient = "integers";
    }
  }
  add("one", "", uniform({1}, -1, 1), 1);
  add("empty_rows", "", uniform({0, 3}, -1, 1), 2);
  add("empty_axis", "", uniform({2, 0}, -1, 1), 0);
  cases.push_back({.name = "order_does_not_matter",
                   .model = "values, indices = TopK <sorted = 0> (x, k)\ny = ReduceSum (values)",
                   .inputs = {uniform({2, 7}, -1, 1), ints({3})}});
  cases.push_back({.name = "fed_k",
                   .model = "values, indices = TopK (x, k)",
                   .inputs = {uniform({2, 7}, -1, 1), ints({3}).fed()}});
  return cases;
}

std::vector<ErrorCase> topk_error_cases() {
  return {{.name = "too_many",
           .model = "[best] values, indices = TopK (x, k)",
           .inputs = {uniform({2, 3}, -1, 1), ints({4})},
           .error = "ShapeError",
           .fragments = {"best", "3"}},
          {.name = "negative",
           .model = "[best] values, indices = TopK (x, k)",
           .inputs = {uniform({2, 3}, -1, 1), ints({-1})},
           .error = "ShapeError",
           .fragments = {"best"}},
          {.name = "flag",
           .model = "[best] values, indices = TopK <sorted = 2> (x, k)",
           .inputs = {uniform({2, 3}, -1, 1), ints({1})},
           .error = "ModelError",
           .fragments = {"best", "sorted"}}};
}

}  // namespace onnxgrad::ops_test
