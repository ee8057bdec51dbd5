#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {

std::vector<OpCase> left_out_cases() { return {}; }

std::vector<ErrorCase> left_out_error_cases() {
  return {{.name = "ordered",
           .model = "[head] y = com.microsoft.QOrderedGelu <order_X = 1, order_Y = 1> (x, s, t)",
           .inputs = {integers({2, 3}, -5, 5, DataType::kInt8), uniform({}, 0.1, 1),
                      uniform({}, 0.1, 1)},
           .error = "UnsupportedOperatorError",
           .fragments = {"head", "tiled layouts", "QuantizeLinear"},
           .domains = {{"com.microsoft", 1}}}};
}

}  // namespace onnxgrad::ops_test
