#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "train/losses/table.h"
#include "train/tools/user_graph.h"

// A user-defined loss given as a model: its nodes are appended after the scores, with the types
// that they have there.

namespace onnxgrad::train {

using ir::GraphBuilder;
using ir::Value;

namespace {

const UserPart& loss_part() {
  static const UserPart loss{.subject = "user loss",
                             .form =
                                 "A loss is a model with the inputs scores, target and, "
                                 "optionally, sample weights, and one floating-point output."};
  return loss;
}

[[noreturn]] void refuse_loss(const std::string& what, const std::string& hint) {
  refuse_user_part(loss_part(), what, hint);
}

bool is_floating_tensor(const ir::Type& type) {
  return type.is_tensor() && is_floating(type.dtype);
}

// Throws if the model does not have the form of a loss.
ir::Model load(const UserLoss& spec) {
  ir::Model model = load_user_part(loss_part(), spec.model);
  const ir::Graph& graph = *model.graph;
  const auto inputs = formal_inputs(graph);
  if (inputs.size() < 2 || inputs.size() > 3) {
    refuse_loss("the model has " + std::to_string(inputs.size()) + " inputs, expected 2 or 3",
                "Make everything else an initializer.");
  }
  if (graph.outputs.size() != 1 || !is_floating_tensor(graph.outputs.front()->type)) {
    refuse_loss("the model has " + std::to_string(graph.outputs.size()) +
                    " outputs, expected one of a floating-point type",
                "Keep only the loss, for each row or for the batch.");
  }
  return model;
}

}  // namespace

// Types decide if they can.
bool is_batch_loss(const Value& loss, const ir::Dim& rows, const std::string& subject) {
  const ir::Type& type = loss.type;
  if (!type.has_rank()) {
    throw ModelError({.what = subject + ": the rank of its output '" + loss.name + "' is not known",
                      .where = {.value = loss.name},
                      .hint = "Declare the shape."});
  }
  if (type.rank() == 0) return true;
  const bool one = std::ranges::all_of(
      *type.shape, [](const ir::Dim& dim) { return dim.is_static() && dim.value() == 1; });
  const bool is_one_row = rows.is_static() && rows.value() == 1;
  return one && !is_one_row;
}

ir::Type user_target_type(const UserLoss& spec, const Value& scores) {
  const ir::Model model = load(spec);
  const auto inputs = formal_inputs(*model.graph);
  check_user_dtype(loss_part(), *inputs[0], scores.dtype(), "the scores");
  if (inputs.size() == 3) {
    check_user_dtype(loss_part(), *inputs[2], scores.dtype(), "sample weights");
  }
  const ir::Type& declared = inputs[1]->type;
  if (!scores.type.has_rank() || scores.type.rank() == 0) {
    refuse_loss("the scores '" + scores.name + "' have no rows",
                "Name another output in the loss, by its output.");
  }
  // Symbols of the loss's own file mean nothing here: the rows are the scores' rows.
  ir::SymbolicShape shape{scores.type.shape->front()};
  if (!declared.has_rank()) {
    if (declared.dtype == scores.dtype()) return scores.type;
    return ir::Type::tensor(declared.dtype, std::move(shape));
  }
  if (declared.rank() == 0) {
    refuse_loss("the target '" + inputs[1]->name + "' is one number",
                "Give it a first dimension for the rows.");
  }
  for (std::size_t axis = 1; axis < declared.rank(); ++axis) {
    const ir::Dim& dim = (*declared.shape)[axis];
    const bool is_like_scores = declared.rank() == scores.type.rank();
    shape.push_back(dim.is_static()  ? dim
                    : is_like_scores ? (*scores.type.shape)[axis]
                                     : ir::Dim());
  }
  return ir::Type::tensor(declared.dtype, std::move(shape));
}

// e = the model's result
namespace {

Elements write_user_loss(GraphBuilder& g, const UserLoss& spec, const LossInputs& in) {
  const ir::Model model = load(spec);
  const auto inputs = formal_inputs(*model.graph);
  std::unordered_map<const Value*, Value*> map{{inputs[0], in.scores}, {inputs[1], in.target}};
  const bool wants_weights = inputs.size() == 3;
  if (wants_weights) {
    Value* weight = in.weight;
    if (weight == nullptr) {  // all rows count the same
      Value* rows = g.op("Shape", {in.scores}, {{.name = "end", .value = std::int64_t{1}}});
      weight = g.expand(g.scalar_like(in.scores, 1), rows);
    }
    map.emplace(inputs[2], weight);
  }
  Value* loss = write_user_part(g, model, std::move(map)).front();
  if (loss->dtype() != in.scores->dtype()) loss = g.cast_like(loss, in.scores);
  Elements elements{
      .values = loss,
      .mean_of_columns = true,
      .is_weighted = wants_weights && in.weight != nullptr,
      .is_total = is_batch_loss(*loss, in.scores->type.shape->front(), loss_part().subject)};
  if (!elements.is_total) return elements;
  if (in.weight != nullptr && !wants_weights) {
    refuse_loss("it returns one loss for the batch and takes no sample weights",
                "Give its model a third input for them, or let it return the loss of each row.");
  }
  if (loss->type.rank() > 0) elements.values = g.reduce_sum(loss, {}, /*keepdims=*/false);
  return elements;
}

Elements write_output_loss(GraphBuilder& g, const OutputLoss& /*spec*/, const LossInputs& in) {
  Elements elements{.values = in.scores, .mean_of_columns = true};
  elements.is_total = is_batch_loss(*in.scores, ir::Dim(), "the model's own loss");
  if (elements.is_total && in.scores->type.rank() > 0) {
    elements.values = g.reduce_sum(in.scores, {}, /*keepdims=*/false);
  }
  return elements;
}

}  // namespace

void register_users(LossTable& table) {
  table.add<write_user_loss>(
      {.target = TargetKind::kByOptions},
      Described<UserLoss>{.type = "UserLoss", .python_name = "", .summary = "user loss"});
  table.add<write_output_loss>(
      {.target = TargetKind::kNumbers},
      Described<OutputLoss>{
          .type = "OutputLoss", .python_name = "", .summary = "the model's own loss"});
}

}  // namespace onnxgrad::train
