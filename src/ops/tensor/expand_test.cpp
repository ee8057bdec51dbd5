#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {

std::vector<OpCase> expand_cases() {
  const auto x = [](Dims dims) { return uniform(std::move(dims), -1, 1); };
  std::vector<OpCase> cases;
  const auto add = [&cases](std::string name, const std::string& op, CaseInput input,
                            CaseInput shape) {
    cases.push_back({.name = std::move(name),
                     .model = "y = " + op + " (x, shape)",
                     .inputs = {std::move(input), std::move(shape)}});
  };
  add("column", "Expand", x({3, 1}), ints({3, 4}));
  add("row", "Expand", x({4}), ints({3, 4}));
  add("both", "Expand", x({2, 1, 3, 1}), ints({5, 1, 2}));
  add("smaller_shape", "Expand", x({2, 3}), ints({1}));
  add("scalar", "Expand", x({}), ints({2, 3}));
  add("to_scalar", "Expand", x({}), ints({}));
  add("same", "Expand", x({2, 3}), ints({2, 3}));
  add("to_nothing", "Expand", x({1, 3}), ints({0, 3}));
  add("empty", "Expand", x({0}), ints({2, 0}));
  add("one", "Expand", x({1}), ints({7}));
  add("fed", "Expand", x({3, 1}), ints({3, 4}).fed());
  cases.push_back({.name = "int8",
                   .model = "y = Expand (x, shape)",
                   .inputs = {integers({3, 1}, 0, 9, DataType::kInt8), ints({3, 5})},
                   .no_gradient = "integers"});

  add("tile_matrix", "Tile", x({2, 3}), ints({2, 3}));
  add("tile_rows", "Tile", x({2, 3}), ints({4, 1}));
  add("tile_once", "Tile", x({2, 3}), ints({1, 1}));
  add("tile_vector", "Tile", x({3}), ints({3}));
  add("tile_cube", "Tile", x({2, 1, 3}), ints({1, 4, 2}));
  add("tile_none", "Tile", x({2, 3}), ints({0, 2}));
  add("tile_empty", "Tile", x({0, 3}), ints({2, 2}));
  add("tile_scalar", "Tile", x({}), ints({}));
  add("tile_one", "Tile", x({1}), ints({5}));
  add("tile_fed", "Tile", x({2, 3}), ints({2, 3}).fed());
  return cases;
}

std::vector<ErrorCase> expand_error_cases() {
  const CaseInput x = uniform({2, 3}, -1, 1);
  return {
      {.name = "shape",
       .model = "[spread] y = Expand (x, shape)",
       .inputs = {x, ints({2, 4})},
       .error = "ShapeError",
       .fragments = {"spread"}},
      {.name = "negative",
       .model = "[spread] y = Expand (x, shape)",
       .inputs = {x, ints({-1, 3})},
       .error = "ShapeError",
       .fragments = {"spread"}},
      {.name = "huge",
       .model = "[spread] y = Expand (x, shape)",
       .inputs = {uniform({1, 1}, 0, 1), ints({std::int64_t{1} << 40, std::int64_t{1} << 40})},
       .error = "ShapeError",
       .fragments = {"spread"}},
      {.name = "tile_count",
       .model = "[again] y = Tile (x, repeats)",
       .inputs = {x, ints({2})},
       .error = "ShapeError",
       .fragments = {"again"}},
      {.name = "tile_negative",
       .model = "[again] y = Tile (x, repeats)",
       .inputs = {x, ints({2, -1})},
       .error = "ShapeError",
       .fragments = {"again"}},
      {.name = "tile_huge",
       .model = "[again] y = Tile (x, repeats)",
       .inputs = {x, ints({std::int64_t{1} << 40, std::int64_t{1} << 40})},
       .error = "ShapeError",
       .fragments = {"again"}},
  };
}

}  // namespace onnxgrad::ops_test
