#include "device/cuda/dnn_attention.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <limits>
#include <utility>

namespace onnxgrad::device::cuda {
namespace {

using Dims = DnnGraph::Dims;
using Tensor = DnnGraph::Tensor;

constexpr std::size_t kRank = 4;

Dims with_last_axes_swapped(Dims dims) {
  std::swap(dims[kRank - 2], dims[kRank - 1]);
  return dims;
}

/// Operands of both passes.
struct Operands {
  Operands(DnnGraph& graph, const DnnAttentionSpec& spec)
      : rows{spec.q.dims[0], spec.q.dims[1], spec.q.dims[2], 1},
        scores{spec.q.dims[0], spec.q.dims[1], spec.q.dims[2], spec.k.dims[2]},
        half(dnn_type(spec.q.dtype)),
        graph(graph),
        spec(spec) {}

  Tensor memory(const DnnMatrices& one) const {
    return graph.memory(one.dims, one.strides, dnn_type(one.dtype));
  }
  Tensor transposed(const DnnMatrices& one) const {
    return graph.memory(with_last_axes_swapped(one.dims), with_last_axes_swapped(one.strides),
                        dnn_type(one.dtype));
  }
  Tensor of_rows() const {
    return graph.memory(rows, DnnGraph::strides(rows), dnn_api::kDataFloat);
  }

  Tensor compute(int mode, Tensor x, Tensor b, const Dims& dims) const {
    const Tensor y = graph.between(dims);
    graph.pointwise(mode, x, b, y);
    return y;
  }
  Tensor multiplied(Tensor a, Tensor b) const {
    const Tensor c = graph.between(scores);
    graph.matmul(a, b, c);
    return c;
  }
  Tensor folded(int operation, Tensor x) const {
    const Tensor y = graph.between(rows);
    graph.reduce(operation, x, y);
    return y;
  }
  Tensor scaled(Tensor x) const {
    return compute(dnn_api::kMultiply, x, graph.constant(static_cast<float>(spec.scale), kRank),
                   scores);
  }
  // The scores of products of queries and keys.
  Tensor scores_of(Tensor product, Tensor bias) const {
    Tensor score = scaled(product);
    if (bias != nullptr) score = compute(dnn_api::kAdd, score, bias, scores);
    return spec.is_causal ? masked(score) : score;
  }
  // Keys behind the query's place have the score minus infinity.
  Tensor masked(Tensor score) const {
    const Tensor row = graph.between(scores, dnn_api::kDataInt32);
    const Tensor column = graph.between(scores, dnn_api::kDataInt32);
    const Tensor is_seen = graph.between(scores, dnn_api::kDataBoolean);
    const Tensor result = graph.between(scores);
    graph.index_of(score, 2, row);
    graph.index_of(score, 3, column);
    graph.pointwise(dnn_api::kGreaterEqual, row, column, is_seen, dnn_api::kDataBoolean);
    constexpr float kLeast = std::numeric_limits<float>::lowest();
    graph.select(is_seen, score, graph.constant(kLeast, kRank), result);
    return result;
  }
  // Rounded scores with rows and columns exchanged.
  Tensor turned(Tensor x) const {
    const Tensor y = graph.between(with_last_axes_swapped(scores),
                                   with_last_axes_swapped(DnnGraph::strides(scores)), half);
    graph.reshape(x, y);
    return y;
  }

  Dims rows;
  Dims scores;
  int half;
  DnnGraph& graph;
  const DnnAttentionSpec& spec;
};

std::string key_of(const DnnAttentionSpec& spec, const char* pass) {
  std::string key =
      fmt::format("attention {} {} {} {}", pass, spec.scale, spec.is_causal, spec.is_deterministic);
  for (const DnnMatrices* one :
       {&spec.q, &spec.k, &spec.v, &spec.y, &spec.bias, &spec.dy, &spec.dq, &spec.dk, &spec.dv}) {
    key += fmt::format(" {}[{}]({})", static_cast<int>(one->dtype), fmt::join(one->dims, ","),
                       fmt::join(one->strides, ","));
  }
  return key;
}

}  // namespace

void add_attention(DnnGraph& graph, const DnnAttentionSpec& spec) {
  const Operands op(graph, spec);
  const Tensor q = op.memory(spec.q);
  const Tensor kt = op.transposed(spec.k);
  const Tensor v = op.memory(spec.v);
  const Tensor y = op.memory(spec.y);
  const Tensor bias = spec.bias.is_present() ? op.memory(spec.bias) : nullptr;
  const Tensor score = op.scores_of(op.multiplied(q, kt), bias);
  const Tensor largest = op.folded(dnn_api::kMaximum, score);
  const Tensor shifted = op.compute(dnn_api::kSubtract, score, largest, op.scores);
  const Tensor exponentials = op.compute(dnn_api::kExp, shifted, nullptr, op.scores);
  const Tensor sum = op.folded(dnn_api::kSum, exponentials);
  const Tensor logarithm = op.compute(dnn_api::kLog, sum, nullptr, op.rows);
  graph.pointwise(dnn_api::kAdd, logarithm, largest, op.of_rows());
  const Tensor probabilities = graph.between(op.scores, op.half);
  graph.pointwise(dnn_api::kDivide, exponentials, sum, probabilities);
  graph.matmul(probabilities, v, y);
}

// p = exp(score - sums);  dv = p' dy;  ds = p (dy v' - sum(dy y)) scale;  dq = ds k;  dk = ds' q.
void add_attention_gradient(DnnGraph& graph, const DnnAttentionSpec& spec) {
  const Operands op(graph, spec);
  const Tensor q = op.memory(spec.q);
  const Tensor kt = op.transposed(spec.k);
  const Tensor vt = op.transposed(spec.v);
  const Tensor y = op.memory(spec.y);
  const Tensor dy = op.memory(spec.dy);
  const Tensor sums = op.of_rows();
  const Tensor bias = spec.bias.is_present() ? op.memory(spec.bias) : nullptr;
  const Tensor along = op.of_rows();
  const Tensor dq = op.memory(spec.dq);
  const Tensor dk = op.memory(spec.dk);
  const Tensor dv = op.memory(spec.dv);
  const Tensor products = op.compute(dnn_api::kMultiply, dy, y, spec.y.dims);
  graph.pointwise(dnn_api::kMultiply, op.folded(dnn_api::kSum, products), graph.constant(1, kRank),
                  along);
  const Tensor score = op.scores_of(op.multiplied(q, kt), bias);
  const Tensor exponents = op.compute(dnn_api::kSubtract, score, sums, op.scores);
  const Tensor p = op.compute(dnn_api::kExp, exponents, nullptr, op.scores);
  graph.matmul(op.turned(p), dy, dv);
  const Tensor dp = op.compute(dnn_api::kSubtract, op.multiplied(dy, vt), along, op.scores);
  const Tensor ds = op.scaled(op.compute(dnn_api::kMultiply, dp, p, op.scores));
  graph.matmul(op.turned(ds), q, dk);
  const Tensor k = graph.between(spec.k.dims, spec.k.strides, op.half);
  graph.reshape(kt, k);
  const Tensor sum =
      spec.is_deterministic
          ? graph.between(spec.q.dims)
          : graph.memory(spec.q.dims, DnnGraph::strides(spec.q.dims), dnn_api::kDataFloat);
  graph.matmul(ds, k, sum);
  graph.pointwise(dnn_api::kIdentity, sum, nullptr, dq);
}

std::shared_ptr<const DnnPlan> dnn_attention(const std::shared_ptr<Context>& context,
                                             const DnnAttentionSpec& spec, std::string& declined) {
  return DnnPlan::of(
      context, key_of(spec, "forward"),
      {.is_strict = false, .is_deterministic = spec.is_deterministic},
      [&](DnnGraph& graph) { add_attention(graph, spec); }, declined);
}

std::shared_ptr<const DnnPlan> dnn_attention_gradient(const std::shared_ptr<Context>& context,
                                                      const DnnAttentionSpec& spec,
                                                      std::string& declined) {
  return DnnPlan::of(
      context, key_of(spec, "gradient"),
      {.is_strict = false, .is_deterministic = spec.is_deterministic},
      [&](DnnGraph& graph) { add_attention_gradient(graph, spec); }, declined);
}

}  // namespace onnxgrad::device::cuda
