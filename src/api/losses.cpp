#include "onnxgrad/losses.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "api/model_impl.h"
#include "ir/builder.h"
#include "ir/naming.h"
#include "onnxgrad/tables.h"
#include "ops/older_bodies.h"
#include "train/graphs/training_graph.h"
#include "train/heads/heads.h"
#include "train/losses/table.h"
#include "train/tools/engine.h"

namespace onnxgrad {
namespace {

using ir::Value;

// Only the nodes of the loss, as a model that reads scores and penalized weights: from a working
// copy to any opset.
ir::Model loss_only(const train::LossGraph& loss) {
  ir::Model part;
  part.ir_version = ir::kWrittenIrVersion;
  part.set_opset("", ir::kInternalOpset);
  ir::Graph& graph = *part.graph;
  graph.name = "loss";
  std::unordered_map<const Value*, Value*> map;
  const auto add_input = [&](const Value* value) {
    if (map.contains(value)) return;
    Value* input = graph.add_value(value->name, value->type);
    input->is_input = true;
    graph.inputs.push_back(input);
    map.emplace(value, input);
  };
  for (const train::LossGraph::Input& input : loss.inputs) add_input(input.value);
  for (const Value* value : loss.targets) add_input(value);
  // The nodes before the loss are dropped from this throw-away copy of the model.
  auto& nodes = loss.model->graph->nodes;
  nodes.erase(nodes.begin(), nodes.begin() + static_cast<std::ptrdiff_t>(loss.first_new_node));
  ir::append_nodes(*loss.model->graph, graph, map);
  graph.outputs = {map.at(loss.loss)};
  ir::eliminate_dead_nodes(graph);
  return part;
}

// A loss written for a file of that opset.
ir::Model in_opset(const ir::Model& loss, std::int64_t opset) {
  try {
    return onnx_io::to_target_opset(loss, std::min(opset, ir::kInternalOpset), true,
                                    ops::older_body);
  } catch (const ModelError& error) {
    Problem problem = error.problem();
    problem.hint = "Pass a newer target_opset, such as 17: the model is then converted to it.";
    throw ModelError(std::move(problem));
  }
}

// Appends the loss's nodes to the file's own.
Model append_to_file(const Model& model, const train::LossGraph& loss,
                     const AddLossOptions& options) {
  const std::shared_ptr<const ir::Model> file = model.impl().file_graph();
  ir::Model result = options.target_opset == 0
                         ? ir::clone(*file)
                         : onnx_io::to_target_opset(*file, options.target_opset, false);
  const ir::Model part = in_opset(loss_only(loss), result.opset());
  ir::Graph& graph = *result.graph;
  const ir::Graph& from = *part.graph;
  // Before new inputs take names of inner values.
  std::unordered_map<std::string, Value*> file_values;
  for (const auto& input : loss.inputs) file_values.emplace(input.name, graph.find(input.name));
  std::unordered_map<const Value*, Value*> map;
  for (Value* input : from.inputs) {
    const bool is_target = std::ranges::any_of(
        loss.targets, [&](const Value* target) { return target->name == input->name; });
    if (is_target) {
      map.emplace(input, graph.add_input(input->name, input->type));
      continue;
    }
    const auto read = std::ranges::find(loss.inputs, input->name, [](const auto& one) {
      return std::string_view(one.value->name);
    });
    map.emplace(input, file_values.at(read->name));
  }
  ir::append_nodes(from, graph, map);
  Value* output = map.at(from.outputs.front());
  output->type = loss.loss->type;
  if (!options.keep_outputs) graph.outputs.clear();
  ir::give_name(graph, output, options.loss_name);
  graph.outputs.insert(graph.outputs.begin(), output);
  return api::wrap(std::move(result));
}

}  // namespace

std::vector<DescriptionInfo> loss_table() {
  std::vector<DescriptionInfo> table = train::loss_rows().infos();
  for (DescriptionInfo& row : table) {
    const LossFunction function = train::loss_rows().make(row.type, {});
    if (train::compares_embeddings(function)) {
      row.fields.push_back(
          {.name = "partners",
           .option = "partners",
           .default_value = std::vector<std::string>{},
           .meaning = "Outputs or values of the model, the embeddings of the partners of each row: "
                      "of a second tower."});
      row.fields.push_back(
          {.name = "views",
           .option = "views",
           .default_value = std::int64_t{1},
           .range = {.minimum = 1},
           .meaning = "Inputs in each row, for one encoder: every input x of the model gets "
                      "siblings x_2, x_3, ..., and the model is run once on all of them; their "
                      "embeddings are the partners."});
    }
    const bool has_classes = train::kind_of(function).scores == train::ScoreShape::kClassesPlaces;
    if (!has_classes && !std::holds_alternative<AutoLoss>(function)) continue;
    row.fields.push_back(
        {.name = "class_axis",
         .option = "axis",
         .default_value = std::monostate{},
         .meaning = "The class axis of s, if it has three axes or more; negative from the end. "
                    "None: the axis of the model's own Softmax or ArgMax; else the one missing "
                    "from the shape of the first labels (several candidates are an error, unless "
                    "one of them is the only axis of fixed size after the first). In files, which "
                    "have no labels, and with probabilities as targets: that only axis of fixed "
                    "size, else axis 1 as in PyTorch."});
  }
  return table;
}

LossFunction loss_from_name(std::string_view name) { return train::loss_rows().from_name(name); }

std::vector<std::string> loss_names() { return train::loss_rows().names(); }

LossFunction make_loss_function(std::string_view type, const FieldValues& options) {
  return train::loss_rows().make(type, options);
}

std::vector<DescriptionInfo> penalty_table() { return train::penalty_rows().infos(); }

Penalty make_penalty(std::string_view type, const FieldValues& options) {
  return std::get<Penalty>(train::penalty_rows().make(type, options));
}

std::string loss_name(const LossFunction& function) { return train::loss_rows().name_of(function); }

FieldValue loss_field(const LossFunction& function, std::string_view name) {
  return train::loss_rows().get(function, name, std::monostate{});
}

LossInfo find_loss(const Model& model, const Loss& loss) {
  train::LossGraph graph =
      train::build_loss(*model.impl().training_copy(), train::builtin_ops(), loss, "loss");
  return graph.info;
}

Model add_loss(const Model& model, const Loss& loss, const AddLossOptions& options) {
  if (loss.views > 1) {
    throw ModelError({.what = "a loss with views= changes the model, it cannot only be added",
                      .hint = "Write the training with training_step()."});
  }
  const auto& ops = train::builtin_ops();
  const ir::Model& working = *model.impl().training_copy();
  const ir::Graph& file = *model.impl().file.model->graph;
  Loss placed = loss;
  train::LossGraph graph = train::build_loss(working, ops, placed, options.loss_name);
  if (file.find(graph.info.scores) == nullptr) {
    // The scores are inside a node of the file (LinearClassifier), or a column of its scores; the
    // probabilities are not.
    for (const ir::Value* output : working.graph->outputs) {
      const train::Head head = train::walk_back(const_cast<ir::Value*>(output));  // NOLINT
      if (head.probabilities == nullptr || file.find(head.probabilities->name) == nullptr) continue;
      placed.function = NegativeLogLikelihood{};
      placed.output = head.probabilities->name;
      graph = train::build_loss(working, ops, placed, options.loss_name);
      break;
    }
  }
  for (const auto& [input, name] : graph.inputs) {
    const bool is_weight = input->is_initializer();
    const bool is_tied = is_weight && input->origin != nullptr && !input->origin->index.empty();
    if (file.find(name) != nullptr && !is_tied) continue;
    throw ModelError({.what = std::string(is_weight ? "the weight '" : "the scores '") + name +
                              "' " +
                              (is_tied     ? "is one of two opposite columns in the file"
                               : is_weight ? "is inside a node of the file"
                                           : "are inside a node of the file"),
                      .where = {.value = name},
                      .hint = is_weight ? "Leave it out of the penalties."
                                        : "Name an output of the file with output=."});
  }
  return append_to_file(model, graph, options);
}

}  // namespace onnxgrad
