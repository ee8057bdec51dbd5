#include <limits>

#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {

std::vector<OpCase> pad_cases() {
  const auto x = [](Dims dims) { return uniform(std::move(dims), -1, 1); };
  const CaseInput number = values({0.7}, {});
  std::vector<OpCase> cases;
  const auto add = [&cases](std::string name, std::string model, std::vector<CaseInput> inputs) {
    cases.push_back(
        {.name = std::move(name), .model = std::move(model), .inputs = std::move(inputs)});
  };
  add("zeros", "y = Pad (x, pads)", {x({2, 3}), ints({1, 0, 2, 1})});
  add("constant", "y = Pad <mode = \"constant\"> (x, pads, value)",
      {x({2, 3}), ints({1, 2, 0, 1}), number});
  add("axes", "y = Pad (x, pads, value, axes)",
      {x({2, 3, 4}), ints({1, 2, 0, 1}), number, ints({-1, 0})});
  add("axes_without_value", "y = Pad (x, pads, , axes)", {x({2, 3}), ints({1, 2}), ints({1})});
  add("cropped", "y = Pad (x, pads, value)", {x({4, 5}), ints({-1, 2, 1, -2}), number});
  add("all_cropped", "y = Pad (x, pads)", {x({4}), ints({-2, -2})});
  add("nothing", "y = Pad (x, pads)", {x({2, 3}), ints({0, 0, 0, 0})});
  add("empty", "y = Pad (x, pads, value)", {x({0, 3}), ints({1, 0, 1, 0}), number});
  add("one", "y = Pad (x, pads)", {x({1}), ints({2, 3})});
  add("fed", "y = Pad (x, pads, value)", {x({2, 3}), ints({1, 0, 2, 1}).fed(), number});
  for (const std::string mode : {"edge", "reflect", "wrap"}) {
    const std::string model = "y = Pad <mode = \"" + mode + "\"> (x, pads)";
    add(mode, model, {x({3, 4}), ints({2, 1, 1, 3})});
    add(mode + "_axes", "y = Pad <mode = \"" + mode + "\"> (x, pads, , axes)",
        {x({3, 4}), ints({1, 2}), ints({1})});
    add(mode + "_vector", model, {x({5}), ints({3, 2})});
  }
  for (const DataType dtype : {DataType::kInt64, DataType::kInt32, DataType::kBool}) {
    cases.push_back({.name = std::string(dtype_name(dtype)),
                     .model = "y = Pad (x, pads)",
                     .inputs = {integers({2, 3}, 0, 1, dtype), ints({1, 0, 2, 1})},
                     .no_gradient = "integers"});
  }
  return cases;
}

std::vector<ErrorCase> pad_error_cases() {
  const CaseInput x = uniform({2, 3}, -1, 1);
  return {
      {.name = "count",
       .model = "[frame] y = Pad (x, pads)",
       .inputs = {x, ints({1, 1})},
       .error = "ShapeError",
       .fragments = {"frame"}},
      {.name = "more_than_memory",
       .model = "[frame] y = Pad <mode = \"wrap\"> (x, pads)",
       .inputs = {x, ints({0, std::int64_t{1} << 42, 0, 0})},
       .error = "DeviceError",
       .fragments = {"frame"}},
      {.name = "cropped_away",
       .model = "[frame] y = Pad (x, pads)",
       .inputs = {x, ints({-3, 0, 0, 0})},
       .error = "ShapeError",
       .fragments = {"frame"}},
      {.name = "axis",
       .model = "[frame] y = Pad (x, pads, , axes)",
       .inputs = {x, ints({1, 1}), ints({2})},
       .error = "ShapeError",
       .fragments = {"frame"}},
      {.name = "mode",
       .model = "[frame] y = Pad <mode = \"mirror\"> (x, pads)",
       .inputs = {x, ints({1, 1, 1, 1})},
       .error = "ModelError",
       .fragments = {"frame", "mode", "reflect"}},
      {.name = "edge_of_nothing",
       .model = "[frame] y = Pad <mode = \"edge\"> (x, pads)",
       .inputs = {uniform({0, 3}, -1, 1), ints({1, 0, 0, 0})},
       .error = "ShapeError",
       .fragments = {"frame"}},
      {.name = "minimum",
       .model = "[frame] y = Pad (x, pads)",
       .inputs = {x, ints({std::numeric_limits<std::int64_t>::min(), 0, 0, 0})},
       .error = "ShapeError",
       .fragments = {"frame"}},
  };
}

}  // namespace onnxgrad::ops_test
