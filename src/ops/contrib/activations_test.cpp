#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {

std::vector<OpCase> activations_cases() {
  std::vector<OpCase> cases;
  for (const std::string op_type : {"Gelu", "FastGelu", "QuickGelu"}) {
    for (const Dims& dims : {Dims{3, 4}, Dims{1}, Dims{0, 4}, Dims{}}) {
      cases.push_back(contrib_call(op_type + "_" + std::to_string(cases.size()), op_type + " (x)",
                                   {uniform(dims, -3, 3)}));
    }
  }
  for (const std::string op_type : {"BiasGelu", "FastGelu", "BiasSplitGelu"}) {
    cases.push_back(contrib_call("biased_" + op_type, op_type + " (x, b)",
                                 {uniform({2, 3, 4}, -2, 2), uniform({4}, -1, 1)}));
  }
  cases.push_back(contrib_call("alpha", "QuickGelu <alpha = 0.5> (x)", {uniform({3, 4}, -2, 2)}));
  return cases;
}

std::vector<ErrorCase> activations_error_cases() {
  return {
      contrib_refused("bias", "BiasGelu (x)", {uniform({2}, -1, 1)}, "ModelError", "input B"),
      contrib_refused("attribute", "Gelu <alpha = 1.0> (x)", {uniform({2}, -1, 1)}, "ModelError",
                      "alpha"),
  };
}

}  // namespace onnxgrad::ops_test
