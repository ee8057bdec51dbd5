#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {

std::vector<OpCase> fused_matmul_cases() {
  const CaseInput image = uniform({2, 2, 4, 4}, -1, 1);
  const CaseInput kernel = uniform({3, 2, 3, 3}, -1, 1).constant();
  const CaseInput a = uniform({3, 4}, -1, 1);
  const CaseInput b = uniform({4, 2}, -1, 1);
  return {
      contrib_call("product", "FusedMatMul <alpha = 0.5> (a, b)", {a, b}),
      contrib_call("product_turned", "FusedMatMul <transA = 1, transB = 1> (a, b)",
                   {uniform({2, 4, 3}, -1, 1), uniform({2, 5, 4}, -1, 1)}),
      contrib_call("product_batch", "FusedMatMul <transBatchA = 1> (a, b)",
                   {uniform({3, 2, 4}, -1, 1), uniform({2, 4, 5}, -1, 1)}),
      contrib_call("product_nothing", "TransposeMatMul (a, b)", {uniform({0, 4}, -1, 1), b}),
      contrib_call("gemm", "FusedGemm <activation = \"Tanh\", beta = 0.5> (a, b, c)",
                   {a, b, uniform({2}, -1, 1)}),
      contrib_call("gemm_gelu", "GemmFastGelu (a, b, c)", {a, b, uniform({2}, -1, 1)}),
      contrib_call("conv", "FusedConv <activation = \"Sigmoid\", pads = [1, 1, 1, 1]> (x, w)",
                   {image, kernel}),
      contrib_call("conv_sum", "FusedConv <activation = \"Tanh\"> (x, w, b, z)",
                   {image, kernel, uniform({3}, -1, 1), uniform({2, 3, 2, 2}, -1, 1)}),
      contrib_call("conv_last", "NhwcConv <strides = [2, 1]> (x, w, b)",
                   {uniform({2, 5, 4, 2}, -1, 1), kernel, uniform({3}, -1, 1)}),
  };
}

std::vector<ErrorCase> fused_matmul_error_cases() {
  return {
      contrib_refused("activation", "FusedGemm <activation = \"Sine\"> (a, b)",
                      {uniform({2, 3}, -1, 1), uniform({3, 2}, -1, 1)}, "UnsupportedOperatorError",
                      "Sine"),
  };
}

}  // namespace onnxgrad::ops_test
