#include <cmath>
#include <vector>

#include "base/check.h"
#include "train/losses/losses.h"
#include "train/losses/table.h"

// Losses of embeddings. a: the embeddings of the rows [N, D], b: those of their partners, n: those
// of further partners, the negatives; e: the loss of a row.

namespace onnxgrad::train {

using ir::GraphBuilder;
using ir::Value;

namespace {

constexpr double kSmallest = 1e-12;  // squares of norms and distances before a root

Value* sum_of_columns(GraphBuilder& g, Value* x, bool keepdims) {
  return g.reduce_sum(x, {1}, keepdims);
}

// sqrt(max(x, m)): the slope at 0 is finite.
Value* safe_root(GraphBuilder& g, Value* x) {
  return g.sqrt(g.op("Max", {x, g.scalar_like(x, kSmallest)}));
}

Value* of_unit_length(GraphBuilder& g, Value* x) {
  return g.div(x, safe_root(g, sum_of_columns(g, g.mul(x, x), /*keepdims=*/true)));
}

Value* first_columns(GraphBuilder& g, Value* x, std::int64_t columns) {
  return g.slice(x, {0}, {columns}, {1});
}

// log sum_j exp(x[i, j]) of each row.
Value* log_sum_of_row(GraphBuilder& g, Value* x) {
  return g.op("ReduceLogSumExp", {x, g.ints({1})},
              {{.name = "keepdims", .value = std::int64_t{0}}});
}

// 1 / temperature as a factor of similarities.
Value* sharpened(GraphBuilder& g, const InfoNce& spec, const LossInputs& in, Value* x) {
  if (!spec.learn_temperature) return g.scale(x, 1 / spec.temperature);
  return g.mul(x, g.exp(g.neg(g.cast_like(in.own.at(0), x))));
}

// e[i] = log sum_j exp(z[i, j]) - z[i, i] with z = cos(a[i], c[j]) / temperature, c being all b and
// n; symmetric: the mean with a and b exchanged.
Value* write_one_info_nce(GraphBuilder& g, const InfoNce& spec, const LossInputs& in,
                          std::int64_t columns) {
  const auto prepared = [&](Value* x) {
    return of_unit_length(g, columns == 0 ? x : first_columns(g, x, columns));
  };
  Value* a = sharpened(g, spec, in, prepared(in.scores));
  std::vector<Value*> others;
  for (Value* partner : in.partners) others.push_back(prepared(partner));
  Value* all = others.size() == 1 ? others[0] : g.concat(others, 0);
  Value* right = sum_of_columns(g, g.mul(a, others[0]), /*keepdims=*/false);
  Value* loss = g.sub(log_sum_of_row(g, g.matmul(a, g.transpose(all, {1, 0}))), right);
  if (!spec.symmetric) return loss;
  Value* back = g.sub(log_sum_of_row(g, g.matmul(others[0], g.transpose(a, {1, 0}))), right);
  return g.scale(g.add(loss, back), 0.5);
}

void check_prefixes(const InfoNce& spec, const Value& scores) {
  const ir::Dim& width = scores.type.shape->at(1);
  for (const std::int64_t prefix : spec.prefixes) {
    if (prefix > 0 && (!width.is_static() || prefix <= width.value())) continue;
    throw ModelError({.what = "InfoNCE: a prefix of " + std::to_string(prefix) + " columns of '" +
                              scores.name + "' " + scores.type.to_string(),
                      .where = {.value = scores.name},
                      .hint = "Give numbers from 1 to the width of the embeddings."});
  }
}

Elements write_info_nce(GraphBuilder& g, const InfoNce& spec, const LossInputs& in) {
  if (spec.prefixes.empty()) return {.values = write_one_info_nce(g, spec, in, 0)};
  check_prefixes(spec, *in.scores);
  Value* sum = nullptr;
  for (const std::int64_t prefix : spec.prefixes) {
    Value* one = write_one_info_nce(g, spec, in, prefix);
    sum = sum == nullptr ? one : g.add(sum, one);
  }
  return {.values = sum};
}

Value* distance(GraphBuilder& g, Value* x, Value* y) {
  Value* d = g.sub(x, y);
  return safe_root(g, sum_of_columns(g, g.mul(d, d), /*keepdims=*/false));
}

// The distance of each a to the nearest b of another row: |a|^2 - 2 a.b + |b|^2, infinite on the
// diagonal.
Value* nearest_other(GraphBuilder& g, Value* a, Value* b) {
  Value* rows = g.op("Shape", {a}, {{.name = "end", .value = std::int64_t{1}}});
  Value* squares_a = sum_of_columns(g, g.mul(a, a), /*keepdims=*/true);
  Value* squares_b = sum_of_columns(g, g.mul(b, b), /*keepdims=*/false);
  Value* products = g.matmul(a, g.transpose(b, {1, 0}));
  Value* squared = g.add(g.sub(squares_a, g.scale(products, 2)), squares_b);
  Value* numbers = g.op("Range", {g.int_scalar(0), g.squeeze(rows, {0}), g.int_scalar(1)});
  Value* is_own = g.equal(g.unsqueeze(numbers, {1}), numbers);
  Value* others = g.where(is_own, g.scalar_like(squared, 1e30), squared);
  return safe_root(g, g.op("ReduceMin", {others, g.ints({1})},
                           {{.name = "keepdims", .value = std::int64_t{0}}}));
}

// e = max(0, |a - b| - |a - n| + margin); n: the third embedding, or the nearest b of another row
Elements write_triplet(GraphBuilder& g, const Triplet& spec, const LossInputs& in) {
  Value* near = distance(g, in.scores, in.partners[0]);
  Value* far = in.partners.size() > 1 && !spec.hardest
                   ? distance(g, in.scores, in.partners[1])
                   : nearest_other(g, in.scores, in.partners[0]);
  Value* excess = g.add(g.sub(near, far), g.scalar_like(near, spec.margin));
  return {.values = g.op("Relu", {excess})};
}

// e = 1 - cos(a, b) for t = 1, max(0, cos(a, b) - margin) for t = -1
Elements write_cosine_embedding(GraphBuilder& g, const CosineEmbedding& spec,
                                const LossInputs& in) {
  Value* cosine = sum_of_columns(
      g, g.mul(of_unit_length(g, in.scores), of_unit_length(g, in.partners[0])), false);
  Value* apart = g.op("Relu", {g.sub(cosine, g.scalar_like(cosine, spec.margin))});
  Value* together = g.sub(g.scalar_like(cosine, 1), cosine);
  Value* is_pair = g.greater(in.target, g.scalar_like(in.target, 0));
  return {.values = g.where(is_pair, together, apart)};
}

}  // namespace

void check_partners(const LossFunction& function, std::size_t count) {
  if (!compares_embeddings(function)) return;
  const auto* triplet = std::get_if<Triplet>(&function);
  const bool is_enough = count > 1 || (count == 1 && (triplet == nullptr || triplet->hardest));
  const bool is_one = std::holds_alternative<CosineEmbedding>(function);
  if (is_enough && (!is_one || count == 1)) return;
  throw ModelError(
      {.what = describe(function) + ": " + std::to_string(count) +
               " embeddings to compare those of a row with, expected " +
               (triplet != nullptr ? "2, or 1 with hardest=True"
                : is_one           ? "1"
                                   : "1 or more"),
       .hint = "Name outputs of a model with several towers in partners=, or give views=, the "
               "number of inputs in each row that one encoder is run on."});
}

void register_contrastive(LossTable& table) {
  const LossKind rows{.target = TargetKind::kNone, .scores = ScoreShape::kMatrix};
  table.add<write_info_nce>(
      rows,
      Described<InfoNce>{
          .type = "InfoNce",
          .python_name = "InfoNCE",
          .summary = "InfoNCE",
          .source = "van den Oord, Li and Vinyals 2018, arXiv:1807.03748",
          .formula = "log(sum_j exp(z[i, j])) - z[i, i] with z[i, j] = cos(a[i], c[j]) / "
                     "temperature. a: [N, D], the embeddings of the rows; c: those of their "
                     "partners, of which row i's first is the right one: all others of the batch "
                     "are its negatives.",
          .fields = {field("temperature", &InfoNce::temperature, kTemperature),
                     field("learn_temperature", &InfoNce::learn_temperature,
                           "Whether the temperature is trained, by its logarithm."),
                     field("symmetric", &InfoNce::symmetric,
                           "Whether to average with the loss of finding the row of each partner."),
                     field("prefixes", &InfoNce::prefixes, kAtLeastOne,
                           "Sums the losses of the first columns of all embeddings, so many each: "
                           "Matryoshka representations, arXiv:2205.13147. None means all "
                           "columns.")},
          .names = {{"info_nce", {}, {"contrastive", "MultipleNegativesRankingLoss", "NTXentLoss"}},
                    {"clip", {.symmetric = true}, {}}},
      });
  table.add<write_triplet>(
      rows,
      Described<Triplet>{
          .type = "Triplet",
          .summary = "triplet loss",
          .source = "torch: TripletMarginLoss",
          .formula = "max(0, norm(a - b) - norm(a - n) + margin) with the two partners b and n of "
                     "a row, [N, D].",
          .fields = {field("margin", &Triplet::margin, kAtLeastZero),
                     field("hardest", &Triplet::hardest,
                           "Whether n is the nearest b of another row of the batch.")},
          .names = {{"triplet", {}, {"TripletMarginLoss"}}},
      });
  table.add<write_cosine_embedding>(
      {.target = TargetKind::kRowNumbers, .scores = ScoreShape::kMatrix},
      Described<CosineEmbedding>{
          .type = "CosineEmbedding",
          .summary = "cosine embedding loss",
          .source = "torch: CosineEmbeddingLoss",
          .formula = "1 - cos(a, b) where t > 0, else max(0, cos(a, b) - margin). a, b: [N, D], "
                     "a row and its partner; t: [N], 1 or -1.",
          .fields = {field("margin", &CosineEmbedding::margin, kAnyNumber)},
          .names = {{"cosine_embedding", {}, {"CosineEmbeddingLoss"}}},
      });
}

}  // namespace onnxgrad::train
