#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {

std::vector<OpCase> concat_cases() {
  const auto x = [](Dims dims) { return uniform(std::move(dims), -1, 1); };
  std::vector<OpCase> cases;
  const auto add = [&cases](std::string name, std::string model, std::vector<CaseInput> inputs) {
    cases.push_back(
        {.name = std::move(name), .model = std::move(model), .inputs = std::move(inputs)});
  };
  add("rows", "y = Concat <axis = 0> (a, b)", {x({2, 3}), x({1, 3})});
  add("columns", "y = Concat <axis = 1> (a, b, c)", {x({2, 3}), x({2, 1}), x({2, 2})});
  add("last", "y = Concat <axis = -1> (a, b)", {x({2, 2, 3}), x({2, 2, 2})});
  add("middle", "y = Concat <axis = -2> (a, b)", {x({2, 2, 3}), x({2, 1, 3})});
  add("single", "y = Concat <axis = 0> (a)", {x({2, 3})});
  add("same_twice", "y = Concat <axis = 0> (a, a)", {x({2, 3})});
  add("empty_part", "y = Concat <axis = 0> (a, b)", {x({2, 3}), x({0, 3})});
  add("all_empty", "y = Concat <axis = 0> (a, b)", {x({0}), x({0})});
  add("one", "y = Concat <axis = 0> (a, b)", {x({1}), x({1})});
  add("few_needed", "y = Concat <axis = 1> (a, b, c)",
      {x({2, 3}), x({2, 2}).constant(), x({2, 1}).constant()});
  cases.push_back({.name = "int32",
                   .model = "y = Concat <axis = 0> (a, b)",
                   .inputs = {integers({2, 3}, 0, 9, DataType::kInt32),
                              integers({1, 3}, 0, 9, DataType::kInt32)},
                   .no_gradient = "integers"});

  add("split_equal", "y, z = Split <axis = 0, num_outputs = 2> (x)", {x({4, 3})});
  add("split_uneven", "y, z = Split <axis = 1, num_outputs = 2> (x)", {x({2, 5})});
  add("split_sizes", "y, z, w = Split <axis = -1> (x, sizes)", {x({2, 6}), ints({1, 3, 2})});
  add("split_empty_part", "y, z = Split <axis = 0> (x, sizes)", {x({3, 2}), ints({0, 3})});
  add("split_empty", "y, z = Split <axis = 0> (x, sizes)", {x({0, 2}), ints({0, 0})});
  add("split_one", "y = Split <num_outputs = 1> (x)", {x({1})});
  add("split_default_axis", "y, z = Split (x, sizes)", {x({3}), ints({1, 2})});
  cases.push_back({.name = "split_one_part_used",
                   .model = "y, z, w = Split <axis = 1, num_outputs = 3> (x)",
                   .inputs = {x({2, 6})},
                   .outputs = {"z"}});
  return cases;
}

std::vector<ErrorCase> concat_error_cases() {
  const auto x = [](Dims dims) { return uniform(std::move(dims), -1, 1); };
  return {
      {.name = "shapes",
       .model = "[joined] y = Concat <axis = 0> (a, b)",
       .inputs = {x({2, 3}), x({2, 2})},
       .error = "ShapeError",
       .fragments = {"joined", "3", "2"}},
      {.name = "axis",
       .model = "[joined] y = Concat <axis = 2> (a, b)",
       .inputs = {x({2, 3}), x({2, 3})},
       .error = "ShapeError",
       .fragments = {"joined", "2"}},
      {.name = "no_axis",
       .model = "[joined] y = Concat (a, b)",
       .inputs = {x({2, 3}), x({2, 3})},
       .error = "ModelError",
       .fragments = {"joined", "axis"}},
      {.name = "split_sizes",
       .model = "[parts] y, z = Split <axis = 0> (x, sizes)",
       .inputs = {x({4}), ints({1, 2})},
       .error = "ShapeError",
       .fragments = {"parts", "4"}},
      {.name = "split_count",
       .model = "[parts] y, z = Split <num_outputs = 0> (x)",
       .inputs = {x({4})},
       .error = "ModelError",
       .fragments = {"parts", "num_outputs"}},
      {.name = "split_parts_without_output",
       .model = "[parts] y, z = Split <num_outputs = 3> (x)",
       .inputs = {x({6})},
       .error = "ModelError",
       .fragments = {"parts", "num_outputs is 3", "2 outputs"}},
      {.name = "split_sizes_without_output",
       .model = "[parts] y, z = Split (x, sizes)",
       .inputs = {x({6}), ints({2, 2, 2})},
       .error = "ShapeError",
       .fragments = {"parts", "sizes"}},
      {.name = "split_negative_size",
       .model = "[parts] y, z = Split (x, sizes)",
       .inputs = {x({4}), ints({-1, 5})},
       .error = "ShapeError",
       .fragments = {"parts"}},
  };
}

}  // namespace onnxgrad::ops_test
