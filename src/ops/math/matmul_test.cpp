#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {
namespace matmul {

OpCase product(std::string name, Dims a, Dims b) {
  return {.name = std::move(name),
          .model = "c = MatMul (a, b)",
          .inputs = {uniform(std::move(a), -1, 1), uniform(std::move(b), -1, 1)}};
}

}  // namespace matmul

std::vector<OpCase> matmul_cases() {
  using matmul::product;
  return {
      product("matrices", {3, 4}, {4, 2}),
      product("one", {1, 1}, {1, 1}),
      product("vectors", {4}, {4}),
      product("row_by_matrix", {4}, {4, 3}),
      product("matrix_by_column", {3, 4}, {4}),
      product("batch_by_matrix", {2, 3, 4}, {4, 2}),
      product("batch_by_column", {2, 3, 4}, {4}),
      product("two_batch_axes_by_matrix", {2, 2, 3, 4}, {4, 2}),
      product("matrix_by_batch", {3, 4}, {2, 4, 2}),
      product("row_by_batch", {4}, {2, 4, 3}),
      product("batches", {2, 3, 4}, {2, 4, 2}),
      product("broadcast_left", {1, 3, 4}, {2, 4, 2}),
      product("broadcast_right", {2, 3, 4}, {1, 4, 2}),
      product("broadcast_both", {2, 1, 3, 4}, {3, 4, 2}),
      product("no_rows", {0, 4}, {4, 2}),
      product("no_columns", {3, 4}, {4, 0}),
      product("nothing_to_sum", {3, 0}, {0, 2}),
      product("empty_batch", {0, 3, 4}, {4, 2}),
      product("larger", {17, 33}, {33, 19}),
      {.name = "weight",
       .model = "c = MatMul (a, b)",
       .inputs = {uniform({5, 3}, -1, 1), uniform({3, 2}, -1, 1).constant()}},
      {.name = "square_of_matrix",
       .model = "c = MatMul (a, a)",
       .inputs = {uniform({3, 3}, -1, 1)}},
  };
}

std::vector<ErrorCase> matmul_error_cases() {
  return {
      {.name = "inner_dimensions",
       .model = "[dense] c = MatMul (a, b)",
       .inputs = {uniform({3, 4}, -1, 1), uniform({5, 2}, -1, 1)},
       .error = "ShapeError",
       .fragments = {"dense", "[3, 4]", "[5, 2]"}},
      {.name = "batch_axes",
       .model = "[dense] c = MatMul (a, b)",
       .inputs = {uniform({2, 3, 4}, -1, 1), uniform({3, 4, 2}, -1, 1)},
       .error = "ShapeError",
       .fragments = {"dense"}},
      {.name = "scalar",
       .model = "[dense] c = MatMul (a, b)",
       .inputs = {uniform({}, -1, 1), uniform({4, 2}, -1, 1)},
       .error = "ShapeError",
       .fragments = {"dense"}},
  };
}

}  // namespace onnxgrad::ops_test
