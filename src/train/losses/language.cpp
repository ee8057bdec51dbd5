#include <string>
#include <utility>
#include <vector>

#include "train/losses/table.h"

// Losses of language models. s: scores [N, T, V], y: tokens [N, T], e: the loss of an element.

namespace onnxgrad::train {

using ir::GraphBuilder;
using ir::Value;

namespace {

constexpr std::int64_t kIgnoredToken = -100;

// [N, width] of x [N, ...], from that column on.
Value* token_columns(GraphBuilder& g, Value* x, std::int64_t first, std::int64_t end) {
  return g.slice(x, {first}, {end}, {1});
}

constexpr std::int64_t kLastColumn = std::int64_t{1} << 62;

// y[:, 1:] and a last column of that number.
Value* moved_ahead(GraphBuilder& g, Value* tokens, std::int64_t last) {
  Value* first = token_columns(g, tokens, 0, 1);
  Value* end = g.expand(g.int_scalar(last), g.shape_of(first));
  Value* moved = g.concat({token_columns(g, tokens, 1, kLastColumn), end}, 1);
  moved->type = tokens->type;
  return moved;
}

// -log p[y] at each place, 0 for the ignored number; p = softmax(s). scores: [M, V], target: [M]
Value* token_losses(GraphBuilder& g, Value* scores, Value* target, std::int64_t ignored) {
  return g.op("SoftmaxCrossEntropyLoss", {scores, target},
              {{.name = "reduction", .value = std::string("none")},
               {.name = "ignore_index", .value = ignored}});
}

// e = -log p[y], 0 where y is ignored; in.target is y[t + 1] for a causal model
template <class Spec>
Elements write_tokens(GraphBuilder& g, const Spec& spec, const LossInputs& in) {
  Value* is_ignored = g.equal(in.target, g.int_scalar(spec.ignore_index));
  return {.values = token_losses(g, in.scores, in.target, spec.ignore_index),
          .mean_of_columns = true,
          .counts = g.cast_like(g.op("Not", {is_ignored}), in.scores)};
}

// The log-probability of each row's tokens: [N, 1]. With t = y moved ahead and -100 for negative
// numbers, sum_t log p[t].
Value* row_log_probability(GraphBuilder& g, Value* scores, Value* tokens) {
  Value* next = moved_ahead(g, tokens, kIgnoredToken);
  next = g.where(g.less(next, g.int_scalar(0)), g.int_scalar(kIgnoredToken), next);
  Value* flat = g.op("Flatten", {scores}, {{.name = "axis", .value = std::int64_t{2}}});
  // Tokens of another length are refused: Expand compares axis by axis.
  Value* places = g.op("Shape", {scores}, {{.name = "end", .value = std::int64_t{2}}});
  Value* compared = g.reshape(g.expand(next, places), std::vector<std::int64_t>{-1});
  Value* losses = g.reshape(token_losses(g, flat, compared, kIgnoredToken), places);
  return g.neg(g.reduce_sum(losses, {1}, /*keepdims=*/true));
}

// e = a softplus(b d) + (1 - a) softplus(-b d), with b = beta, a = label_smoothing,
// d = (l[2i] - r[2i]) - (l[2i + 1] - r[2i + 1]), for both rows of a pair
Elements write_dpo(GraphBuilder& g, const Dpo& spec, const LossInputs& in) {
  Value* reference = g.cast_like(token_columns(g, in.target, 0, 1), in.scores);
  Value* tokens = g.cast(token_columns(g, in.target, 1, kLastColumn), DataType::kInt64);
  Value* gain = g.sub(row_log_probability(g, in.scores, tokens), reference);
  Value* pairs = g.reshape(gain, std::vector<std::int64_t>{-1, 2});
  Value* margin = g.sub(token_columns(g, pairs, 0, 1), token_columns(g, pairs, 1, 2));
  Value* d = g.scale(margin, spec.beta);
  Value* loss = g.op("Softplus", {g.neg(d)});
  if (spec.label_smoothing != 0) {
    loss = g.add(g.scale(loss, 1 - spec.label_smoothing),
                 g.scale(g.op("Softplus", {d}), spec.label_smoothing));
  }
  Value* both = g.reshape(g.expand(loss, g.shape_of(pairs)), std::vector<std::int64_t>{-1});
  both->type = ir::Type::tensor(in.scores->dtype(), {in.scores->type.shape->front()});
  return {.values = both};
}

}  // namespace

Value* next_tokens(GraphBuilder& g, const CausalLm& spec, Value* tokens) {
  Value* next = moved_ahead(g, tokens, spec.ignore_index);
  if (!spec.pad) return next;
  Value* is_pad = g.equal(next, g.int_scalar(*spec.pad));
  next = g.where(is_pad, g.int_scalar(spec.ignore_index), next);
  next->type = tokens->type;
  return next;
}

void register_language(LossTable& table) {
  table.add<write_tokens<CausalLm>>(
      {.target = TargetKind::kClasses, .scores = ScoreShape::kTokens, .takes_scores = true},
      Described<CausalLm>{
          .type = "CausalLm",
          .summary = "causal language model",
          .source = "transformers: labels=input_ids",
          .formula = "-log p[t, y[t + 1]] with p = softmax(s), the mean over the places whose next "
                     "token counts. s: [N, T, V] before any Softmax, y: [N, T] the tokens that "
                     "the model reads, which the loss moves.",
          .fields = {field("ignore_index", &CausalLm::ignore_index, kAnyNumber,
                           "Places whose next token is this number do not count."),
                     field("pad", &CausalLm::pad, "A token that does not count either.")},
          .names = {{"causal_lm", {}}},
      });
  table.add<write_tokens<MaskedLm>>(
      {.target = TargetKind::kClasses, .scores = ScoreShape::kTokens, .takes_scores = true},
      Described<MaskedLm>{
          .type = "MaskedLm",
          .summary = "masked language model",
          .source = "transformers: labels of BertForMaskedLM, T5",
          .formula = "-log p[t, y[t]] with p = softmax(s), the mean over the places that count. "
                     "s: [N, T, V] before any Softmax, y: [N, T] the tokens to find. For a decoder "
                     "behind an encoder too, whose inputs are y, one place later.",
          .fields = {field("ignore_index", &MaskedLm::ignore_index, kAnyNumber,
                           "Places of this number do not count.")},
          .names = {{"masked_lm", {}, {"seq2seq_lm"}}},
      });
  table.add<write_dpo>(
      {.target = TargetKind::kNumbers,
       .scores = ScoreShape::kTokens,
       .takes_scores = true,
       .rows = 2},
      Described<Dpo>{
          .type = "Dpo",
          .summary = "direct preference optimization",
          .source = "Rafailov et al. 2023; TRL: DPOTrainer",
          .formula = "-(1 - e) log sigmoid(beta d) - e log sigmoid(-beta d) with "
                     "d = (l_c - r_c) - (l_r - r_r): l is the sum of log p[t, y[t + 1]] over an "
                     "answer, r what it was before the training, for the chosen and the rejected "
                     "answer; e = label_smoothing. s: [2P, T, V], their rows in turn; targets "
                     "[2P, 1 + T]: r, then y, negative outside the answer.",
          .fields = {field("beta", &Dpo::beta, kAboveZero),
                     field("label_smoothing", &Dpo::label_smoothing, kBelowOne)},
          .names = {{"dpo", {}}},
      });
}

}  // namespace onnxgrad::train
