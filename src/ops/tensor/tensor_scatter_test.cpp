#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {

std::vector<OpCase> tensor_scatter_cases() {
  std::vector<OpCase> cases;
  const auto add = [&](std::string name, const std::string& attributes, Dims cache, Dims update,
                       std::vector<double> starts) -> OpCase& {
    const auto count = static_cast<std::int64_t>(starts.size());
    std::vector<CaseInput> inputs{uniform(std::move(cache), -1, 1),
                                  uniform(std::move(update), -1, 1)};
    if (count > 0) inputs.push_back(values(std::move(starts), {count}, DataType::kInt64));
    cases.push_back(
        {.name = std::move(name),
         .model = "y = TensorScatter " + attributes + (count > 0 ? " (x, u, at)" : " (x, u)"),
         .inputs = std::move(inputs)});
    return cases.back();
  };
  add("linear", "<mode = \"linear\">", {2, 4, 3}, {2, 2, 3}, {1, 2});
  add("circular", "<mode = \"circular\">", {2, 4, 3}, {2, 3, 3}, {3, 2});
  add("far", "<mode = \"circular\">", {2, 4, 3}, {2, 2, 3}, {7, 4});
  add("prefill", "", {2, 4, 3}, {2, 2, 3}, {});
  add("whole", "", {1, 3, 2}, {1, 3, 2}, {0});
  add("heads", "<axis = 2>", {2, 2, 3, 2}, {2, 2, 1, 2}, {2, 0});
  add("axis_1", "<axis = 1>", {2, 4}, {2, 2}, {0, 2});
  add("last_axis", "<axis = -1>", {2, 2, 4}, {2, 2, 2}, {0, 2});
  add("nothing", "", {2, 4, 3}, {2, 0, 3}, {1, 2});
  add("no_batch", "", {0, 4, 3}, {0, 2, 3}, {});
  for (const DataType dtype : {DataType::kInt8, DataType::kInt64}) {
    cases.push_back({.name = std::string(dtype_name(dtype)),
                     .model = "y = TensorScatter (x, u, at)",
                     .inputs = {integers({2, 3, 2}, 0, 9, dtype), integers({2, 1, 2}, 0, 9, dtype),
                                values({1, 2}, {2}, DataType::kInt64)},
                     .no_gradient = "integers"});
  }
  return cases;
}

std::vector<ErrorCase> tensor_scatter_error_cases() {
  return {{.name = "no_room",
           .model = "[cached] y = TensorScatter (x, u, at)",
           .inputs = {uniform({1, 3, 2}, -1, 1), uniform({1, 2, 2}, -1, 1),
                      values({2}, {1}, DataType::kInt64)},
           .error = "DataError",
           .fragments = {"cached", "2"}},
          {.name = "first_axis",
           .model = "[cached] y = TensorScatter <axis = 0> (x, u)",
           .inputs = {uniform({2, 3, 2}, -1, 1), uniform({2, 3, 2}, -1, 1)},
           .error = "ShapeError",
           .fragments = {"cached"}},
          {.name = "mode",
           .model = "[cached] y = TensorScatter <mode = \"ring\"> (x, u)",
           .inputs = {uniform({2, 3, 2}, -1, 1), uniform({2, 3, 2}, -1, 1)},
           .error = "ModelError",
           .fragments = {"cached", "mode"}}};
}

}  // namespace onnxgrad::ops_test
