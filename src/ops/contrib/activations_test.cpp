#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {
namespace activations {

OpCase call(std::string name, const std::string& call, std::vector<CaseInput> inputs) {
  return {.name = std::move(name),
          .model = "y = com.microsoft." + call,
          .inputs = std::move(inputs),
          .domains = {{"com.microsoft", 1}}};
}

}  // namespace activations

std::vector<OpCase> activations_cases() {
  using activations::call;
  std::vector<OpCase> cases;
  for (const std::string op_type : {"Gelu", "FastGelu", "QuickGelu"}) {
    for (const Dims& dims : {Dims{3, 4}, Dims{1}, Dims{0, 4}, Dims{}}) {
      cases.push_back(call(op_type + "_" + std::to_string(cases.size()), op_type + " (x)",
                           {uniform(dims, -3, 3)}));
    }
  }
  for (const std::string op_type : {"BiasGelu", "FastGelu", "BiasSplitGelu"}) {
    cases.push_back(call("biased_" + op_type, op_type + " (x, b)",
                         {uniform({2, 3, 4}, -2, 2), uniform({4}, -1, 1)}));
  }
  cases.push_back(call("alpha", "QuickGelu <alpha = 0.5> (x)", {uniform({3, 4}, -2, 2)}));
  return cases;
}

std::vector<ErrorCase> activations_error_cases() {
  const auto refused = [](std::string name, const std::string& call, std::vector<CaseInput> inputs,
                          std::string error, std::string fragment) {
    return ErrorCase{.name = std::move(name),
                     .model = "[head] y = com.microsoft." + call,
                     .inputs = std::move(inputs),
                     .error = std::move(error),
                     .fragments = {"head", std::move(fragment)},
                     .domains = {{"com.microsoft", 1}}};
  };
  return {
      refused("bias", "BiasGelu (x)", {uniform({2}, -1, 1)}, "ModelError", "input B"),
      refused("attribute", "Gelu <alpha = 1.0> (x)", {uniform({2}, -1, 1)}, "ModelError", "alpha"),
  };
}

}  // namespace onnxgrad::ops_test
