#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {
namespace rnn {

// 4 steps of 3 sequences with 2 inputs; `hidden` units.
CaseInput x() { return uniform({4, 3, 2}, -1, 1); }
CaseInput w(std::int64_t directions, std::int64_t hidden) {
  return uniform({directions, hidden, 2}, -1, 1);
}
CaseInput r(std::int64_t directions, std::int64_t hidden) {
  return uniform({directions, hidden, hidden}, -1, 1);
}
CaseInput b(std::int64_t directions, std::int64_t hidden) {
  return uniform({directions, 2 * hidden}, -1, 1);
}
CaseInput state(std::int64_t directions, std::int64_t hidden) {
  return uniform({directions, 3, hidden}, -1, 1);
}
CaseInput lengths() { return values({4, 1, 2}, {3}, DataType::kInt32); }

}  // namespace rnn

std::vector<OpCase> rnn_cases() {
  using namespace rnn;  // NOLINT(google-build-using-namespace): this file's own
  std::vector<OpCase> cases = {
      {.name = "plain",
       .model = "y, last_h = RNN <hidden_size = 5> (x, w, r)",
       .inputs = {x(), w(1, 5), r(1, 5)}},
      {.name = "all_operands",
       .model = "y, last_h = RNN <hidden_size = 3, direction = \"forward\", layout = 0> (x, w, r, "
                "b, lens, h)",
       .inputs = {x(), w(1, 3), r(1, 3), b(1, 3), lengths(), state(1, 3)}},
      {.name = "reverse",
       .model = "y, last_h = RNN <hidden_size = 3, direction = \"reverse\"> (x, w, r, b, lens, h)",
       .inputs = {x(), w(1, 3), r(1, 3), b(1, 3), lengths(), state(1, 3)}},
      {.name = "both_directions",
       .model = "y, last_h = RNN <hidden_size = 3, direction = \"bidirectional\", activations = "
                "[\"Tanh\", \"Relu\"]> (x, w, r, b, lens, h)",
       .inputs = {x(), w(2, 3), r(2, 3), b(2, 3), lengths(), state(2, 3)}},
      {.name = "rows_of_time_inside",
       .model = "y, last_h = RNN <hidden_size = 2, layout = 1> (x, w, r, b, , h)",
       .inputs = {uniform({3, 4, 2}, -1, 1), w(1, 2), r(1, 2), b(1, 2), uniform({3, 1, 2}, -1, 1)}},
      {.name = "no_steps",
       .model = "y, last_h = RNN <hidden_size = 2> (x, w, r, b, , h)",
       .inputs = {uniform({0, 1, 2}, -1, 1), w(1, 2), r(1, 2), b(1, 2), values({1, -3}, {1, 1, 2})},
       .expected = {{}, {1, -3}},
       .no_oracle = "onnxruntime ends its process"},
  };
  // All activation functions, with alpha and beta where they have them.
  for (const char* name : {"Sigmoid", "Tanh", "Relu", "Affine", "LeakyRelu", "ThresholdedRelu",
                           "ScaledTanh", "HardSigmoid", "Elu", "Softsign", "Softplus"}) {
    std::string lower = name;
    for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    cases.push_back({.name = "function_" + lower,
                     .model = std::string("y, last_h = RNN <hidden_size = 3, activations = [\"") +
                              name +
                              "\"], activation_alpha = [0.4], activation_beta = [0.3], clip = "
                              "1.5> (x, w, r, b, , h)",
                     .inputs = {x(), w(1, 3), r(1, 3), b(1, 3), state(1, 3)}});
  }
  return cases;
}

std::vector<ErrorCase> rnn_error_cases() {
  using namespace rnn;  // NOLINT(google-build-using-namespace): this file's own
  return {{.name = "recurrence",
           .model = "[cell] y = RNN <hidden_size = 3> (x, w, r)",
           .inputs = {x(), w(1, 3), uniform({1, 4, 3}, -1, 1)},
           .error = "ShapeError",
           .fragments = {"cell", "'R'"}}};
}

}  // namespace onnxgrad::ops_test
