#include <gtest/gtest.h>

#include "device/testing/instruction_sets.h"
#include "ops/testing/case_runner.h"
#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {
namespace lstm {

// 4 steps of 3 sequences with 2 inputs; `hidden` units.
CaseInput x() { return uniform({4, 3, 2}, -1, 1); }
CaseInput w(std::int64_t directions, std::int64_t hidden) {
  return uniform({directions, 4 * hidden, 2}, -1, 1);
}
CaseInput r(std::int64_t directions, std::int64_t hidden) {
  return uniform({directions, 4 * hidden, hidden}, -1, 1);
}
CaseInput b(std::int64_t directions, std::int64_t hidden) {
  return uniform({directions, 8 * hidden}, -1, 1);
}
CaseInput state(std::int64_t directions, std::int64_t hidden) {
  return uniform({directions, 3, hidden}, -1, 1);
}
CaseInput p(std::int64_t directions, std::int64_t hidden) {
  return uniform({directions, 3 * hidden}, -1, 1);
}
CaseInput lengths() { return values({4, 1, 2}, {3}, DataType::kInt32); }

std::vector<OpCase> cases_of_operands() {
  return {
      {.name = "plain",
       .model = "y, last_h, last_c = LSTM <hidden_size = 5> (x, w, r)",
       .inputs = {x(), w(1, 5), r(1, 5)}},
      {.name = "all_operands",
       .model = "y, last_h, last_c = LSTM <hidden_size = 5, direction = \"forward\", "
                "input_forget = 0, layout = 0> (x, w, r, b, lens, h, c, p)",
       .inputs = {x(), w(1, 5), r(1, 5), b(1, 5), lengths(), state(1, 5), state(1, 5), p(1, 5)}},
      {.name = "reverse",
       .model = "y, last_h, last_c = LSTM <hidden_size = 3, direction = \"reverse\"> (x, w, r, b, "
                "lens, h, c, p)",
       .inputs = {x(), w(1, 3), r(1, 3), b(1, 3), lengths(), state(1, 3), state(1, 3), p(1, 3)}},
      {.name = "reverse_whole",
       .model = "y, last_h, last_c = LSTM <hidden_size = 3, direction = \"reverse\"> (x, w, r, b)",
       .inputs = {x(), w(1, 3), r(1, 3), b(1, 3)}},
      {.name = "both_directions",
       .model = "y, last_h, last_c = LSTM <hidden_size = 3, direction = \"bidirectional\"> (x, w, "
                "r, b, lens, h, c, p)",
       .inputs = {x(), w(2, 3), r(2, 3), b(2, 3), lengths(), state(2, 3), state(2, 3), p(2, 3)}},
      {.name = "both_directions_whole",
       .model = "y, last_h, last_c = LSTM <hidden_size = 4, direction = \"bidirectional\"> (x, w, "
                "r)",
       .inputs = {x(), w(2, 4), r(2, 4)}},
      {.name = "only_last_states",
       .model = "_, last_h, last_c = LSTM <hidden_size = 3> (x, w, r, b, lens)",
       .inputs = {x(), w(1, 3), r(1, 3), b(1, 3), lengths()},
       .outputs = {"last_h", "last_c"}},
      {.name = "sequence_of_no_steps",
       .model = "y, last_h, last_c = LSTM <hidden_size = 3> (x, w, r, b, lens, h, c)",
       .inputs = {x(), w(1, 3), r(1, 3), b(1, 3), values({3, 0, 4}, {3}, DataType::kInt32),
                  state(1, 3), state(1, 3)}},
      {.name = "one_of_all",
       .model = "y, last_h, last_c = LSTM <hidden_size = 1> (x, w, r)",
       .inputs = {uniform({1, 1, 1}, -1, 1), uniform({1, 4, 1}, -1, 1), uniform({1, 4, 1}, -1, 1)}},
      {.name = "no_steps",
       .model = "y, last_h, last_c = LSTM <hidden_size = 1> (x, w, r, b, , h, c)",
       .inputs = {uniform({0, 2, 3}, -1, 1), uniform({1, 4, 3}, -1, 1), uniform({1, 4, 1}, -1, 1),
                  uniform({1, 8}, -1, 1), values({0.5, -0.25}, {1, 2, 1}),
                  values({2, 3}, {1, 2, 1})},
       .expected = {{}, {0.5, -0.25}, {2, 3}},
       .no_oracle = "onnxruntime ends its process"},
      {.name = "rows_of_time_inside",
       .model = "y, last_h, last_c = LSTM <hidden_size = 2, layout = 1> (x, w, r, b, , h, c)",
       .inputs = {uniform({3, 4, 2}, -1, 1), w(1, 2), r(1, 2), b(1, 2), uniform({3, 1, 2}, -1, 1),
                  uniform({3, 1, 2}, -1, 1)}},
  };
}

std::vector<OpCase> cases_of_functions() {
  std::vector<OpCase> cases;
  const auto add = [&](std::string name, const std::string& attributes, double tolerance_float32) {
    cases.push_back({.name = std::move(name),
                     .model = "y, last_h, last_c = LSTM <hidden_size = 3, " + attributes +
                              "> (x, w, r, b, , h, c, p)",
                     .inputs = {x(), w(1, 3), r(1, 3), b(1, 3), state(1, 3), state(1, 3), p(1, 3)},
                     .tolerance_float32 = tolerance_float32});
  };
  add("clip", "clip = 0.4", 2e-5);
  add("coupled", "input_forget = 1", 2e-5);
  add("coupled_clip", "input_forget = 1, clip = 0.3", 2e-5);
  add("relu", "activations = [\"Sigmoid\", \"Relu\", \"Relu\"]", 2e-5);
  add("affine",
      "activations = [\"HardSigmoid\", \"Affine\", \"ScaledTanh\"], activation_alpha = [0.3, 0.7, "
      "0.8], activation_beta = [0.4, 0.1, 0.6]",
      2e-5);
  add("leaky",
      "activations = [\"Sigmoid\", \"LeakyRelu\", \"Elu\"], activation_alpha = [0.3, 0.7], clip = "
      "2.0",
      2e-5);
  add("thresholded",
      "activations = [\"Softsign\", \"ThresholdedRelu\", \"Softplus\"], activation_alpha = [0.1]",
      2e-5);
  cases.push_back(
      {.name = "functions_by_direction",
       .model = "y, last_h, last_c = LSTM <hidden_size = 3, direction = \"bidirectional\", "
                "activations = [\"Sigmoid\", \"Tanh\", \"Softsign\", \"HardSigmoid\", \"Elu\", "
                "\"Tanh\"]> (x, w, r, b, , h, c, p)",
       .inputs = {x(), w(2, 3), r(2, 3), b(2, 3), state(2, 3), state(2, 3), p(2, 3)}});
  return cases;
}

}  // namespace lstm

std::vector<OpCase> lstm_cases() {
  std::vector<OpCase> cases = lstm::cases_of_operands();
  for (OpCase& one : lstm::cases_of_functions()) cases.push_back(std::move(one));
  return cases;
}

std::vector<ErrorCase> lstm_error_cases() {
  using namespace lstm;  // NOLINT(google-build-using-namespace): this file's own
  return {
      {.name = "hidden_size",
       .model = "[cell] y = LSTM <hidden_size = 4> (x, w, r)",
       .inputs = {x(), w(1, 3), r(1, 3)},
       .error = "ShapeError",
       .fragments = {"cell", "hidden_size"}},
      {.name = "weight",
       .model = "[cell] y = LSTM <hidden_size = 3> (x, w, r)",
       .inputs = {x(), w(1, 2), r(1, 3)},
       .error = "ShapeError",
       .fragments = {"cell", "'W'"}},
      {.name = "activation",
       .model =
           "[cell] y = LSTM <hidden_size = 3, activations = [\"Sigmoid\", \"Than\", \"Tanh\"]> "
           "(x, w, r)",
       .inputs = {x(), w(1, 3), r(1, 3)},
       .error = "ModelError",
       .fragments = {"cell", "Than"}},
      {.name = "lengths",
       .model = "[cell] y = LSTM <hidden_size = 3> (x, w, r, , lens)",
       .inputs = {x(), w(1, 3), r(1, 3), values({4, 5, 2}, {3}, DataType::kInt32)},
       .error = "DataError",
       .fragments = {"cell", "sequence_lens[1]"}},
  };
}

// 19 units are whole vectors and a remainder for every instruction set; threads split the rows of
// 23 sequences.
TEST(Recurrent, InstructionSetsAndThreadsGiveTheSame) {
  const auto make_case = [](const std::string& op_type, std::int64_t gates) {
    return OpCase{
        .name = "sets." + op_type,
        .model = "y, last = " + op_type +
                 " <hidden_size = 19, direction = \"bidirectional\"> (x, w, r, b)",
        .inputs = {uniform({30, 23, 5}, -1, 1), uniform({2, gates * 19, 5}, -0.5, 0.5),
                   uniform({2, gates * 19, 19}, -0.5, 0.5), uniform({2, 2 * gates * 19}, -1, 1)}};
  };
  for (const OpCase& one : {make_case("LSTM", 4), make_case("GRU", 3), make_case("RNN", 1)}) {
    SCOPED_TRACE(one.name);
    const BuiltCase built = build_case(one, {.dtype = DataType::kFloat64});
    const CaseResult expected = run_case(one, built);
    const auto expect_same = [&](const CaseResult& given) {
      for (std::size_t i = 0; i < expected.gradients.size(); ++i) {
        EXPECT_EQ(compare(given.gradients[i], expected.gradients[i], 1e-11), "") << i;
      }
      for (std::size_t i = 0; i < expected.outputs.size(); ++i) {
        EXPECT_EQ(compare(given.outputs[i], expected.outputs[i], 1e-12), "") << i;
      }
    };
    device::for_each_instruction_set(
        [&](const device::CpuOptions& cpu) { expect_same(run_case(one, built, {.cpu = cpu})); });
    for (const int threads : {2, 3}) {
      runtime::Executor executor(built.gradient, builtin_engine(), {.threads = threads});
      std::vector<Tensor> inputs = built.inputs;
      inputs.insert(inputs.end(), expected.seeds.begin(), expected.seeds.end());
      std::vector<Tensor> results = executor.run(inputs);
      CaseResult given;
      const auto first = results.begin() + static_cast<std::ptrdiff_t>(expected.outputs.size());
      given.outputs.assign(results.begin(), first);
      given.gradients.assign(first, results.end());
      expect_same(given);
    }
  }
}

}  // namespace onnxgrad::ops_test
