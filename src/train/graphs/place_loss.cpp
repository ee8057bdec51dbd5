#include "train/graphs/place_loss.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "base/check.h"
#include "ir/uses.h"
#include "train/graphs/loss_parts.h"
#include "train/graphs/outputs.h"
#include "train/graphs/place_match.h"
#include "train/losses/class_axis.h"
#include "train/losses/table.h"
#include "train/tools/patterns.h"
#include "train/weights/weights.h"

namespace onnxgrad::train {
namespace {

using ir::GraphBuilder;
using ir::Value;

void check_number(std::string_view name, double value) {
  if (value >= 0 && std::isfinite(value)) return;
  throw ModelError({.what = fmt::format("{} is {}, expected a number of at least 0", name, value),
                    .hint = "Give a number such as 0.01, or omit it."});
}

void check_combination(const Loss& loss) {
  check_number("the factor of a loss", loss.factor);
  for (const Penalty& penalty : loss.penalties) {
    penalty_rows().check<ModelError>(penalty, "penalty: ");
  }
  const auto is_own = [](const Loss& one) {
    return std::holds_alternative<OutputLoss>(one.function);
  };
  const bool is_several = !loss.others.empty() || !loss.matches.empty();
  if (is_several && (is_own(loss) || std::ranges::any_of(loss.others, is_own))) {
    throw ModelError({.what = "the model's own loss cannot be one of several",
                      .hint = "Let the model add them up."});
  }
  check_matches(loss);
  for (const Loss& match : loss.matches) check_number("the factor of a loss", match.factor);
  for (const Loss& other : loss.others) {
    check_number("the factor of a loss", other.factor);
    if (other.penalties.empty() && other.others.empty() && other.sample_weight.empty()) continue;
    throw ModelError({.what = "the loss on '" + other.output +
                              "' has its own penalties, sample weights or losses",
                      .where = {.value = other.output},
                      .hint = "Give them to the first loss; they apply to all."});
  }
}

// Inputs of the model that are fed rows.
std::vector<Value*> data_inputs(const ir::Graph& graph) {
  std::vector<Value*> inputs;
  for (Value* input : graph.inputs) {
    const bool has_rows = !input->type.has_rank() || input->type.rank() > 0;
    if (!input->is_initializer() && has_rows) inputs.push_back(input);
  }
  return inputs;
}

Value* find_data_input(const ir::Graph& graph, const std::string& name) {
  const auto inputs = data_inputs(graph);
  const auto found = std::ranges::find(inputs, name, &Value::name);
  return found == inputs.end() ? nullptr : *found;
}

[[noreturn]] void no_such_input(const ir::Graph& graph, const std::string& purpose,
                                const std::string& name) {
  std::vector<std::string> names;
  for (const Value* input : data_inputs(graph)) names.push_back(input->name);
  throw ModelError({.what = "the model's own loss: there is no input '" + name + "' for " + purpose,
                    .where = {.value = name},
                    .detail = "Inputs: " + base::quote_list(names) + ".",
                    .hint = base::nearest_or(name, names)});
}

// Losses and their sums are float32 where the model is float16 or bfloat16.
Value* in_float32(GraphBuilder& g, Value* value) {
  return is_f16(value->dtype()) ? g.cast(value, DataType::kFloat32) : value;
}

// The model's own loss, with target and weights among its own inputs.
PlacedLoss place_own(GraphBuilder& g, const Loss& loss, Reduction reduction,
                     const LossOfWorker& worker) {
  const ir::Graph& graph = g.graph();
  PlacedLoss placed{.resolved = resolve_loss(graph, loss), .worker = worker};
  placed.target = find_data_input(graph, loss.target);
  if (placed.target == nullptr && !loss.target.empty() && loss.target != Loss{}.target) {
    no_such_input(graph, "targets", loss.target);
  }
  if (placed.target != nullptr) {
    placed.resolved.info.target = value_info(placed.target->name, placed.target->type);
  }
  if (!loss.sample_weight.empty()) {
    placed.sample_weight = find_data_input(graph, loss.sample_weight);
    if (placed.sample_weight == nullptr) no_such_input(graph, "weights", loss.sample_weight);
  }
  placed.stored_scores = placed.resolved.scores;
  placed.resolved.scores = in_float32(g, placed.resolved.scores);
  Value* rows = placed.target;
  if (rows == nullptr) {
    // Without any input that has rows, the loss counts as one row.
    const auto inputs = data_inputs(graph);
    rows = inputs.empty() ? g.reshape(placed.resolved.scores, std::vector<std::int64_t>{-1})
                          : inputs.front();
  }
  placed.written = write_loss(g, loss.function, reduction,
                              {.scores = placed.resolved.scores,
                               .target = rows,
                               .worker_weight = worker.weight,
                               .updates_alone = worker.updates_alone});
  return placed;
}

// An input with a weight for each row of the scores.
Value* add_row_weight(GraphBuilder& g, const Loss& loss, const Value& scores) {
  ir::SymbolicShape rows{
      scores.type.has_rank() && scores.type.rank() > 0 ? scores.type.shape->front() : ir::Dim()};
  const DataType dtype = is_f16(scores.dtype()) ? DataType::kFloat32 : scores.dtype();
  return g.graph().add_input(loss.sample_weight, ir::Type::tensor(dtype, std::move(rows)));
}

// The rows of the scores for each of several inputs in a row, or named values.
std::vector<Value*> find_partners(GraphBuilder& g, const Loss& loss, PlacedLoss& placed) {
  std::vector<Value*> partners;
  if (!compares_embeddings(placed.resolved.function)) {
    if (loss.views == 1 && loss.partners.empty()) return partners;
    throw ModelError({.what = describe(placed.resolved.function) +
                              " compares no embeddings: it takes neither views= nor partners=",
                      .hint = "Use info_nce, triplet or cosine_embedding."});
  }
  if (loss.views > 1) {
    Value*& scores = placed.resolved.scores;
    const auto parts = g.ops(
        "Split", {scores}, static_cast<std::size_t>(loss.views),
        {{.name = "axis", .value = std::int64_t{0}}, {.name = "num_outputs", .value = loss.views}});
    const auto inputs = data_inputs(g.graph());
    ir::SymbolicShape shape = *scores->type.shape;
    if (!inputs.empty() && inputs.front()->type.has_rank()) {
      shape.front() = inputs.front()->type.shape->front();
    }
    for (Value* part : parts) part->type = ir::Type::tensor(scores->dtype(), shape);
    scores = parts[0];
    partners.assign(parts.begin() + 1, parts.end());
  }
  for (const std::string& name : loss.partners) {
    Value* value = find_loss_value(g.graph(), name);
    placed.read_values.push_back(value);
    value = in_float32(g, value);
    if (value->dtype() != placed.resolved.scores->dtype()) {
      value = g.cast_like(value, placed.resolved.scores);
    }
    partners.push_back(value);
  }
  check_partners(placed.resolved.function, partners.size());
  std::string& line = placed.resolved.info.line;
  if (loss.views > 1) line += fmt::format(" for {} inputs in each row", loss.views);
  if (!loss.partners.empty()) line += " with " + base::quote_list(loss.partners);
  return partners;
}

// The loss on one output. `sample_weight` is shared by several.
PlacedLoss place_one(GraphBuilder& g, const Loss& loss, ResolvedLoss resolved, Reduction reduction,
                     Value* sample_weight, const LossOfWorker& worker) {
  ir::Graph& graph = g.graph();
  PlacedLoss placed{
      .resolved = std::move(resolved), .sample_weight = sample_weight, .worker = worker};
  placed.stored_scores = placed.resolved.scores;
  placed.resolved.scores = in_float32(g, placed.resolved.scores);
  placed.partners = find_partners(g, loss, placed);
  for (const NamedTensor& own : own_weights(loss)) placed.own.push_back(graph.find(own.name));
  Value* scores = placed.resolved.scores;
  const LossFunction& function = placed.resolved.function;
  if (has_target(function)) {
    placed.target =
        graph.add_input(loss.target, target_type(function, *scores, placed.resolved.class_axis));
    placed.resolved.info.target = value_info(placed.target->name, placed.target->type);
  }
  if (!loss.sample_weight.empty() && loss.weigh_places) {
    const bool fits = has_class_axis(function) && is_classification(function, *scores);
    if (!fits || !loss.others.empty()) {
      throw ModelError({.what = describe(function) + " takes no weight for each position",
                        .where = {.value = scores->name},
                        .hint = "Give weights for rows, or use a cross-entropy over classes."});
    }
    placed.sample_weight = graph.add_input(
        loss.sample_weight, ir::Type::tensor(scores->dtype(), *placed.target->type.shape));
  } else if (!loss.sample_weight.empty()) {
    placed.sample_weight = add_row_weight(g, loss, *scores);
  }
  placed.written = write_loss(g, function, reduction, placed.place());
  placed.own_loss = placed.written.loss;
  return placed;
}

/// A weight and the sum of its penalties.
struct Penalized {
  Value* weight = nullptr;
  double l1 = 0;
  double l2 = 0;
};

// Selects the weights that a penalty applies to.
std::vector<bool> match_penalty(const Penalty& penalty, const std::vector<Weight>& weights,
                                const std::vector<WeightNames>& names,
                                const std::unordered_set<const Value*>& ancestors) {
  if (!penalty.weights.empty()) {
    return match_patterns(penalty.weights, names, "floating-point weight");
  }
  std::vector<bool> matched;
  bool is_any = false;
  for (const Weight& weight : weights) {
    const bool is_matrix = weight.value->initializer.dims().rank() >= 2;
    matched.push_back(is_matrix && weight.trainable && ancestors.contains(weight.value));
    is_any = is_any || matched.back();
  }
  if (!is_any) {
    throw ModelError(
        {.what = "a penalty matches no trainable weight of two or more dimensions",
         .detail = "Floating-point weights: " + base::quote_list(all_names(names)) + ".",
         .hint = "Name weights, or a pattern of names."});
  }
  return matched;
}

std::vector<Weight> find_floating_weights(const ir::Model& model, const opdef::OpRegistry& registry,
                                          const std::vector<std::string>* trained) {
  std::vector<Weight> weights = find_weights(model, registry);
  std::erase_if(weights, [](const Weight& weight) {
    return !is_floating(weight.value->initializer.dtype());
  });
  if (trained == nullptr) return weights;
  for (Weight& weight : weights) {
    weight.trainable = std::ranges::find(*trained, weight.value->name) != trained->end();
  }
  return weights;
}

std::vector<Penalized> find_penalized(const std::vector<Weight>& weights, const Loss& loss,
                                      const std::unordered_set<const Value*>& ancestors) {
  std::vector<WeightNames> names;
  for (const Weight& weight : weights) names.push_back(names_for_patterns(*weight.value));
  std::vector<Penalized> sums(weights.size());
  for (const Penalty& penalty : loss.penalties) {
    const auto matched = match_penalty(penalty, weights, names, ancestors);
    for (std::size_t i = 0; i < weights.size(); ++i) {
      if (!matched[i]) continue;
      sums[i].weight = weights[i].value;
      sums[i].l1 += penalty.l1;
      sums[i].l2 += penalty.l2;
    }
  }
  std::erase_if(sums, [](const Penalized& sum) { return sum.l1 == 0 && sum.l2 == 0; });
  return sums;
}

Value* add_or(GraphBuilder& g, Value* sum, Value* term) {
  return sum == nullptr ? term : g.add(sum, term);
}

// l1 sum |w| + l2 sum w^2, rank 0, in the weight's type or float32.
Value* write_penalty(GraphBuilder& g, const Penalized& penalized) {
  Value* w = in_float32(g, penalized.weight);
  Value* sum = nullptr;
  if (penalized.l1 != 0) {
    sum = g.scale(g.reduce_sum(g.abs(w), {}, /*keepdims=*/false), penalized.l1);
  }
  if (penalized.l2 != 0) {
    Value* squares = g.reduce_sum(g.mul(w, w), {}, /*keepdims=*/false);
    sum = add_or(g, sum, g.scale(squares, penalized.l2));
  }
  return sum;
}

Value* scaled(GraphBuilder& g, Value* x, double factor, Value* like) {
  if (x->dtype() != like->dtype()) x = g.cast_like(x, like);
  return factor == 1 ? x : g.scale(x, factor);
}

// The sum of all losses and penalties replaces the first loss. Each worker adds its fraction of the
// penalties.
void put_together(GraphBuilder& g, const Loss& loss, const std::vector<Penalized>& penalties,
                  int workers, PlacedLoss& placed) {
  WrittenLoss& whole = placed.written;
  Value* like = whole.loss;
  Value* total = scaled(g, whole.loss, loss.factor, like);
  if (whole.rows != nullptr) whole.rows = scaled(g, whole.rows, loss.factor, like);
  const auto add = [&](const WrittenLoss& other, double factor) {
    total = g.add(total, scaled(g, other.loss, factor, like));
    if (whole.rows != nullptr) {
      whole.rows = g.add(whole.rows, scaled(g, other.rows, factor, like));
    }
  };
  for (std::size_t i = 0; i < placed.others.size(); ++i) {
    add(placed.others[i].written, loss.others[i].factor);
  }
  for (std::size_t i = 0; i < placed.matches.size(); ++i) {
    add(placed.matches[i].written, loss.matches[i].factor);
  }
  for (const Penalized& penalized : penalties) {
    total = g.add(total, scaled(g, write_penalty(g, penalized), 1.0 / workers, like));
  }
  whole.loss = total;
  // Means of batches are combined by the divisor of the first loss.
  whole.numerator = loss.reduction == Reduction::kMean ? g.mul(total, whole.denominator) : total;
}

// "squared error on 'y' (...), plus 0.5 times absolute error on 'z'; penalty on 'W0', 'W1'"
std::string describe_all(const Loss& loss, const PlacedLoss& placed) {
  const std::string prefix = "loss: ";
  const auto term = [&](const PlacedLoss& one, double factor) {
    const std::string text = one.resolved.info.line.substr(prefix.size());
    return factor == 1 ? text : fmt::format("{:g} times {}", factor, text);
  };
  std::string line = prefix + term(placed, loss.factor);
  for (std::size_t i = 0; i < placed.others.size(); ++i) {
    line += ", plus " + term(placed.others[i], loss.others[i].factor);
  }
  for (std::size_t i = 0; i < placed.matches.size(); ++i) {
    line += ", plus " + term(placed.matches[i], loss.matches[i].factor);
  }
  const auto& names = placed.resolved.info.penalized;
  if (!names.empty()) line += "; penalty on " + base::quote_list(names);
  return line;
}

// The whole loss: penalties, factors, the sum of several.
PlacedLoss finish(GraphBuilder& g, const Loss& loss, const std::vector<Weight>& weights,
                  int workers, PlacedLoss placed) {
  std::vector<Penalized> penalties;
  if (!loss.penalties.empty()) {
    std::vector<const Value*> losses{placed.written.loss};
    for (const PlacedLoss& other : placed.others) losses.push_back(other.written.loss);
    for (const PlacedLoss& match : placed.matches) losses.push_back(match.written.loss);
    penalties = find_penalized(weights, loss, ir::ancestors_of(losses));
  }
  LossInfo& info = placed.resolved.info;
  for (const Penalized& penalized : penalties) {
    placed.penalized.push_back(penalized.weight);
    info.penalized.push_back(penalized.weight->name);
  }
  const bool is_one = placed.others.empty() && placed.matches.empty();
  const bool is_plain = is_one && penalties.empty() && loss.factor == 1;
  if (!is_plain) put_together(g, loss, penalties, workers, placed);
  info.line = base::printable(describe_all(loss, placed));
  for (const PlacedLoss& other : placed.others) info.others.push_back(other.resolved.info);
  g.set_scope("");
  return placed;
}

}  // namespace

LossPlace PlacedLoss::place() const {
  return {.scores = resolved.scores,
          .target = target,
          .sample_weight = sample_weight,
          .class_axis = resolved.class_axis,
          .worker_weight = worker.weight,
          .updates_alone = worker.updates_alone,
          .partners = partners,
          .own = own};
}

PlacedLoss place_loss(GraphBuilder& g, const opdef::OpRegistry& registry, const Loss& loss,
                      const std::vector<std::string>* trained, const LossOfWorker& worker) {
  check_combination(loss);
  // Before the loss adds its own constants, which no pattern should match.
  std::vector<Weight> weights;
  if (!loss.penalties.empty()) weights = find_floating_weights(g.model(), registry, trained);
  g.set_scope("loss");
  if (std::holds_alternative<OutputLoss>(loss.function)) {
    PlacedLoss placed = place_own(g, loss, loss.reduction, worker);
    return finish(g, loss, weights, worker.workers, std::move(placed));
  }
  PlacedTeachers teachers = place_teachers(g, loss);
  // All before new inputs take the names of inner values.
  std::vector<ResolvedLoss> resolved;
  if (loss.target_value.empty()) resolved.push_back(resolve_loss(g.graph(), loss));
  for (const Loss& other : loss.others) resolved.push_back(resolve_loss(g.graph(), other));
  Value* sample_weight = nullptr;
  PlacedLoss placed;
  if (loss.target_value.empty()) {
    placed = place_one(g, loss, std::move(resolved.front()), loss.reduction, nullptr, worker);
    resolved.erase(resolved.begin());
    sample_weight = placed.sample_weight;
  } else {
    const Value* value = find_loss_value(g.graph(), loss.output);
    if (!loss.sample_weight.empty()) sample_weight = add_row_weight(g, loss, *value);
    placed = place_match(g, loss, loss.reduction, teachers, sample_weight, worker);
  }
  for (std::size_t i = 0; i < loss.others.size(); ++i) {
    placed.others.push_back(place_one(g, loss.others[i], std::move(resolved[i]), loss.reduction,
                                      sample_weight, worker));
  }
  for (const Loss& match : loss.matches) {
    placed.matches.push_back(
        place_match(g, match, loss.reduction, teachers, sample_weight, worker));
  }
  placed.teachers = std::move(teachers);
  return finish(g, loss, weights, worker.workers, std::move(placed));
}

}  // namespace onnxgrad::train
