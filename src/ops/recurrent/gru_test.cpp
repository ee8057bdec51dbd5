#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {
namespace gru {

// 4 steps of 3 sequences with 2 inputs; `hidden` units.
CaseInput x() { return uniform({4, 3, 2}, -1, 1); }
CaseInput w(std::int64_t directions, std::int64_t hidden) {
  return uniform({directions, 3 * hidden, 2}, -1, 1);
}
CaseInput r(std::int64_t directions, std::int64_t hidden) {
  return uniform({directions, 3 * hidden, hidden}, -1, 1);
}
CaseInput b(std::int64_t directions, std::int64_t hidden) {
  return uniform({directions, 6 * hidden}, -1, 1);
}
CaseInput state(std::int64_t directions, std::int64_t hidden) {
  return uniform({directions, 3, hidden}, -1, 1);
}
CaseInput lengths() { return values({4, 1, 2}, {3}, DataType::kInt32); }

void add_cases(bool is_linear, std::vector<OpCase>& cases) {
  const std::string suffix = is_linear ? "_linear" : "";
  const std::string attribute =
      std::string("hidden_size = 3, linear_before_reset = ") + (is_linear ? "1" : "0");
  const auto add = [&](const std::string& name, const std::string& more, std::int64_t directions,
                       const std::string& operands, std::vector<CaseInput> inputs) {
    std::vector<CaseInput> all = {x(), w(directions, 3), r(directions, 3)};
    all.insert(all.end(), inputs.begin(), inputs.end());
    cases.push_back(
        {.name = name + suffix,
         .model = "y, last_h = GRU <" + attribute + more + "> (x, w, r" + operands + ")",
         .inputs = std::move(all)});
  };
  add("plain", "", 1, "", {});
  add("all_operands", ", direction = \"forward\", layout = 0", 1, ", b, lens, h",
      {b(1, 3), lengths(), state(1, 3)});
  add("reverse", ", direction = \"reverse\"", 1, ", b, lens, h", {b(1, 3), lengths(), state(1, 3)});
  add("both_directions", ", direction = \"bidirectional\"", 2, ", b, lens, h",
      {b(2, 3), lengths(), state(2, 3)});
  add("both_directions_whole", ", direction = \"bidirectional\"", 2, ", b", {b(2, 3)});
  add("clip", ", clip = 0.3", 1, ", b, , h", {b(1, 3), state(1, 3)});
  add("functions",
      ", activations = [\"HardSigmoid\", \"ScaledTanh\"], activation_alpha = [0.3, 0.8], "
      "activation_beta = [0.4, 0.6]",
      1, ", b, , h", {b(1, 3), state(1, 3)});
  add("functions_by_direction",
      ", direction = \"bidirectional\", activations = [\"Sigmoid\", \"Softsign\", \"Softplus\", "
      "\"Elu\"]",
      2, ", b, , h", {b(2, 3), state(2, 3)});
  cases.push_back({.name = "rows_of_time_inside" + suffix,
                   .model = "y, last_h = GRU <" + attribute + ", layout = 1> (x, w, r, b, , h)",
                   .inputs = {uniform({3, 4, 2}, -1, 1), w(1, 3), r(1, 3), b(1, 3),
                              uniform({3, 1, 3}, -1, 1)}});
  cases.push_back({.name = "no_steps" + suffix,
                   .model = "y, last_h = GRU <" + attribute + "> (x, w, r, b, , h)",
                   .inputs = {uniform({0, 1, 2}, -1, 1), w(1, 3), r(1, 3), b(1, 3),
                              values({1, 2, -3}, {1, 1, 3})},
                   .expected = {{}, {1, 2, -3}},
                   .no_oracle = "onnxruntime ends its process"});
}

}  // namespace gru

std::vector<OpCase> gru_cases() {
  std::vector<OpCase> cases;
  gru::add_cases(false, cases);
  gru::add_cases(true, cases);
  return cases;
}

std::vector<ErrorCase> gru_error_cases() {
  using namespace gru;  // NOLINT(google-build-using-namespace): this file's own
  return {{.name = "state",
           .model = "[cell] y = GRU <hidden_size = 3> (x, w, r, , , h)",
           .inputs = {x(), w(1, 3), r(1, 3), uniform({1, 2, 3}, -1, 1)},
           .error = "ShapeError",
           .fragments = {"cell", "initial_h"}},
          {.name = "activations",
           .model = "[cell] y = GRU <hidden_size = 3, activations = [\"Sigmoid\"]> (x, w, r)",
           .inputs = {x(), w(1, 3), r(1, 3)},
           .error = "ModelError",
           .fragments = {"cell", "activations"}}};
}

}  // namespace onnxgrad::ops_test
