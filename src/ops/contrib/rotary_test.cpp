#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {
namespace rotary {

OpCase of_static(OpCase one) {
  one.static_only = "the widths of heads are numbers of the model";
  return one;
}

}  // namespace rotary

std::vector<OpCase> rotary_cases() {
  using rotary::of_static;
  const CaseInput x = uniform({2, 3, 8}, -1, 1);
  const CaseInput ids = integers({2, 3}, 0, 5);
  const CaseInput cos = uniform({6, 2}, -1, 1);
  const CaseInput sin = uniform({6, 2}, -1, 1);
  const CaseInput last = values({2, 2}, {2}, DataType::kInt32);
  const CaseInput total = values({3}, {1}, DataType::kInt32);
  const CaseInput key = uniform({2, 3, 4}, -1, 1);
  return {
      of_static(contrib_call("halves", "RotaryEmbedding (x, i, c, s)", {x, ids, cos, sin})),
      of_static(contrib_call("pairs", "RotaryEmbedding <interleaved = 1> (x, i, c, s)",
                             {x, ids, cos, sin})),
      of_static(contrib_call("first", "RotaryEmbedding (x, i, c, s)",
                             {x, values({2}, {1}, DataType::kInt64), cos, sin})),
      of_static(contrib_call("groups",
                             "GroupQueryAttention <num_heads = 2, kv_num_heads = 1> "
                             "(q, k, v, \"\", \"\", l, t)",
                             {x, key, key, last, total})),
      of_static(contrib_call("turned",
                             "GroupQueryAttention <num_heads = 2, kv_num_heads = 1, do_rotary = 1, "
                             "softcap = 2.0, local_window_size = 2> "
                             "(q, k, v, \"\", \"\", l, t, c, s)",
                             {x, key, key, last, total, cos, sin})),
  };
}

std::vector<ErrorCase> rotary_error_cases() {
  return {
      contrib_refused(
          "rank", "RotaryEmbedding (x, i, c, s)",
          {uniform({2, 4}, -1, 1), ints({0}), uniform({4, 2}, -1, 1), uniform({4, 2}, -1, 1)},
          "UnsupportedOperatorError", "'x'"),
  };
}

}  // namespace onnxgrad::ops_test
