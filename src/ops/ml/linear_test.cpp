#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {
namespace linear {

const char* const kFloat32Only = "the operator computes in float32, whatever the input";

OpCase ml(std::string name, std::string model, std::vector<CaseInput> inputs) {
  return {.name = std::move(name),
          .model = std::move(model),
          .inputs = std::move(inputs),
          .no_gradient = kFloat32Only,
          .domains = {{"ai.onnx.ml", 3}}};
}

CaseInput samples() { return uniform({5, 2}, -1, 1).as(DataType::kFloat32); }

}  // namespace linear

std::vector<OpCase> linear_cases() {
  using linear::ml;
  using linear::samples;
  std::vector<OpCase> cases;
  const auto regressor = [&](std::string name, const std::string& attributes) {
    cases.push_back(ml("regressor_" + std::move(name),
                       "y = ai.onnx.ml.LinearRegressor <" + attributes + "> (x)", {samples()}));
  };
  regressor("one_target", "coefficients = [0.5, -0.25], intercepts = [0.1]");
  regressor("no_intercept", "coefficients = [0.5, -0.25]");
  regressor("two_targets",
            "coefficients = [0.5, -0.25, 1.0, 2.0], intercepts = [0.1, -0.2], targets = 2");
  regressor("transform_none", "coefficients = [0.5, -0.25], post_transform = \"NONE\"");
  regressor("transform_logistic",
            "coefficients = [0.5, -0.25, 1.0, 2.0], targets = 2, post_transform = \"LOGISTIC\"");
  regressor("transform_softmax",
            "coefficients = [0.5, -0.25, 1.0, 2.0], targets = 2, post_transform = \"SOFTMAX\"");

  const auto classifier = [&](std::string name, const std::string& attributes,
                              const std::string& labels = "classlabels_ints = [3, 7]") {
    cases.push_back(
        ml("classifier_" + std::move(name),
           "label, z = ai.onnx.ml.LinearClassifier <" + labels + ", " + attributes + "> (x)",
           {samples()}));
  };
  const std::string mirrored = "coefficients = [-0.5, 0.25, 0.5, -0.25], intercepts = [-0.1, 0.1]";
  const std::string two = "coefficients = [-0.5, 0.25, 1.5, -0.75], intercepts = [-0.1, 0.2]";
  const std::string one = "coefficients = [0.5, -0.25], intercepts = [0.1]";
  const std::string three =
      "coefficients = [-0.5, 0.25, 1.5, -0.75, 0.1, 0.9], intercepts = [-0.1, 0.2, 0.3]";
  for (const std::string transform : {"NONE", "LOGISTIC", "SOFTMAX"}) {
    const std::string post = ", post_transform = \"" + transform + "\"";
    classifier("mirrored_" + transform, mirrored + post);
    classifier("two_rows_" + transform, two + post);
    classifier("three_rows_" + transform, three + post + ", multi_class = 1",
               "classlabels_ints = [2, 0, 1]");
    if (transform != "SOFTMAX")
      classifier("one_row_" + transform, one + post + ", multi_class = 0");
  }
  classifier("no_rows", two);
  cases.back().inputs = {uniform({0, 2}, -1, 1).as(DataType::kFloat32)};
  classifier("one_sample", two);
  cases.back().inputs = {uniform({1, 2}, -1, 1).as(DataType::kFloat32)};
  classifier("string_labels", two, "classlabels_strings = [\"no\", \"yes\"]");
  cases.back().outputs = {"z"};
  regressor("no_rows", "coefficients = [0.5, -0.25]");
  cases.back().inputs = {uniform({0, 2}, -1, 1).as(DataType::kFloat32)};
  regressor("one_sample", "coefficients = [0.5, -0.25]");
  cases.back().inputs = {uniform({1, 2}, -1, 1).as(DataType::kFloat32)};
  return cases;
}

std::vector<ErrorCase> linear_error_cases() {
  const auto refused = [](std::string name, std::string model, std::string error,
                          std::vector<std::string> fragments) {
    return as_error_case(linear::ml(std::move(name), std::move(model), {linear::samples()}),
                         std::move(error), std::move(fragments));
  };
  return {
      refused("features", "y = ai.onnx.ml.LinearRegressor <coefficients = [1.0, 2.0, 3.0]> (x)",
              "ShapeError", {"3"}),
      refused("coefficients",
              "y = ai.onnx.ml.LinearRegressor <coefficients = [1.0], targets = 2> (x)",
              "ModelError", {"coefficients"}),
      refused("intercepts",
              "y = ai.onnx.ml.LinearRegressor "
              "<coefficients = [1.0, 2.0], intercepts = [1.0, 2.0]> (x)",
              "ModelError", {"intercepts"}),
      refused("classes",
              "l, z = ai.onnx.ml.LinearClassifier <coefficients = [1.0, 2.0, 3.0, 4.0], "
              "intercepts = [1.0, 2.0], classlabels_ints = [0, 1, 2]> (x)",
              "ModelError", {"classes"}),
      refused("transform",
              "y = ai.onnx.ml.LinearRegressor "
              "<coefficients = [1.0, 2.0], post_transform = \"TANH\"> (x)",
              "ModelError", {"post_transform"}),
      refused("targets",
              "y = ai.onnx.ml.LinearRegressor <coefficients = [1.0, 2.0], targets = 0> (x)",
              "ModelError", {"targets"}),
  };
}

}  // namespace onnxgrad::ops_test
