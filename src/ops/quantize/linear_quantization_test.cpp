#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {
namespace linear_quantization {

CaseInput floats(Dims dims, double low, double high) {
  return uniform(std::move(dims), low, high).as(DataType::kFloat32);
}

OpCase in_float32(std::string name, std::string model, std::vector<CaseInput> inputs) {
  return {.name = std::move(name),
          .model = std::move(model),
          .inputs = std::move(inputs),
          .no_gradient = "the operator takes no float64; tests/python has its gradients"};
}

}  // namespace linear_quantization

std::vector<OpCase> linear_quantization_cases() {
  using linear_quantization::floats;
  using linear_quantization::in_float32;
  const CaseInput x = floats({4, 6}, -3, 3);
  const CaseInput one = floats({}, 0.05, 0.1);
  const CaseInput zero = integers({}, 1, 1, DataType::kInt8).constant();
  const CaseInput codes = integers({4, 6}, -100, 100, DataType::kInt8);
  return {
      in_float32("one", "y = QuantizeLinear (x, s)", {x, one}),
      in_float32("zero_point", "y = QuantizeLinear <saturate = 1> (x, s, z)", {x, one, zero}),
      in_float32("unsaturated", "y = QuantizeLinear <saturate = 0> (x, s, z)", {x, one, zero}),
      in_float32("type", "y = QuantizeLinear <output_dtype = 3, precision = 1> (x, s)", {x, one}),
      in_float32("axis", "y = QuantizeLinear <axis = -1> (x, s)", {x, floats({6}, 0.05, 0.1)}),
      in_float32("blocks", "y = QuantizeLinear <axis = 1, block_size = 2> (x, s)",
                 {x, floats({4, 3}, 0.05, 0.1)}),
      in_float32("nothing", "y = QuantizeLinear (x, s)", {floats({0, 6}, -1, 1), one}),
      in_float32("single", "y = QuantizeLinear (x, s)", {floats({1}, -1, 1), one}),
      in_float32("back", "y = DequantizeLinear (x, s, z)", {codes, one, zero}),
      in_float32("back_type", "y = DequantizeLinear <output_dtype = 1> (x, s)", {codes, one}),
      in_float32("back_axis", "y = DequantizeLinear <axis = -1> (x, s)",
                 {codes, floats({6}, 0.05, 0.1)}),
      in_float32("back_blocks", "y = DequantizeLinear <axis = 0, block_size = 3> (x, s)",
                 {codes, floats({2, 6}, 0.05, 0.1)}),
      in_float32("back_nothing", "y = DequantizeLinear (x, s)",
                 {integers({0, 6}, 0, 1, DataType::kInt8), one}),
      in_float32("back_single", "y = DequantizeLinear (x, s)",
                 {integers({1}, 0, 1, DataType::kInt8), one}),
      {.name = "straight_through",
       .model = "q = QuantizeLinear (x, s, z)\nr = DequantizeLinear (q, s, z)\n"
                "d = CastLike (r, w)\ny = Mul (d, w)",
       .inputs = {x.constant(), one.constant(), zero, uniform({6}, -1, 1)}},
      {.name = "number",
       .model = "q = QuantizeLinear (x, s, z)\nr = Cast <to = 1> (q)\n"
                "d = CastLike (r, w)\ny = Mul (d, w)",
       .inputs = {x.constant(), one.constant(), zero, uniform({6}, -1, 1)}},
      {.name = "another_scale",
       .model = "q = QuantizeLinear (x, s, z)\nr = DequantizeLinear <axis = 1> (q, t)\n"
                "d = CastLike (r, w)\ny = Mul (d, w)",
       .inputs = {x.constant(), one.constant(), zero, floats({6}, 0.1, 1).constant(),
                  uniform({6}, -1, 1)}},
  };
}

std::vector<ErrorCase> linear_quantization_error_cases() {
  using linear_quantization::floats;
  return {
      {.name = "scale",
       .model = "[head] y = QuantizeLinear (x, s)",
       .inputs = {floats({4, 6}, -1, 1), floats({5}, 0.1, 1)},
       .error = "ShapeError",
       .fragments = {"head", "[5]"}},
      {.name = "back_scale",
       .model = "[head] y = DequantizeLinear <block_size = 2> (x, s)",
       .inputs = {integers({4, 6}, -1, 1, DataType::kInt8), floats({4, 2}, 0.1, 1)},
       .error = "ShapeError",
       .fragments = {"head", "[4, 2]"}},
  };
}

}  // namespace onnxgrad::ops_test
