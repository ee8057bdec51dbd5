#include "onnxgrad/quantized_weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "onnxgrad/adapters.h"
#include "onnxgrad/error.h"
#include "onnxgrad/inference_session.h"
#include "onnxgrad/option_error.h"
#include "onnxgrad/weights.h"

namespace onnxgrad::quantized_weights_test {
namespace {

Tensor waves(const Dims& dims, float step) {
  std::vector<float> numbers(static_cast<std::size_t>(dims.num_elements()));
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    numbers[i] = std::sin(step * static_cast<float>(i));
  }
  return Tensor::from(numbers, dims);
}

// "{0.1, 0.2, ...}" in ONNX's text syntax.
std::string text_of(const Tensor& tensor) {
  std::string text;
  for (const float number : tensor.data<float>()) {
    text += (text.empty() ? "{" : ", ") + std::to_string(number);
  }
  return text + "}";
}

Model network() {
  return Model::from_text(R"(
    <ir_version: 10, opset_import: ["" : 21]>
    g (float[N, 160] x) => (float[N, 3] y)
    <float[160, 192] w1 = )" +
                          text_of(waves({160, 192}, 0.37F)) +
                          ", float[192] b1 = " + text_of(waves({192}, 0.11F)) +
                          ", float[192, 3] w2 = " + text_of(waves({192, 3}, 0.23F)) +
                          "> { a = Gemm(x, w1, b1)  h = Tanh(a)  y = MatMul(h, w2) }");
}

std::vector<float> run(const Model& model) {
  InferenceSession session(model);
  const std::vector<std::string> names{"y"};
  const Tensor result =
      session.run(names, {{.name = "x", .tensor = waves({4, 160}, 0.05F)}}).front();
  const auto numbers = result.data<float>();
  return {numbers.begin(), numbers.end()};
}

float distance(const std::vector<float>& a, const std::vector<float>& b) {
  float most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(a[i] - b[i]));
  return most;
}

TEST(QuantizedWeights, ComputeAlmostTheSame) {
  const Model plain = network();
  for (const char* name : {"int4", "int8", "nf4"}) {
    const Model packed = quantize_weights(plain, {.format = weight_format_from_name(name)});
    EXPECT_LT(packed.to_bytes().size(), plain.to_bytes().size() / 2) << name;
    const float change = distance(run(packed), run(plain));
    EXPECT_GT(change, 0.0F) << name;
    EXPECT_LT(change, std::string(name) == "int8" ? 0.5F : 8.0F) << name;
    EXPECT_LT(distance(run(dequantize_weights(packed)), run(packed)), 1e-4F) << name;
  }
}

TEST(QuantizedWeights, AdaptersAreMergedIntoFloatWeights) {
  const Model adapted = add_adapter(quantize_weights(network()), {.rank = 2});
  ASSERT_EQ(adapters(adapted).front().layers.size(), 1U);
  EXPECT_EQ(adapters(adapted).front().layers.front().weight, "w1_Q4");
  const Model changed =
      set_weights(adapted, {{.name = "w1.lora_B.default.weight", .tensor = waves({2, 192}, 1)}});
  EXPECT_THROW(merge_adapters(changed), ModelError);
  const Model merged = merge_adapters(dequantize_weights(changed));
  EXPECT_TRUE(adapters(merged).empty());
  EXPECT_LT(distance(run(merged), run(changed)), 1e-3F);
}

TEST(QuantizedWeights, ErrorsNameWhatIsWrong) {
  const Model plain = network();
  EXPECT_THROW(weight_format_from_name("int3"), OptionError);
  EXPECT_THROW(quantize_weights(plain, {.block_size = 20}), OptionError);
  EXPECT_THROW(dequantize_weights(plain), ModelError);
  EXPECT_THROW(quantize_weights(add_adapter(plain)), ModelError);
}

}  // namespace
}  // namespace onnxgrad::quantized_weights_test
