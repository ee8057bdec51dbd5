#include "ops/contrib/attention_graph.h"

#include <cmath>
#include <limits>

namespace onnxgrad::ops {
namespace {

constexpr std::int64_t kToEnd = std::numeric_limits<std::int64_t>::max();

// Reshapes `x`; a 0 in `shape` keeps the dimension of x.
Value* reshape_kept(GraphBuilder& g, Value* x, const std::vector<std::int64_t>& shape) {
  return g.reshape(x, g.ints(shape), /*allow_zero=*/false);
}

}  // namespace

Value* split_heads(GraphBuilder& g, Value* x, std::int64_t heads, std::int64_t size) {
  return g.transpose(reshape_kept(g, x, {0, 0, heads, size}), {0, 2, 1, 3});
}

Value* merge_heads(GraphBuilder& g, Value* x, std::int64_t heads, std::int64_t size) {
  return reshape_kept(g, g.transpose(x, {0, 2, 1, 3}), {0, 0, heads * size});
}

Value* append_past(GraphBuilder& g, Value* past, Value* x) {
  return past == nullptr ? x : g.concat({past, x}, 2);
}

Value* mask_bias(GraphBuilder& g, Value* allowed, Value* like, double filter) {
  return g.where(allowed, g.scalar_like(like, 0), g.scalar_like(like, filter));
}

Value* positions_along(GraphBuilder& g, Value* x, std::int64_t axis) {
  return range_value(g, g.ints({0}), dim_value(g, x, axis));
}

double attention_scale(const Node& node, std::int64_t size) {
  const auto given = static_cast<double>(node.float_attribute("scale", 0.0F));
  return given != 0 ? given : 1 / std::sqrt(static_cast<double>(size));
}

namespace {

// Softmax of scores with an extra logit per row, `sink` [N, 1, 1], whose probability is dropped.
Value* softmax_with_sink(GraphBuilder& g, Value* scores, Value* sink) {
  Value* column_shape = g.concat({g.dims_of(scores, 0, 3), g.ints({1})}, 0);
  Value* all = g.concat({scores, g.expand(sink, column_shape)}, -1);
  Value* probabilities = g.op("Softmax", {all}, {{"axis", std::int64_t{-1}}});
  return g.slice(probabilities, {0}, {-1}, {-1});
}

}  // namespace

Value* attend(GraphBuilder& g, Attention& a) {
  const bool is_grouped = a.heads != a.key_heads;
  const auto grouped = [&](Value* x, const std::vector<std::int64_t>& shape) {
    return is_grouped ? g.reshape(x, g.ints(shape), /*allow_zero=*/false) : x;
  };
  // Query heads that share a head of keys are concatenated along the sequence, so no key is copied.
  const auto queries = known_dim(a.q, 2);
  const std::int64_t rows = queries && *queries > 0
                                ? Dims{*queries, a.heads / a.key_heads}.num_elements()
                                : std::int64_t{-1};
  Value* q = grouped(g.scale(a.q, a.scale), {0, a.key_heads, rows, 0});
  Value* scores = g.matmul(q, g.transpose(a.k, {0, 1, 3, 2}));
  scores = grouped(scores, {0, a.heads, queries && *queries > 0 ? *queries : -1, 0});
  if (a.softcap > 0) {
    scores = g.scale(g.op("Tanh", {g.scale(scores, 1 / a.softcap)}), a.softcap);
  }
  for (Value* bias : a.biases) scores = g.add(scores, bias);
  a.scores = scores;
  Value* probabilities = nullptr;
  if (a.sink != nullptr) {
    probabilities = softmax_with_sink(g, scores, g.unsqueeze(a.sink, {1, 2}));
  } else if (a.has_zero_sink) {
    probabilities = softmax_with_sink(g, scores, g.scalar_like(scores, 0));
  } else {
    probabilities = g.op("Softmax", {scores}, {{"axis", std::int64_t{-1}}});
  }
  Value* y = g.matmul(grouped(probabilities, {0, a.key_heads, rows, 0}), a.v);
  return grouped(y, {0, a.heads, queries && *queries > 0 ? *queries : -1, 0});
}

// Rotates each pair (a, b) to (a cos - b sin, a sin + b cos).
Value* rotate(GraphBuilder& g, Value* x, Value* cos, Value* sin, std::int64_t size,
              std::int64_t planes, bool interleaved) {
  const std::int64_t turned = 2 * planes;
  Value* a = nullptr;
  Value* b = nullptr;
  if (interleaved) {
    const auto every_second = [&](std::int64_t first) {
      return g.op("Slice", {x, g.ints({first}), g.ints({turned}), g.ints({-1}), g.ints({2})});
    };
    a = every_second(0);
    b = every_second(1);
  } else {
    a = g.slice(x, {0}, {planes}, {-1});
    b = g.slice(x, {planes}, {turned}, {-1});
  }
  Value* first = g.sub(g.mul(a, cos), g.mul(b, sin));
  Value* second = g.add(g.mul(a, sin), g.mul(b, cos));
  Value* y = nullptr;
  if (interleaved) {
    Value* pairs = g.concat({g.unsqueeze(first, {-1}), g.unsqueeze(second, {-1})}, -1);
    y = g.reshape(pairs, g.concat({g.dims_of(first, 0, -1), g.ints({turned})}, 0));
  } else {
    y = g.concat({first, second}, -1);
  }
  return turned == size ? y : g.concat({y, g.slice(x, {turned}, {kToEnd}, {-1})}, -1);
}

}  // namespace onnxgrad::ops
