#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {
namespace optimizer_step {

OpCase step(std::string name, const std::string& call, std::vector<CaseInput> inputs) {
  return {.name = std::move(name),
          .model = call,
          .inputs = std::move(inputs),
          .domains = {{"ai.onnx.preview.training", 1}}};
}

CaseInput rate() { return uniform({}, 0.1, 0.5); }

std::string call(const std::string& outputs, const std::string& op, const std::string& inputs) {
  return outputs + " = ai.onnx.preview.training." + op + " (r, t, " + inputs + ")";
}

}  // namespace optimizer_step

std::vector<OpCase> optimizer_step_cases() {
  using optimizer_step::call;
  using optimizer_step::rate;
  using optimizer_step::step;
  const Dims dims{2, 3};
  const CaseInput x = uniform(dims, -1, 1);
  const CaseInput h = uniform(dims, 0.2, 1);  // sums of squares
  std::vector<OpCase> cases;
  for (const std::int64_t t : {0, 1, 7}) {
    const std::string suffix = "_t" + std::to_string(t);
    cases.push_back(step("adagrad" + suffix,
                         call("y, p",
                              "Adagrad <decay_factor = 0.1, epsilon = 0.01, "
                              "norm_coefficient = 0.02>",
                              "x, g, h"),
                         {rate(), integers({}, t, t), x, x, h}));
    cases.push_back(step("adam" + suffix,
                         call("y, p, q",
                              "Adam <alpha = 0.8, beta = 0.9, epsilon = 0.01, "
                              "norm_coefficient = 0.02, norm_coefficient_post = 0.1>",
                              "x, g, v, h"),
                         {rate(), integers({}, t, t), x, x, x, h}));
    for (const std::string mode : {"standard", "nesterov"}) {
      cases.push_back(step("momentum_" + mode + suffix,
                           call("y, p",
                                "Momentum <alpha = 0.8, beta = 0.3, norm_coefficient = "
                                "0.02, mode = \"" +
                                    mode + "\">",
                                "x, g, v"),
                           {rate(), integers({}, t, t), x, x, x}));
    }
  }
  cases.push_back(step("adagrad_defaults", call("y, p", "Adagrad", "x, g, h"),
                       {rate(), integers({}, 2, 2), x, x, h}));
  cases.push_back(step("adam_defaults", call("y, p, q", "Adam", "x, g, v, h"),
                       {rate(), integers({}, 2, 2), x, x, x, h}));
  cases.push_back(step("momentum_plain",
                       call("y, p",
                            "Momentum <alpha = 1.0, beta = 1.0, norm_coefficient = 0.0, "
                            "mode = \"standard\">",
                            "x, g, v"),
                       {rate(), integers({}, 2, 2), x, x, x}));
  cases.push_back(step("several", call("y, z, p, q", "Adagrad", "x, w, g, k, h, j"),
                       {rate(), integers({}, 2, 2), x, uniform({4}, -1, 1), x, uniform({4}, -1, 1),
                        h, uniform({4}, 0.2, 1)}));
  cases.push_back(step("several_adam", call("y, z, p, q, s, o", "Adam", "x, w, g, k, v, u, h, j"),
                       {rate(), integers({}, 2, 2), x, uniform({}, -1, 1), x, uniform({}, -1, 1), x,
                        uniform({}, -1, 1), h, uniform({}, 0.2, 1)}));
  cases.push_back(step("scalars_with_axis", call("y, p", "Adagrad", "x, g, h"),
                       {uniform({1}, 0.1, 0.5), integers({1}, 2, 2), x, x, h}));
  for (const std::int64_t rows : {0, 1}) {
    const std::string suffix = "_rows_" + std::to_string(rows);
    const CaseInput w = uniform({rows, 3}, -1, 1);
    const CaseInput squares = uniform({rows, 3}, 0.2, 1);
    cases.push_back(step("adagrad" + suffix, call("y, p", "Adagrad", "x, g, h"),
                         {rate(), integers({}, 2, 2), w, w, squares}));
    cases.push_back(step("adam" + suffix, call("y, p, q", "Adam", "x, g, v, h"),
                         {rate(), integers({}, 2, 2), w, w, w, squares}));
    cases.push_back(step("momentum" + suffix,
                         call("y, p",
                              "Momentum <alpha = 0.8, beta = 0.3, norm_coefficient = 0.02, "
                              "mode = \"nesterov\">",
                              "x, g, v"),
                         {rate(), integers({}, 2, 2), w, w, w}));
  }
  return cases;
}

std::vector<ErrorCase> optimizer_step_error_cases() {
  using optimizer_step::call;
  const auto refused = [](std::string name, const std::string& model, std::vector<CaseInput> inputs,
                          std::vector<std::string> fragments) {
    return as_error_case(optimizer_step::step(std::move(name), model, std::move(inputs)),
                         "ModelError", std::move(fragments));
  };
  const CaseInput x = uniform({2}, -1, 1);
  return {
      refused("group", call("y", "Adagrad", "x, g"), {x, integers({}, 0, 0), x, x},
              {"2 tensors after R and T"}),
      refused("shape", call("y, p", "Adagrad", "x, g, h"),
              {uniform({}, 0, 1), integers({}, 0, 0), x, uniform({3}, -1, 1), x}, {"'g'", "'x'"}),
      refused("mode",
              call("y, p",
                   "Momentum <alpha = 0.9, beta = 1.0, norm_coefficient = 0.0, "
                   "mode = \"heavy\">",
                   "x, g, v"),
              {uniform({}, 0, 1), integers({}, 0, 0), x, x, x}, {"mode", "nesterov"}),
  };
}

}  // namespace onnxgrad::ops_test
