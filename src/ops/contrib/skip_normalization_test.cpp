#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {
namespace skip_normalization {

OpCase call(std::string name, const std::string& call, std::vector<CaseInput> inputs) {
  return {.name = std::move(name),
          .model = "y = com.microsoft." + call,
          .inputs = std::move(inputs),
          .domains = {{"com.microsoft", 1}}};
}

}  // namespace skip_normalization

std::vector<OpCase> skip_normalization_cases() {
  using skip_normalization::call;
  const CaseInput x = uniform({2, 3, 4}, -2, 2);
  const CaseInput scale = uniform({4}, 0.5, 1.5);
  const CaseInput bias = uniform({4}, -1, 1);
  const CaseInput ids = integers({2, 3}, 0, 4);
  const auto tables = [&](std::int64_t batch) {
    return std::vector<CaseInput>{integers({batch, 3}, 0, 4), uniform({5, 4}, -2, 2),
                                  uniform({4, 4}, -2, 2), scale, bias};
  };
  return {
      call("skip", "SkipLayerNormalization <epsilon = 0.001> (x, s, w, b)", {x, x, scale, bias}),
      call("skip_bias", "SkipLayerNormalization (x, s, w, \"\", c)",
           {x, uniform({3, 4}, -2, 2), scale, bias}),
      call("no_rows", "SkipLayerNormalization (x, s, w)",
           {uniform({0, 4}, -2, 2), uniform({0, 4}, -2, 2), scale}),
      call("rms", "SimplifiedLayerNormalization (x, w)", {x, scale}),
      call("rms_axis", "SimplifiedLayerNormalization <axis = 1> (x, w)",
           {x, uniform({3, 4}, 0.5, 1.5)}),
      call("rms_zero", "SimplifiedLayerNormalization <epsilon = 1.0> (x, w)",
           {values({0, 0, 0, 0}, {1, 4}), scale}),
      call("skip_rms", "SkipSimplifiedLayerNormalization (x, s, w, c)", {x, x, scale, bias}),
      call("embed", "EmbedLayerNormalization (i, \"\", a, p, \"\", w, b)", tables(2)),
      call("embed_nothing", "EmbedLayerNormalization (i, \"\", a, p, \"\", w, b)", tables(0)),
  };
}

std::vector<ErrorCase> skip_normalization_error_cases() {
  const auto refused = [](std::string name, const std::string& call, std::vector<CaseInput> inputs,
                          std::string error, std::string fragment) {
    return ErrorCase{.name = std::move(name),
                     .model = "[head] y = com.microsoft." + call,
                     .inputs = std::move(inputs),
                     .error = std::move(error),
                     .fragments = {"head", std::move(fragment)},
                     .domains = {{"com.microsoft", 1}}};
  };
  return {
      refused("skip", "SkipLayerNormalization (x, x)", {uniform({2, 3}, -1, 1)}, "ModelError",
              "input gamma"),
      refused("axis", "SimplifiedLayerNormalization <axis = 2> (x, w)",
              {uniform({2, 3}, -1, 1), uniform({3}, -1, 1)}, "ModelError", "axis is 2"),
  };
}

}  // namespace onnxgrad::ops_test
