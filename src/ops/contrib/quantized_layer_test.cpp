#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {

// No cases here: tests/python/test_quantized_operators.py compares with stock onnxruntime.
std::vector<OpCase> quantized_layer_cases() { return {}; }

std::vector<ErrorCase> quantized_layer_error_cases() {
  return {
      {.name = "channels_last",
       .model = "[head] y = com.microsoft.QLinearGlobalAveragePool <channels_last = 1> "
                "(x, s, z, t, u)",
       .inputs = {integers({1, 3, 4, 4}, 0, 255, DataType::kUint8),
                  uniform({}, 0.1, 1).as(DataType::kFloat32), integers({}, 1, 1, DataType::kUint8),
                  uniform({}, 0.1, 1).as(DataType::kFloat32), integers({}, 1, 1, DataType::kUint8)},
       .error = "UnsupportedOperatorError",
       .fragments = {"head", "channels_last"},
       .domains = {{"com.microsoft", 1}}}};
}

}  // namespace onnxgrad::ops_test
