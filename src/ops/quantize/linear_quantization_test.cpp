#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <tuple>
#include <vector>

#include "device/testing/instruction_sets.h"
#include "ops/quantize/quantize_runs_simd.h"
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
      // One scale in a list, for tensors that have no axis 1 or another number of columns.
      in_float32("one_of_list", "y = QuantizeLinear (x, s)", {x, floats({1}, 0.05, 0.1)}),
      in_float32("row_by_one", "y = QuantizeLinear (x, s)",
                 {floats({5}, -3, 3), floats({1}, 0.05, 0.1)}),
      in_float32("back_row_by_one", "y = DequantizeLinear (x, s)",
                 {integers({5}, -100, 100, DataType::kInt32), floats({1}, 0.05, 0.1)}),
      in_float32("back_number_by_one", "y = DequantizeLinear (x, s)",
                 {integers({}, -100, 100, DataType::kInt32), floats({1}, 0.05, 0.1)}),
      in_float32("back_type", "y = DequantizeLinear <output_dtype = 1> (x, s)", {codes, one}),
      in_float32("back_axis", "y = DequantizeLinear <axis = -1> (x, s)",
                 {codes, floats({6}, 0.05, 0.1)}),
      in_float32("back_blocks", "y = DequantizeLinear <axis = 0, block_size = 3> (x, s)",
                 {codes, floats({2, 6}, 0.05, 0.1)}),
      in_float32("back_nothing", "y = DequantizeLinear (x, s)",
                 {integers({0, 6}, 0, 1, DataType::kInt8), one}),
      in_float32("back_single", "y = DequantizeLinear (x, s)",
                 {integers({1}, 0, 1, DataType::kInt8), one}),
      in_float32("back_int4", "q = Cast <to = 22> (x)\ny = DequantizeLinear (q, s)",
                 {integers({3, 5}, -8, 7, DataType::kInt8), one}),
      in_float32("back_uint4_blocks",
                 "q = Cast <to = 21> (x)\ny = DequantizeLinear <axis = 1, block_size = 2> (q, s)",
                 {integers({3, 5}, 0, 15, DataType::kUint8), floats({3, 3}, 0.05, 0.1)}),
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

namespace linear_quantization {

// Multiples of half a step, their neighbours, and values far out of range.
std::vector<float> near_halves(float scale) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::vector<float> x = {0, -0.0F, kInfinity, -kInfinity, 1e30F, -1e30F};
  for (int i = -700; i < 700; ++i) {
    const float half = static_cast<float>(0.5 * i) * scale;
    x.insert(x.end(), {half, std::nextafter(half, kInfinity), std::nextafter(half, -kInfinity)});
  }
  return x;
}

template <class T>
void check_runs(device::Isa isa, float scale, float zero) {
  const std::vector<float> x = near_halves(scale);
  const auto& table = std::get<ops::quantize::QuantizeTable<T>>(ops::quantize::run_tables(isa));
  for (const std::size_t count : {x.size(), std::size_t{37}, std::size_t{3}}) {
    std::vector<T> shared(count, T(7));
    std::vector<T> own(count, T(7));
    const auto size = static_cast<std::int64_t>(count);
    table.run(x.data(), scale, zero, shared.data(), size);
    const std::vector<float> scales(count, scale);
    const std::vector<float> zeros(count, zero);
    table.each(x.data(), scales.data(), zeros.data(), own.data(), size);
    for (std::size_t i = 0; i < count; ++i) {
      const float code = std::nearbyint(x[i] / scale) + zero;
      const auto expected =
          static_cast<T>(std::clamp(code, static_cast<float>(std::numeric_limits<T>::min()),
                                    static_cast<float>(std::numeric_limits<T>::max())));
      ASSERT_EQ(shared[i], expected) << x[i] << " / " << scale;
      ASSERT_EQ(own[i], expected) << x[i] << " / " << scale;
    }
    const auto& back = std::get<ops::quantize::DequantizeTable<T>>(ops::quantize::run_tables(isa));
    std::vector<float> y(count);
    back.run(shared.data(), scale, zero, y.data(), size);
    for (std::size_t i = 0; i < count; ++i) {
      ASSERT_EQ(y[i], (static_cast<float>(shared[i]) - zero) * scale);
    }
  }
}

}  // namespace linear_quantization

TEST(QuantizeRuns, RoundAsADivisionDoes) {
  device::for_each_instruction_set([](const device::CpuOptions& cpu) {
    for (const float scale : {0.1F, 0.004F, 0.5F, 3.0F, 1.0F / 3, 7.3e-5F, -0.25F, 1e-35F}) {
      linear_quantization::check_runs<std::int8_t>(cpu.isa, scale, -3);
      linear_quantization::check_runs<std::uint8_t>(cpu.isa, scale, 77);
      linear_quantization::check_runs<std::int16_t>(cpu.isa, scale, 100);
      linear_quantization::check_runs<std::uint16_t>(cpu.isa, scale, 128);
    }
  });
}

}  // namespace onnxgrad::ops_test
