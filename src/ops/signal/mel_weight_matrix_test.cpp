#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {

std::vector<OpCase> mel_weight_matrix_cases() {
  std::vector<OpCase> cases;
  const auto add = [&](std::string name, const std::string& attributes,
                       const std::vector<double>& numbers) {
    std::vector<CaseInput> inputs;
    for (std::size_t i = 0; i < 5; ++i) {
      const DataType dtype = i < 3 ? DataType::kInt64 : DataType::kUndefined;
      inputs.push_back(values({numbers[i]}, {}, dtype).constant());
    }
    cases.push_back({.name = std::move(name),
                     .model = "y = MelWeightMatrix " + attributes + " (bins, n, rate, low, high)",
                     .inputs = std::move(inputs),
                     .no_gradient = "numbers alone"});
  };
  add("wide", "", {8, 16, 8192, 20, 4096});
  add("speech", "<output_datatype = 1>", {40, 512, 16000, 20, 8000});
  add("double", "<output_datatype = 11>", {4, 64, 16000, 100, 7600});
  return cases;
}

std::vector<ErrorCase> mel_weight_matrix_error_cases() {
  return {
      {.name = "edges",
       .model = "[mel] m = MelWeightMatrix (bins, n, rate, low, high)\nk = Cast <to = 11> (m)\n"
                "y = Add (k, x)",
       .inputs = {int_scalar(4), int_scalar(16), int_scalar(8000), values({4000}, {}).constant(),
                  values({100}, {}).constant(), uniform({1}, -1, 1)},
       .error = "ModelError",
       .fragments = {"mel"}}};
}

}  // namespace onnxgrad::ops_test
