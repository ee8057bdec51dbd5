#include "train/graphs/place_match.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "base/check.h"
#include "train/heads/heads.h"
#include "train/losses/class_axis.h"

namespace onnxgrad::train {
namespace {

using ir::GraphBuilder;
using ir::Value;

std::string of_teacher(const Loss& loss) {
  return loss.teacher == nullptr ? "" : " of " + loss.teacher->name;
}

// x @ w along the axis of its columns.
Value* projected(GraphBuilder& g, Value* x, Value* w) {
  const std::size_t rank = x->type.rank();
  Value* matrix = w->dtype() == x->dtype() ? w : g.cast_like(w, x);
  if (rank < 4) return g.matmul(x, matrix);
  std::vector<std::int64_t> to_last(rank);
  std::iota(to_last.begin(), to_last.end(), std::int64_t{0});
  std::vector<std::int64_t> back = to_last;
  std::rotate(to_last.begin() + 1, to_last.begin() + 2, to_last.end());
  std::rotate(back.begin() + 1, back.end() - 1, back.end());
  return g.transpose(g.matmul(g.transpose(x, to_last), matrix), back);
}

void expect_same_shape(const Loss& loss, const Value& scores, const Value& target) {
  const ir::Type& mine = scores.type;
  const ir::Type& other = target.type;
  bool fits = mine.rank() == other.rank();
  for (std::size_t axis = 0; fits && axis < mine.rank(); ++axis) {
    const ir::Dim& a = (*mine.shape)[axis];
    const ir::Dim& b = (*other.shape)[axis];
    fits = !a.is_static() || !b.is_static() || a.value() == b.value();
  }
  if (fits) return;
  throw ModelError({.what = fmt::format("'{}' {} cannot be compared with '{}' {}{}", loss.output,
                                        mine.to_string(), loss.target_value, other.to_string(),
                                        of_teacher(loss)),
                    .where = {.value = loss.output},
                    .hint = "Name two values of one shape; where only their widths differ, "
                            "distill() adds a projection."});
}

Value* find_target(GraphBuilder& g, const Loss& loss, const PlacedTeachers& teachers) {
  if (loss.teacher == nullptr) return find_loss_value(g.graph(), loss.target_value);
  return teachers.values.at({loss.teacher.get(), loss.target_value});
}

// "distillation at temperature 2 of 'logits' towards 'scores' of the teacher 'big.onnx'"
std::string describe_match(const Loss& loss, const Value* projection) {
  std::string text = "loss: " + describe(loss.function);
  if (const auto* spec = std::get_if<Distillation>(&loss.function)) {
    text += fmt::format(" at temperature {:g}", spec->temperature);
  }
  text += fmt::format(" of '{}'", loss.output);
  if (projection != nullptr) text += fmt::format(" times '{}'", projection->name);
  return text + fmt::format(" towards '{}'{}", loss.target_value, of_teacher(loss));
}

}  // namespace

PlacedLoss place_match(GraphBuilder& g, const Loss& loss, Reduction reduction,
                       const PlacedTeachers& teachers, Value* sample_weight,
                       const LossOfWorker& worker) {
  check_loss_options(loss.function);
  PlacedLoss placed{.sample_weight = sample_weight, .worker = worker};
  ResolvedLoss& resolved = placed.resolved;
  resolved.function = loss.function;
  Value* scores = find_loss_value(g.graph(), loss.output);
  placed.stored_scores = scores;
  if (is_f16(scores->dtype())) scores = g.cast(scores, DataType::kFloat32);
  Value* target = find_target(g, loss, teachers);
  if (loss.teacher == nullptr) placed.read_values.push_back(target);
  const bool is_number = target->type.is_tensor() && is_floating(target->dtype());
  if (!is_number || !scores->type.has_rank()) {
    const std::string& name = is_number ? loss.output : loss.target_value;
    throw ModelError({.what = fmt::format("'{}' is {}, expected a floating-point tensor of a known "
                                          "rank",
                                          name, (is_number ? scores : target)->type.to_string()),
                      .where = {.value = name},
                      .hint = "Name another value."});
  }
  Value* projection = nullptr;
  if (!loss.own_weights.empty()) {
    projection = g.graph().find(loss.own_weights.front().name);
    scores = projected(g, scores, projection);
  }
  if (target->dtype() != scores->dtype()) target = g.cast_like(target, scores);
  if (!target->type.has_rank()) {
    target = g.identity(target);
    target->type = scores->type;
  }
  expect_same_shape(loss, *scores, *target);
  target_type(loss.function, *scores, 1);  // refuses scores that the loss does not take
  const ClassAxis axis = choose_class_axis(loss.function, *scores, loss.class_axis, std::nullopt);
  resolved.scores = scores;
  resolved.class_axis = axis.axis;
  placed.target = target;
  placed.is_match = true;
  LossInfo& info = resolved.info;
  info.function = loss.function;
  info.scores = info.output = loss.output;
  info.line = describe_match(loss, projection);
  placed.written = write_loss(g, loss.function, reduction, placed.place());
  placed.own_loss = placed.written.loss;
  return placed;
}

void check_matches(const Loss& loss) {
  const auto refuse = [](const Loss& one, const std::string& what, const std::string& hint) {
    throw ModelError({.what = what, .where = {.value = one.output}, .hint = hint});
  };
  const auto check_one = [&](const Loss& one) {
    const auto* table_loss = &one.function;
    const bool has_numbers = !std::holds_alternative<AutoLoss>(*table_loss) &&
                             !std::holds_alternative<OutputLoss>(*table_loss) &&
                             !std::holds_alternative<UserLoss>(*table_loss) &&
                             has_target(*table_loss) && has_number_targets(*table_loss);
    if (!has_numbers) {
      refuse(one, describe(one.function) + " cannot have a value as its target",
             "Use a loss of numbers, such as squared_error, cosine or distillation.");
    }
    if (one.output.empty()) {
      refuse(one, "a loss towards '" + one.target_value + "' names no value that it is applied to",
             "Set its output.");
    }
  };
  if (!loss.target_value.empty()) check_one(loss);
  for (const Loss& match : loss.matches) {
    if (match.target_value.empty() || !match.matches.empty() || !match.others.empty() ||
        !match.penalties.empty() || match.views != 1) {
      refuse(match,
             "one of the matches of a loss has no target_value, or has losses, penalties or "
             "views of its own",
             "Give them to the first loss.");
    }
    check_one(match);
  }
  if (loss.views > 1 && (!loss.target_value.empty() || !loss.matches.empty())) {
    refuse(loss, "a loss with views= takes no teacher",
           "Train the encoder on pairs and on a teacher one after the other.");
  }
}

}  // namespace onnxgrad::train
