#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {

std::vector<OpCase> stft_cases() {
  std::vector<OpCase> cases;
  for (const std::string onesided : {"0", "1"}) {
    const std::string op = "y = STFT <onesided = " + onesided + "> ";
    cases.push_back({.name = "window_" + onesided,
                     .model = op + "(x, step, window)",
                     .inputs = {uniform({2, 14, 1}, -1, 1), int_scalar(3), uniform({5}, 0.5, 1)}});
    cases.push_back({.name = "frame_length_" + onesided,
                     .model = op + "(x, step, \"\", length)",
                     .inputs = {uniform({1, 12, 1}, -1, 1), int_scalar(2), int_scalar(6)}});
    cases.push_back({.name = "both_" + onesided,
                     .model = op + "(x, step, window, length)",
                     .inputs = {uniform({1, 12, 1}, -1, 1), int_scalar(4), uniform({4}, 0.5, 1),
                                int_scalar(4)}});
  }
  cases.push_back({.name = "complex",
                   .model = "y = STFT <onesided = 0> (x, step, window)",
                   .inputs = {uniform({1, 10, 2}, -1, 1), int_scalar(2), uniform({4}, 0.5, 1)}});
  cases.push_back({.name = "default",
                   .model = "y = STFT (x, step, window)",
                   .inputs = {uniform({1, 9, 1}, -1, 1), int_scalar(4), uniform({5}, 0.5, 1)}});
  cases.push_back({.name = "no_signals",
                   .model = "y = STFT (x, step, window)",
                   .inputs = {uniform({0, 9, 1}, -1, 1), int_scalar(4), uniform({5}, 0.5, 1)}});
  return cases;
}

std::vector<ErrorCase> stft_error_cases() {
  return {{.name = "onesided",
           .model = "[frames] y = STFT <onesided = 2> (x, step, window)",
           .inputs = {uniform({1, 9, 1}, -1, 1), int_scalar(4), uniform({5}, 0.5, 1)},
           .error = "ModelError",
           .fragments = {"frames", "onesided"}}};
}

}  // namespace onnxgrad::ops_test
