#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {
namespace svm {

OpCase ml(std::string name, const std::string& call, std::vector<CaseInput> inputs,
          std::string no_gradient = "") {
  OpCase one = ml_call(std::move(name), call, std::move(inputs), std::move(no_gradient));
  one.tolerance = 0.05;
  one.tolerance_reason = "differences of float32 results carry their rounding";
  return one;
}

}  // namespace svm

std::vector<OpCase> svm_cases() {
  using svm::ml;
  const std::string three =
      "n_supports = 3, support_vectors = [0.5, -0.5, 1.0, 0.25, -1.0, 0.75], "
      "coefficients = [0.5, -1.0, 0.75], rho = [0.125]";
  const CaseInput x = uniform({4, 2}, -1, 1);
  std::vector<OpCase> cases;
  for (const std::string type : {"LINEAR", "POLY", "RBF", "SIGMOID"}) {
    cases.push_back(ml("regressor_" + type,
                       "SVMRegressor <kernel_type = \"" + type +
                           "\", kernel_params = [0.5, 1.5, 2.0], " + three + "> (x)",
                       {x}));
  }
  const std::string line = "coefficients = [0.5, -1.0], rho = [0.25]";
  for (const std::string post : {"NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"}) {
    cases.push_back(ml("line_" + post,
                       "SVMRegressor <" + line + ", post_transform = \"" + post + "\"> (x)", {x}));
  }
  cases.push_back(ml("line_no_rows", "SVMRegressor <" + line + ", one_class = 0> (x)",
                     {uniform({0, 2}, -1, 1)}));
  cases.push_back(ml("one_class", "SVMRegressor <" + line + ", one_class = 1> (x)",
                     {uniform({1, 2}, 1, 2)}, "it is a sign"));
  const std::string classes =
      "vectors_per_class = [1, 2], support_vectors = [0.5, -0.5, 1.0, 0.25, -1.0, 0.75], "
      "coefficients = [0.5, -1.0, 0.75], rho = [0.125], classlabels_ints = [3, 5]";
  const auto classifier = [&](const std::string& name, const std::string& attributes,
                              const CaseInput& rows) {
    OpCase one = ml("classifier_" + name, "SVMClassifier <" + attributes + "> (x)", {rows});
    one.model = "label, " + one.model;
    one.outputs = {"y"};
    cases.push_back(std::move(one));
  };
  for (const std::string type : {"LINEAR", "POLY", "RBF", "SIGMOID"}) {
    classifier(type, classes + ", kernel_type = \"" + type + "\", kernel_params = [0.5, 1.5, 2.0]",
               x);
  }
  for (const std::string post : {"NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"}) {
    classifier(post, classes + ", post_transform = \"" + post + "\"", x);
  }
  classifier("shares", classes + ", prob_a = [-1.5], prob_b = [0.25]", x);
  classifier("three_shares",
             "vectors_per_class = [1, 1, 1], support_vectors = [0.5, -0.5, 1.0, 0.25, -1.0, 0.75], "
             "coefficients = [0.5, -1.0, 0.75, 0.25, 0.5, -0.5], rho = [0.125, 0.0, -0.25], "
             "classlabels_ints = [3, 5, 6], prob_a = [-1.5, -1.0, -0.5], prob_b = [0.25, 0.0, 0.5]",
             x);
  classifier("lines",
             "coefficients = [0.5, -1.0, 0.25, 0.75], rho = [0.25], "
             "classlabels_strings = [\"a\", \"b\"]",
             x);
  classifier("no_rows", classes, uniform({0, 2}, -1, 1));
  classifier("one_row", classes, uniform({1, 2}, -1, 1));
  return cases;
}

std::vector<ErrorCase> svm_error_cases() {
  const CaseInput x = uniform({4, 2}, -1, 1);
  return {
      ml_refused("counts", "SVMRegressor <n_supports = 2, support_vectors = [1.0]> (x)", {x},
                 "ModelError", "1 elements for 2 vectors"),
      {.name = "labels",
       .model = "[head] l, y = ai.onnx.ml.SVMClassifier <coefficients = [1.0]> (x)",
       .inputs = {x},
       .error = "ModelError",
       .fragments = {"head", "no class labels"},
       .domains = {{"ai.onnx.ml", 5}}},
  };
}

}  // namespace onnxgrad::ops_test
