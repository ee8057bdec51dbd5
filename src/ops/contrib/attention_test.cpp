#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {
namespace attention {

OpCase of_static(OpCase one) {
  one.static_only = "the widths of heads are numbers of the model";
  return one;
}

}  // namespace attention

std::vector<OpCase> attention_cases() {
  using attention::of_static;
  const CaseInput w = uniform({6, 24}, -1, 1).constant();
  const CaseInput b = uniform({24}, -1, 1).constant();
  const CaseInput flags = values({1, 1, 1, 0, 0, 0}, {2, 3}, DataType::kInt32);
  const auto rows = [](std::int64_t count) { return uniform({2, count, 6}, -1, 1); };
  const CaseInput keys = uniform({2, 5, 8}, -1, 1);
  OpCase masked =
      contrib_call("flags", "Attention <num_heads = 2> (x, w, b, m)", {rows(3), w, b, flags});
  masked.tolerance_float32 = 1e-3;  // a row with all keys masked: -10000 + score rounds the score
  return {
      masked,
      contrib_call("plain", "Attention <num_heads = 2> (x, w, b)", {rows(3), w, b}),
      contrib_call("causal", "Attention <num_heads = 2, unidirectional = 1> (x, w)", {rows(3), w}),
      contrib_call("one_row", "Attention <num_heads = 1, scale = 0.5> (x, w, b)", {rows(1), w, b}),
      of_static(contrib_call("no_rows", "Attention <num_heads = 2> (x, w, b)", {rows(0), w, b})),
      of_static(contrib_call("heads", "MultiHeadAttention <num_heads = 2> (q, k, v)",
                             {uniform({2, 3, 8}, -1, 1), keys, keys})),
      of_static(contrib_call("past",
                             "MultiHeadAttention <num_heads = 2> (q, k, v, b, \"\", \"\", p, r)",
                             {keys, keys, keys, uniform({24}, -1, 1), uniform({2, 2, 3, 4}, -1, 1),
                              uniform({2, 2, 3, 4}, -1, 1)})),
  };
}

std::vector<ErrorCase> attention_error_cases() {
  const CaseInput x = uniform({2, 3, 6}, -1, 1);
  return {
      contrib_refused("heads", "Attention <num_heads = 5> (x, w)", {x, uniform({6, 12}, -1, 1)},
                      "ModelError", "12 columns"),
      contrib_refused("keys", "MultiHeadAttention <num_heads = 2> (q, k)", {x, x},
                      "UnsupportedOperatorError", "do not go together"),
  };
}

}  // namespace onnxgrad::ops_test
