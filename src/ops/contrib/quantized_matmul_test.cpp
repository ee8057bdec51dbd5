#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {

std::vector<OpCase> quantized_matmul_cases() {
  // tests/python/test_quantized_operators.py compares the other operators with stock onnxruntime.
  return {
      {.name = "few_bits",
       .model = "d = Cast <to = 1> (x)\n"
                "y = com.microsoft.MatMulNBits <K = 16, N = 2, block_size = 16> (d, b, s)",
       .inputs = {uniform({3, 16}, -1, 1), integers({2, 1, 8}, 0, 255, DataType::kUint8).constant(),
                  uniform({2}, 0.01, 0.02).as(DataType::kFloat32).constant()},
       .tolerance = 0.05,
       .tolerance_reason = "differences of float32 results carry their rounding",
       .domains = {{"com.microsoft", 1}}}};
}

std::vector<ErrorCase> quantized_matmul_error_cases() {
  return {
      {.name = "bytes",
       .model = "[head] y = com.microsoft.MatMulNBits <K = 16, N = 2, block_size = 16> (x, b, s)",
       .inputs = {uniform({3, 16}, -1, 1).as(DataType::kFloat32),
                  integers({2, 1, 7}, 0, 255, DataType::kUint8).constant(),
                  uniform({2}, 0.1, 1).as(DataType::kFloat32).constant()},
       .error = "ShapeError",
       .fragments = {"head", "14 bytes"},
       .domains = {{"com.microsoft", 1}}}};
}

}  // namespace onnxgrad::ops_test
