
#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {
namespace preprocess {

OpCase ml(std::string name, std::string model, std::vector<CaseInput> inputs) {
  return {.name = std::move(name),
          .model = std::move(model),
          .inputs = std::move(inputs),
          .no_gradient = "the operator computes in float32, whatever the input",
          .domains = {{"ai.onnx.ml", 3}}};
}

}  // namespace preprocess

std::vector<OpCase> preprocess_cases() {
  using preprocess::ml;
  const CaseInput samples = uniform({4, 3}, -2, 2).as(DataType::kFloat32);
  std::vector<OpCase> cases = {
      ml("scaler", "y = ai.onnx.ml.Scaler <offset = [1.0, 0.5, -1.0], scale = [2.0, 3.0, 4.0]> (x)",
         {samples}),
      ml("scaler_one_for_all", "y = ai.onnx.ml.Scaler <offset = [1.0], scale = [2.0]> (x)",
         {samples}),
      ml("scaler_vector",
         "y = ai.onnx.ml.Scaler <offset = [1.0, 0.5, -1.0], scale = [2.0, 3.0, 4.0]> (x)",
         {uniform({3}, -2, 2).as(DataType::kFloat32)}),
      ml("scaler_integers", "y = ai.onnx.ml.Scaler <offset = [1.0], scale = [0.5]> (x)",
         {integers({4, 3}, -9, 9)}),
      ml("scaler_no_rows", "y = ai.onnx.ml.Scaler <offset = [1.0], scale = [2.0]> (x)",
         {uniform({0, 3}, -2, 2).as(DataType::kFloat32)}),
      ml("scaler_one", "y = ai.onnx.ml.Scaler <offset = [1.0], scale = [2.0]> (x)",
         {uniform({1, 1}, -2, 2).as(DataType::kFloat32)}),
      ml("extractor_no_rows", "z = ai.onnx.ml.ArrayFeatureExtractor (x, i)",
         {uniform({0, 3}, -2, 2).as(DataType::kFloat32), ints({2, 0})}),
      ml("extractor", "z = ai.onnx.ml.ArrayFeatureExtractor (x, i)", {samples, ints({2, 0})}),
      ml("extractor_vector", "z = ai.onnx.ml.ArrayFeatureExtractor (x, i)",
         {uniform({3}, -2, 2).as(DataType::kFloat32), ints({2, 0, 2})}),
      ml("extractor_three_axes", "z = ai.onnx.ml.ArrayFeatureExtractor (x, i)",
         {uniform({2, 2, 3}, -2, 2).as(DataType::kFloat32), ints({1})}),
  };
  for (const std::string norm : {"MAX", "L1", "L2"}) {
    const std::string model = "y = ai.onnx.ml.Normalizer <norm = \"" + norm + "\"> (x)";
    cases.push_back(ml("normalizer_" + norm, model, {samples}));
    cases.push_back(
        ml("normalizer_vector_" + norm, model, {uniform({3}, -2, 2).as(DataType::kFloat32)}));
    cases.push_back(
        ml("normalizer_zeros_" + norm, model, {values({0, 0, 1, -1}, {2, 2}, DataType::kFloat32)}));
    cases.push_back(ml("normalizer_integers_" + norm, model, {integers({4, 3}, 1, 9)}));
    cases.push_back(
        ml("normalizer_no_rows_" + norm, model, {uniform({0, 3}, -2, 2).as(DataType::kFloat32)}));
    cases.push_back(
        ml("normalizer_one_" + norm, model, {uniform({1, 1}, 1, 2).as(DataType::kFloat32)}));
    cases.push_back({.name = "normalizer_gradient_" + norm,
                     .model = model,
                     .inputs = {uniform({4, 3}, 0.5, 2)},
                     .tolerance = 0.05,
                     .tolerance_reason = "differences of float32 results carry their rounding",
                     .domains = {{"ai.onnx.ml", 3}}});
  }
  return cases;
}

std::vector<ErrorCase> preprocess_error_cases() {
  const CaseInput x = uniform({4, 3}, -1, 1).as(DataType::kFloat32);
  const auto refused = [&](std::string name, std::string model,
                           std::vector<std::string> fragments) {
    return as_error_case(preprocess::ml(std::move(name), std::move(model), {x}), "ModelError",
                         std::move(fragments));
  };
  return {
      refused("scaler_count", "y = ai.onnx.ml.Scaler <offset = [1.0, 2.0]> (x)", {"offset"}),
      refused("scaler_counts_differ",
              "y = ai.onnx.ml.Scaler <offset = [1.0], scale = [1.0, 2.0, 3.0]> (x)", {"offset"}),
      as_error_case(preprocess::ml("extractor_index", "z = ai.onnx.ml.ArrayFeatureExtractor (x, i)",
                                   {x, ints({3})}),
                    "DataError", {"3"}),
      refused("norm", "y = ai.onnx.ml.Normalizer <norm = \"L3\"> (x)", {"norm", "L2"}),
  };
}

}  // namespace onnxgrad::ops_test
