#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {
namespace cast {

std::string to(DataType dtype) { return std::to_string(static_cast<int>(dtype)); }

}  // namespace cast

std::vector<OpCase> cast_cases() {
  using cast::to;
  const CaseInput x = values({-2.75, -1, -0.25, 0, 0.5, 3.9}, {2, 3});
  std::vector<OpCase> cases;
  for (const DataType dtype : {DataType::kFloat32, DataType::kFloat64}) {
    cases.push_back({.name = "to_" + std::string(dtype_name(dtype)),
                     .model = "s = Cast <to = " + to(dtype) +
                              "> (x)\ny = Cast <to = " + to(DataType::kFloat64) + "> (s)",
                     .inputs = {values({-2.75, -1, 0.5}, {3})},
                     .tolerance = 0.1,
                     .tolerance_reason = "differences through float32 carry its rounding"});
  }
  for (const DataType dtype :
       {DataType::kInt64, DataType::kInt32, DataType::kInt8, DataType::kBool}) {
    cases.push_back({.name = "float_to_" + std::string(dtype_name(dtype)),
                     .model = "y = Cast <to = " + to(dtype) + "> (x)",
                     .inputs = {x},
                     .no_gradient = "integer output"});
    cases.push_back({.name = std::string(dtype_name(dtype)) + "_to_float",
                     .model = "y = Cast <to = " + to(DataType::kFloat32) + "> (x)",
                     .inputs = {integers({2, 3}, 0, 1, dtype)},
                     .no_gradient = "integer input"});
  }
  cases.push_back({.name = "through_integers",
                   .model = "n = Cast <to = 7> (x)\nm = Cast <to = 1> (n)\ny = Mul (m, m)",
                   .inputs = {x.as(DataType::kFloat32)},
                   .no_gradient = "a step function"});
  cases.push_back({.name = "through_truth",
                   .model = "n = Cast <to = 9> (x)\nm = Cast <to = 1> (n)\ny = Add (m, m)",
                   .inputs = {x.as(DataType::kFloat32)},
                   .no_gradient = "a step function"});
  cases.push_back({.name = "wraps",
                   .model = "y = Cast <to = " + to(DataType::kUint8) + "> (x)",
                   .inputs = {values({300, -1, 255, 256}, {4}, DataType::kInt64)},
                   .no_gradient = "integers"});
  for (const std::string flags :
       {"saturate = 0, round_mode = \"up\"", "saturate = 1, round_mode = \"down\"",
        "saturate = 1, round_mode = \"nearest\""}) {
    cases.push_back({.name = "flags_" + std::to_string(cases.size()),
                     .model = "y = Cast <to = 7, " + flags + "> (x)",
                     .inputs = {x},
                     .no_gradient = "integer output"});
    cases.push_back({.name = "like_flags_" + std::to_string(cases.size()),
                     .model = "y = CastLike <" + flags + "> (x, z)",
                     .inputs = {x, integers({2}, 0, 1)},
                     .no_gradient = "integer output"});
  }
  for (const Dims& dims : {Dims{}, Dims{0, 2}, Dims{1}, Dims{2, 3}}) {
    const std::string suffix = std::to_string(cases.size());
    cases.push_back({.name = "size_" + suffix,
                     .model = "y = Cast <to = 11> (x)",
                     .inputs = {uniform(dims, -1, 1)},
                     .wrt = {"x"}});
    cases.push_back({.name = "like_" + suffix,
                     .model = "s = Exp (x)\ny = CastLike (s, z)",
                     .inputs = {uniform(dims, -1, 1), uniform({3}, -1, 1)},
                     .wrt = {"x"}});
  }
  return cases;
}

std::vector<ErrorCase> cast_error_cases() {
  const CaseInput x = uniform({2, 3}, -1, 1);
  return {
      {.name = "no_type",
       .model = "[typed] y = Cast (x)",
       .inputs = {x},
       .error = "ModelError",
       .fragments = {"typed", "to"}},
      {.name = "unknown_type",
       .model = "[typed] y = Cast <to = 99> (x)",
       .inputs = {x},
       .error = "ModelError",
       .fragments = {"typed", "to"}},
      {.name = "round_mode",
       .model = "[typed] y = CastLike <round_mode = \"sideways\"> (x, x)",
       .inputs = {x},
       .error = "ModelError",
       .fragments = {"typed", "round_mode"}},
  };
}

}  // namespace onnxgrad::ops_test
