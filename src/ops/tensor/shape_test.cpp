#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {
namespace shape {

void add_shapes(std::vector<OpCase>& cases) {
  const auto add = [&cases](std::string name, std::string op, Dims dims) {
    cases.push_back({.name = std::move(name),
                     .model = "y = " + std::move(op) + " (x)",
                     .inputs = {uniform(std::move(dims), -1, 1)},
                     .no_gradient = "integer output"});
  };
  add("all", "Shape", {2, 3, 4});
  add("from", "Shape <start = 1>", {2, 3, 4});
  add("negative", "Shape <start = -2, end = -1>", {2, 3, 4});
  add("clamped", "Shape <start = -9, end = 9>", {2, 3, 4});
  add("crossed", "Shape <start = 2, end = 1>", {2, 3, 4});
  add("of_scalar", "Shape", {});
  add("of_empty", "Shape", {0, 3});
  add("of_one", "Shape", {1});
  add("size", "Size", {2, 3, 4});
  add("size_of_scalar", "Size", {});
  add("size_of_empty", "Size", {0, 3});
  add("size_of_one", "Size", {1});
  cases.push_back({.name = "in_a_product",
                   .model = "n = Size (x)\nm = CastLike (n, x)\ny = Mul (x, m)",
                   .inputs = {uniform({2, 3}, -1, 1)}});
}

void add_constants(std::vector<OpCase>& cases) {
  const auto add = [&cases](std::string name, std::string op, CaseInput x) {
    cases.push_back({.name = std::move(name),
                     .model = "y = " + std::move(op) + " (x)",
                     .inputs = {std::move(x)},
                     .no_gradient = "integer input"});
  };
  add("zeros", "ConstantOfShape", ints({2, 3}));
  add("value", "ConstantOfShape <value = float[1] {1.5}>", ints({2, 3}));
  add("int_value", "ConstantOfShape <value = int64[1] {7}>", ints({4}));
  add("bool_value", "ConstantOfShape <value = bool[1] {1}>", ints({4}));
  add("scalar_value", "ConstantOfShape <value = float[1] {2.5}>", ints({}));
  add("no_values", "ConstantOfShape", ints({0, 3}));
  add("one_value", "ConstantOfShape", ints({1}));
  add("eye", "EyeLike", integers({3, 4}, 0, 1, DataType::kInt32));
  add("eye_above", "EyeLike <k = 1, dtype = 1>", integers({3, 4}, 0, 1));
  add("eye_below", "EyeLike <k = -2, dtype = 11>", integers({4, 3}, 0, 1));
  add("eye_outside", "EyeLike <k = 9, dtype = 7>", integers({2, 3}, 0, 1));
  add("eye_bool", "EyeLike <dtype = 9>", integers({2, 2}, 0, 1));
  add("eye_empty", "EyeLike", integers({0, 3}, 0, 1));
  add("eye_one", "EyeLike", integers({1, 1}, 0, 1));
  cases.push_back({.name = "eye_float",
                   .model = "e = EyeLike (x)\ny = Mul (e, x)",
                   .inputs = {uniform({3, 3}, -1, 1)}});
}

// Constant nodes become initializers; y shows their values.
void add_constant_nodes(std::vector<OpCase>& cases) {
  const auto add = [&cases](std::string name, const std::string& constant) {
    cases.push_back(
        {.name = "node_" + std::move(name),
         .model = "c = Constant <" + constant + "> ()\nk = CastLike (c, x)\ny = Mul (x, k)",
         .inputs = {uniform({2, 3}, -1, 1)}});
  };
  add("tensor", "value = double[3] {1.5, -2.0, 0.25}");
  add("float", "value_float = 2.5");
  add("floats", "value_floats = [1.5, -2.0, 0.25]");
  add("int", "value_int = 7");
  add("ints", "value_ints = [7, 8, 9]");
  cases.push_back({.name = "node_strings",
                   .model = "s = Constant <value_string = \"a\"> ()\n"
                            "t = Constant <value_strings = [\"a\", \"b\"]> ()\ny = Neg (x)",
                   .inputs = {uniform({2, 3}, -1, 1)}});
}

void add_ranges(std::vector<OpCase>& cases) {
  const auto number = [](double value) { return values({value}, {}); };
  const auto add = [&cases](std::string name, CaseInput start, CaseInput limit, CaseInput delta) {
    cases.push_back({.name = "range_" + std::move(name),
                     .model = "y = Range (start, limit, delta)",
                     .inputs = {std::move(start), std::move(limit), std::move(delta)}});
  };
  add("up", number(0.5), number(3.2), number(0.7));
  add("down", number(2), number(-1.1), number(-0.5));
  add("empty", number(2), number(1), number(0.5));
  add("constants", number(0.5).constant(), number(3.2).constant(), number(0.7));
  add("lists", values({0.5}, {1}), values({3.2}, {1}), values({0.7}, {1}));
  for (const DataType dtype : {DataType::kInt64, DataType::kInt32, DataType::kInt16}) {
    add(std::string(dtype_name(dtype)), values({10}, {}, dtype), values({-3}, {}, dtype),
        values({-4}, {}, dtype));
    cases.back().no_gradient = "integers";
  }
  add("one", values({1}, {}, DataType::kInt64), values({2}, {}, DataType::kInt64),
      values({1}, {}, DataType::kInt64));
  cases.back().no_gradient = "integers";
}

}  // namespace shape

std::vector<OpCase> shape_cases() {
  std::vector<OpCase> cases;
  shape::add_shapes(cases);
  shape::add_constants(cases);
  shape::add_constant_nodes(cases);
  shape::add_ranges(cases);
  return cases;
}

std::vector<ErrorCase> shape_error_cases() {
  return {
      {.name = "attribute",
       .model = "[sizes] y = Shape <begin = 1> (x)",
       .inputs = {uniform({2, 3}, -1, 1)},
       .error = "ModelError",
       .fragments = {"sizes", "begin"}},
      {.name = "size_attribute",
       .model = "[sizes] y = Size <axis = 1> (x)",
       .inputs = {uniform({2, 3}, -1, 1)},
       .error = "ModelError",
       .fragments = {"sizes", "axis"}},
      {.name = "constant_negative",
       .model = "[filled] y = ConstantOfShape (x)",
       .inputs = {ints({2, -3})},
       .error = "ShapeError",
       .fragments = {"filled"}},
      {.name = "constant_huge",
       .model = "[filled] y = ConstantOfShape (x)",
       .inputs = {ints({std::int64_t{1} << 40, std::int64_t{1} << 40})},
       .error = "ShapeError",
       .fragments = {"filled"}},
      {.name = "constant_above_memory",
       .model = "[filled] y = ConstantOfShape (x)",
       .inputs = {ints({std::int64_t{1} << 45})},
       .error = "DeviceError",
       .fragments = {"memory"}},
      {.name = "eye_rank",
       .model = "[diagonal] y = EyeLike (x)",
       .inputs = {uniform({2, 3, 4}, -1, 1)},
       .error = "ShapeError",
       .fragments = {"diagonal"}},
      {.name = "constant_without_value",
       .model = "[empty] c = Constant ()\ny = Mul (x, c)",
       .inputs = {uniform({2, 3}, -1, 1)},
       .error = "ShapeError",
       .fragments = {"empty"}},
      {.name = "range_delta",
       .model = "[numbers] y = Range (start, limit, delta)",
       .inputs = {int_scalar(0), int_scalar(3), int_scalar(0)},
       .error = "ShapeError",
       .fragments = {"numbers"}},
  };
}

}  // namespace onnxgrad::ops_test
