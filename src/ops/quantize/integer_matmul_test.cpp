#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {
namespace integer_matmul {

OpCase whole(std::string name, std::string model, std::vector<CaseInput> inputs) {
  return {.name = std::move(name),
          .model = std::move(model),
          .inputs = std::move(inputs),
          .no_gradient = "its operands and results are integers"};
}

CaseInput bytes(Dims dims) { return integers(std::move(dims), 0, 255, DataType::kUint8); }
CaseInput signs(Dims dims) { return integers(std::move(dims), -128, 127, DataType::kInt8); }
CaseInput scale(double value) { return values({value}, {}, DataType::kFloat32).constant(); }
CaseInput zero(double value) { return values({value}, {}, DataType::kUint8).constant(); }

}  // namespace integer_matmul

std::vector<OpCase> integer_matmul_cases() {
  using integer_matmul::bytes;
  using integer_matmul::scale;
  using integer_matmul::signs;
  using integer_matmul::whole;
  using integer_matmul::zero;
  const std::string window =
      "auto_pad = \"NOTSET\", kernel_shape = [2, 2], pads = [1, 0, 1, 0], "
      "strides = [1, 2], dilations = [1, 1], group = 1";
  std::vector<OpCase> cases = {
      whole("matmul", "y = MatMulInteger (a, b, z)", {bytes({3, 4}), signs({4, 2}), zero(7)}),
      whole("matmul_plain", "y = MatMulInteger (a, b)", {bytes({1, 4}), bytes({4, 2})}),
      whole("matmul_nothing", "y = MatMulInteger (a, b)", {bytes({0, 4}), signs({4, 2})}),
      whole("conv", "y = ConvInteger <" + window + "> (x, w, z)",
            {bytes({2, 3, 5, 5}), signs({4, 3, 2, 2}), zero(9)}),
      whole("conv_nothing", "y = ConvInteger (x, w)", {bytes({0, 3, 5, 5}), signs({4, 3, 1, 1})}),
  };
  const std::vector<CaseInput> product = {bytes({3, 4}), scale(0.02), zero(100),  bytes({4, 2}),
                                          scale(0.03),   zero(90),    scale(0.2), zero(120)};
  cases.push_back(whole("qlinear", "y = QLinearMatMul (a, s, z, b, t, u, v, w)", product));
  cases.push_back(whole("qlinear_nothing", "y = QLinearMatMul (a, s, z, b, t, u, v, w)", product));
  cases.back().inputs[0] = bytes({0, 4});
  cases.push_back(whole("qlinear_one", "y = QLinearMatMul (a, s, z, b, t, u, v, w)", product));
  cases.back().inputs[0] = bytes({1, 4});
  const std::vector<CaseInput> conv = {bytes({2, 3, 5, 5}),
                                       scale(0.02),
                                       zero(100),
                                       bytes({4, 3, 2, 2}).constant(),
                                       scale(0.03),
                                       zero(90),
                                       scale(0.2),
                                       zero(120),
                                       integers({4}, -99, 99, DataType::kInt32).constant()};
  const std::string names = "(x, s, z, f, t, u, v, w, b)";
  cases.push_back(whole("qconv", "y = QLinearConv <" + window + "> " + names, conv));
  cases.push_back(whole("qconv_nothing", "y = QLinearConv " + names, conv));
  cases.back().inputs[0] = bytes({0, 3, 5, 5});
  cases.push_back(whole("qconv_one", "y = QLinearConv " + names, conv));
  cases.back().inputs[0] = bytes({1, 3, 5, 5});
  for (const std::string pad : {"SAME_UPPER", "SAME_LOWER", "VALID"}) {
    cases.push_back(
        whole("qconv_" + pad, "y = QLinearConv <auto_pad = \"" + pad + "\"> " + names, conv));
    cases.push_back(whole("conv_" + pad, "y = ConvInteger <auto_pad = \"" + pad + "\"> (x, w)",
                          {bytes({1, 3, 5, 5}), signs({4, 3, 2, 2})}));
  }
  return cases;
}

std::vector<ErrorCase> integer_matmul_error_cases() {
  using integer_matmul::bytes;
  using integer_matmul::scale;
  using integer_matmul::zero;
  const auto refused = [](std::string name, std::string model, std::vector<CaseInput> inputs) {
    return ErrorCase{.name = std::move(name),
                     .model = "[head] y = " + std::move(model),
                     .inputs = std::move(inputs),
                     .error = "ShapeError",
                     .fragments = {"head"}};
  };
  return {
      refused("matmul", "MatMulInteger (a, b)", {bytes({3, 4}), bytes({5, 2})}),
      refused("conv", "ConvInteger (x, w)", {bytes({1, 3, 5, 5}), bytes({4, 2, 2, 2})}),
      refused("qlinear", "QLinearMatMul (a, s, z, b, t, u, v, w)",
              {bytes({3, 4}), scale(0.02), zero(1), bytes({5, 2}), scale(0.02), zero(1), scale(0.2),
               zero(1)}),
      refused("qconv", "QLinearConv (x, s, z, f, t, u, v, w)",
              {bytes({1, 3, 5, 5}), scale(0.02), zero(1), bytes({4, 2, 2, 2}), scale(0.02), zero(1),
               scale(0.2), zero(1)}),
  };
}

}  // namespace onnxgrad::ops_test
