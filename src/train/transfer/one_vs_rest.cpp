#include "train/transfer/one_vs_rest.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "ir/pattern.h"
#include "ir/uses.h"
#include "train/transfer/width_change.h"

namespace onnxgrad::train {
namespace {

using ir::is_op;
using ir::Node;
using ir::Value;

bool is_one(const Value* value, std::int64_t number) {
  const Tensor* numbers = WidthChange::constant(value);
  return numbers != nullptr && is_integer(numbers->dtype()) && numbers->num_elements() == 1 &&
         numbers->to_int64s().front() == number;
}

// The logistic LinearClassifier of two classes whose second probability is `value`.
const Node* classifier_of(const Value* value, const ir::Uses& uses) {
  const Node* slice = value->producer;
  if (slice == nullptr || !is_op(*slice, {"Slice"}) || uses.count(value) != 1) return nullptr;
  if (!is_one(slice->input(1), 1) || !is_one(slice->input(2), 2) || !is_one(slice->input(3), 1)) {
    return nullptr;
  }
  const Value* both = slice->input(0);
  const Node* node = both->producer;
  const bool is_classifier = node != nullptr && node->domain == "ai.onnx.ml" &&
                             node->op_type == "LinearClassifier" && both == node->output(1) &&
                             uses.count(both) == 1 &&
                             (node->output(0) == nullptr || uses.count(node->output(0)) == 0) &&
                             node->string_attribute("post_transform", "NONE") == "LOGISTIC" &&
                             node->floats_attribute("intercepts").size() == 2 &&
                             node->floats_attribute("coefficients").size() % 2 == 0;
  return is_classifier ? node : nullptr;
}

void join(Node& concat, const std::vector<const Node*>& classifiers) {
  ir::Graph& graph = *concat.graph;
  std::vector<float> coefficients;
  std::vector<float> intercepts;
  for (const Node* classifier : classifiers) {
    const auto rows = classifier->floats_attribute("coefficients");
    coefficients.insert(coefficients.end(),
                        rows.begin() + static_cast<std::ptrdiff_t>(rows.size() / 2), rows.end());
    intercepts.push_back(classifier->floats_attribute("intercepts")[1]);
  }
  const Node& first = *classifiers.front();
  Value* const scores = graph.add_value(graph.names().unique(first.output(1)->name + "_scores"));
  const std::string name = first.name.empty() ? scores->name : first.name;
  Node* const regressor = graph.make_node("LinearRegressor", {first.input(0)}, {scores}, name);
  regressor->domain = first.domain;
  regressor->set_attribute("targets", static_cast<std::int64_t>(intercepts.size()));
  regressor->set_attribute("coefficients", std::move(coefficients));
  regressor->set_attribute("intercepts", std::move(intercepts));
  Value* const result = concat.output(0);
  concat.outputs.clear();
  Node* const sigmoid = graph.make_node("Sigmoid", {scores}, {result}, concat.name);
  const auto place = std::ranges::find(graph.nodes, &concat);
  graph.nodes.insert(place, {regressor, sigmoid});
  std::vector<const Node*> removed{&concat};
  for (const Value* column : concat.inputs) removed.push_back(column->producer);
  removed.insert(removed.end(), classifiers.begin(), classifiers.end());
  std::erase_if(graph.nodes, [&removed](const Node* node) {
    return std::ranges::find(removed, node) != removed.end();
  });
}

}  // namespace

void join_one_vs_rest(ir::Model& file) {
  const std::vector<Node*> nodes = file.graph->nodes;
  for (Node* node : nodes) {
    if (!is_op(*node, {"Concat"}) || node->int_attribute("axis", 0) != 1) continue;
    const ir::Uses uses(*file.graph);
    std::vector<const Node*> classifiers;
    for (const Value* column : node->inputs) {
      const Node* classifier = classifier_of(column, uses);
      const bool fits = classifier != nullptr &&
                        (classifiers.empty() ||
                         (classifier->input(0) == classifiers.front()->input(0) &&
                          classifier->floats_attribute("coefficients").size() ==
                              classifiers.front()->floats_attribute("coefficients").size()));
      if (fits) classifiers.push_back(classifier);
    }
    const bool are_all = !classifiers.empty() && classifiers.size() == node->inputs.size();
    if (are_all) join(*node, classifiers);
  }
}

}  // namespace onnxgrad::train
