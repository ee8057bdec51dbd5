#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {

std::vector<OpCase> lrn_cases() {
  std::vector<OpCase> cases;
  const auto add = [&](std::string name, const std::string& attributes, Dims x) {
    cases.push_back({.name = std::move(name),
                     .model = "y = LRN <" + attributes + "> (x)",
                     .inputs = {uniform(std::move(x), -2, 2)}});
  };
  add("odd", "size = 3, alpha = 0.5, beta = 0.6, bias = 1.5", {2, 5, 3, 2});
  add("even", "size = 4, alpha = 0.5", {1, 5, 2, 2});
  add("one", "size = 1", {1, 3, 2, 2});
  add("wider_than_channels", "size = 7, alpha = 1.0", {1, 2, 2, 1});
  add("rows", "size = 3, alpha = 0.5", {2, 4, 3});
  add("vectors", "size = 3, alpha = 0.5", {2, 4});
  add("volumes", "size = 3, alpha = 0.5", {1, 4, 2, 2, 3});
  add("no_images", "size = 3", {0, 4, 2, 2});
  return cases;
}

std::vector<ErrorCase> lrn_error_cases() {
  return {{.name = "size",
           .model = "[local] y = LRN <size = 0> (x)",
           .inputs = {uniform({1, 2, 2, 2}, -1, 1)},
           .error = "ModelError",
           .fragments = {"local", "size"}}};
}

}  // namespace onnxgrad::ops_test
