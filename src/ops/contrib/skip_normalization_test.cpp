#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {

std::vector<OpCase> skip_normalization_cases() {
  const CaseInput x = uniform({2, 3, 4}, -2, 2);
  const CaseInput scale = uniform({4}, 0.5, 1.5);
  const CaseInput bias = uniform({4}, -1, 1);
  const CaseInput ids = integers({2, 3}, 0, 4);
  const auto tables = [&](std::int64_t batch) {
    return std::vector<CaseInput>{integers({batch, 3}, 0, 4), uniform({5, 4}, -2, 2),
                                  uniform({4, 4}, -2, 2), scale, bias};
  };
  return {
      contrib_call("skip", "SkipLayerNormalization <epsilon = 0.001> (x, s, w, b)",
                   {x, x, scale, bias}),
      contrib_call("skip_bias", "SkipLayerNormalization (x, s, w, \"\", c)",
                   {x, uniform({3, 4}, -2, 2), scale, bias}),
      contrib_call("no_rows", "SkipLayerNormalization (x, s, w)",
                   {uniform({0, 4}, -2, 2), uniform({0, 4}, -2, 2), scale}),
      contrib_call("rms", "SimplifiedLayerNormalization (x, w)", {x, scale}),
      contrib_call("rms_axis", "SimplifiedLayerNormalization <axis = 1> (x, w)",
                   {x, uniform({3, 4}, 0.5, 1.5)}),
      contrib_call("rms_zero", "SimplifiedLayerNormalization <epsilon = 1.0> (x, w)",
                   {values({0, 0, 0, 0}, {1, 4}), scale}),
      contrib_call("skip_rms", "SkipSimplifiedLayerNormalization (x, s, w, c)",
                   {x, x, scale, bias}),
      contrib_call("embed", "EmbedLayerNormalization (i, \"\", a, p, \"\", w, b)", tables(2)),
      contrib_call("embed_nothing", "EmbedLayerNormalization (i, \"\", a, p, \"\", w, b)",
                   tables(0)),
  };
}

std::vector<ErrorCase> skip_normalization_error_cases() {
  return {
      contrib_refused("skip", "SkipLayerNormalization (x, x)", {uniform({2, 3}, -1, 1)},
                      "ModelError", "input gamma"),
      contrib_refused("axis", "SimplifiedLayerNormalization <axis = 2> (x, w)",
                      {uniform({2, 3}, -1, 1), uniform({3}, -1, 1)}, "ModelError", "axis is 2"),
  };
}

}  // namespace onnxgrad::ops_test
