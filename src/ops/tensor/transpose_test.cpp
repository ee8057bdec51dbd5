#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {

std::vector<OpCase> transpose_cases() {
  const auto x = [](Dims dims) { return uniform(std::move(dims), -1, 1); };
  std::vector<OpCase> cases;
  const auto add = [&cases](std::string name, const std::string& perm, CaseInput input) {
    cases.push_back({.name = std::move(name),
                     .model = "s = Exp (x)\ny = Transpose " + perm + " (s)",
                     .inputs = {std::move(input)}});
  };
  add("default", "", x({2, 3, 4}));
  add("matrix", "<perm = [1, 0]>", x({3, 5}));
  add("large_matrix", "<perm = [1, 0]>", x({37, 41}));
  add("cycle", "<perm = [2, 0, 1]>", x({2, 3, 4}));
  add("channels_last", "<perm = [0, 2, 3, 1]>", x({2, 3, 4, 5}));
  add("rows_together", "<perm = [1, 0, 2]>", x({3, 4, 5}));
  add("identity", "<perm = [0, 1]>", x({3, 4}));
  add("vector", "", x({4}));
  add("scalar", "", x({}));
  add("ones", "<perm = [2, 1, 0]>", x({1, 3, 1}));
  add("empty", "<perm = [1, 0]>", x({0, 3}));
  for (const DataType dtype :
       {DataType::kBool, DataType::kInt8, DataType::kInt32, DataType::kInt64, DataType::kInt16}) {
    cases.push_back({.name = std::string(dtype_name(dtype)),
                     .model = "y = Transpose <perm = [0, 2, 1]> (x)",
                     .inputs = {integers({2, 17, 19}, 0, 1, dtype)},
                     .no_gradient = "not of the floating type under test"});
  }
  return cases;
}

std::vector<ErrorCase> transpose_error_cases() {
  const CaseInput x = uniform({2, 3}, -1, 1);
  return {
      {.name = "too_long",
       .model = "[turned] y = Transpose <perm = [0, 1, 2]> (x)",
       .inputs = {x},
       .error = "ModelError",
       .fragments = {"turned"}},
      {.name = "repeated",
       .model = "[turned] y = Transpose <perm = [0, 0]> (x)",
       .inputs = {x},
       .error = "ModelError",
       .fragments = {"turned"}},
      {.name = "negative",
       .model = "[turned] y = Transpose <perm = [-1, 0]> (x)",
       .inputs = {x},
       .error = "ModelError",
       .fragments = {"turned", "perm"}},
  };
}

}  // namespace onnxgrad::ops_test
