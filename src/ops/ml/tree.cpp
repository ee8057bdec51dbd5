#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "onnxgrad/error.h"
#include "ops/ml/forest.h"
#include "ops/ml/post_transform.h"

// TreeEnsembleRegressor and TreeEnsembleClassifier (ai.onnx.ml 1 to 3) and TreeEnsemble (5). A
// TreeEnsemble with one output per tree finds the leaf that a row reaches. It is piecewise
// constant, so the input and the splits get no gradient. Ordinary tensor operators add up the
// weights of the leaves, so these weights are trained like any others.

namespace onnxgrad::ops::tree_op {
namespace {

using opdef::AttributeType;

constexpr std::int64_t kOpsetWithTreeEnsemble = 5;

// Returns the index, among all leaves, of the leaf that each row reaches in each tree: int64 [N,
// T].
Value* find_leaves(GraphBuilder& g, Value* x, const Forest& forest) {
  if (!is_floating(x->dtype())) x = g.cast(x, DataType::kFloat32);
  g.model().set_opset(kMl, kOpsetWithTreeEnsemble);
  Value* found =
      g.cast(g.op("TreeEnsemble", {x}, leaf_finder(forest, x->dtype()), kMl), DataType::kInt64);
  // Converts indices within a tree, which floats hold exactly, to indices among all leaves.
  std::vector<std::int64_t> next(forest.roots.size(), 0);
  std::vector<std::int64_t> first(forest.roots.size(), 0);
  for (const std::int64_t tree : forest.tree_of_leaf) ++next[static_cast<std::size_t>(tree)];
  for (std::size_t t = 1; t < first.size(); ++t) first[t] = first[t - 1] + next[t - 1];
  return g.add(found, g.ints(first));
}

// Returns the index of the weight of each leaf, in the order of find_leaves(), for each target;
// `absent` if there is none. int64 [leaves * targets], charged to the memory budget.
Tensor weight_numbers(const Node& node, const Forest& forest, std::int64_t num_targets,
                      std::int64_t absent) {
  std::vector<std::vector<std::int64_t>> by_tree(forest.roots.size());
  for (std::int64_t leaf = 0; leaf < forest.num_leaves(); ++leaf) {
    by_tree[static_cast<std::size_t>(forest.tree_of_leaf[static_cast<std::size_t>(leaf)])]
        .push_back(leaf);
  }
  std::vector<std::int64_t> row(static_cast<std::size_t>(forest.num_leaves()));
  std::int64_t next = 0;
  for (const auto& leaves : by_tree) {
    for (const std::int64_t leaf : leaves) row[static_cast<std::size_t>(leaf)] = next++;
  }
  const std::int64_t count = Dims{forest.num_leaves(), num_targets}.num_elements();
  Tensor table = Tensor::empty(DataType::kInt64, Dims{count});
  const auto numbers = table.mutable_data<std::int64_t>();
  std::ranges::fill(numbers, absent);
  for (const LeafEntry& entry : forest.entries) {
    if (entry.target < 0 || entry.target >= num_targets) {
      refuse_attributes(node, fmt::format("a leaf has target {} of {}", entry.target, num_targets));
    }
    std::int64_t& number = numbers[static_cast<std::size_t>(
        row[static_cast<std::size_t>(entry.leaf)] * num_targets + entry.target)];
    if (number != absent) {
      refuse_attributes(node, fmt::format("a leaf has two weights for target {}", entry.target));
    }
    number = entry.number;
  }
  return table;
}

// Sums the weights of the leaves that each row reaches: [N, num_targets]. `attribute` holds the
// weights.
Value* sum_leaves(GraphBuilder& g, const Node& node, const Forest& forest,
                  const std::string& attribute, const Tensor& weights, std::int64_t num_targets,
                  const std::string& aggregate) {
  const std::int64_t absent = weights.num_elements();
  const Tensor numbers = weight_numbers(node, forest, num_targets, absent);
  const auto places = numbers.data<std::int64_t>();
  const bool has_gaps = std::ranges::find(places, absent) != places.end();
  if (has_gaps && (aggregate == "MIN" || aggregate == "MAX")) {
    throw UnsupportedOperatorError(
        {.what = aggregate + " over leaves, some of which have no weight for a target",
         .where = {.node = node.name, .op_type = node.op_type},
         .hint = "Export the ensemble with a weight for every leaf and target."});
  }
  Value* table = attribute_initializer(g, node, attribute, weights.reshaped(Dims{absent}));
  if (has_gaps) table = g.concat({table, g.reshape(g.scalar_like(table, 0), {1})}, 0);
  table = g.reshape(g.gather(table, g.constant(numbers, "weight_numbers"), 0),
                    {forest.num_leaves(), num_targets});
  Value* taken = g.gather(table, find_leaves(g, node.input(0), forest), 0);  // [N, T, targets]
  if (aggregate == "AVERAGE") return g.reduce_mean(taken, {1}, /*keepdims=*/false);
  if (aggregate == "MAX") return g.reduce_max(taken, {1}, /*keepdims=*/false);
  if (aggregate == "MIN") {
    return g.op("ReduceMin", {taken, g.ints({1})}, {{"keepdims", std::int64_t{0}}});
  }
  return g.reduce_sum(taken, {1}, /*keepdims=*/false);
}

// Returns the name of the attribute that holds a list of floats, either as floats or as a tensor.
std::string holder(const Node& node, const std::string& name) {
  return node.floats_attribute(name).empty() ? name + "_as_tensor" : name;
}

Tensor required_numbers(const Node& node, const std::string& name) {
  Tensor numbers = tree_numbers(node, name);
  if (!numbers.is_defined()) refuse_attributes(node, "attribute '" + name + "' is missing");
  return numbers;
}

// Returns scores + base_values, which have one element per target.
Value* add_base(GraphBuilder& g, const Node& node, Value* scores, std::int64_t num_targets) {
  const Tensor base = tree_numbers(node, "base_values");
  if (!base.is_defined() || base.num_elements() == 0) return scores;
  if (base.num_elements() != num_targets) {
    refuse_attributes(node, fmt::format("base_values has {} elements for {} targets",
                                        base.num_elements(), num_targets));
  }
  Value* values = attribute_initializer(g, node, holder(node, "base_values"),
                                        base.reshaped(Dims{base.num_elements()}));
  return g.add(scores, g.cast_like(values, scores));
}

std::optional<std::vector<Value*>> lower_regressor(const Node& node, GraphBuilder& g) {
  if (node.input(0) == nullptr || node.input(0)->dtype() == DataType::kUndefined) {
    return std::nullopt;
  }
  const Forest forest = read_tree_lists(node, "target");
  const Tensor weights = required_numbers(node, "target_weights");
  const std::int64_t num_targets = node.int_attribute("n_targets", 1);
  if (weights.num_elements() != static_cast<std::int64_t>(forest.entries.size())) {
    refuse_attributes(node, fmt::format("{} target_weights for {} target_ids",
                                        weights.num_elements(), forest.entries.size()));
  }
  const std::string transform = node.string_attribute("post_transform");
  if (num_targets == 1 && transform != "NONE" && transform != "PROBIT") {
    throw UnsupportedOperatorError(
        {.what = "post_transform " + transform + " with one target, on which runtimes disagree",
         .where = {.node = node.name, .op_type = node.op_type},
         .detail = "ONNX applies it, onnxruntime does not.",
         .hint = "Export the ensemble without it, and append the operator."});
  }
  Value* scores = sum_leaves(g, node, forest, holder(node, "target_weights"), weights, num_targets,
                             node.string_attribute("aggregate_function"));
  scores = add_base(g, node, scores, num_targets);
  return {{g.cast(post_transform(g, scores, transform), DataType::kFloat32)}};
}

Value* arg_max(GraphBuilder& g, Value* scores) {
  return g.op("ArgMax", {scores}, {{"axis", std::int64_t{1}}, {"keepdims", std::int64_t{0}}});
}

// Classifies by one score s per row, for two classes. If all weights are positive, s is the
// probability of the second class; otherwise it is a distance from the decision boundary.
std::vector<Value*> classify_by_one(GraphBuilder& g, const Node& node, Value* s, bool are_shares) {
  Value* border = g.scalar_like(s, are_shares ? 0.5 : 0);
  Value* number = g.cast(g.squeeze(g.greater(s, border), {1}), DataType::kInt64);
  Value* first = are_shares ? g.sub(g.scalar_like(s, 1), s) : g.neg(s);
  Value* both = g.concat({first, s}, 1);
  if (!are_shares && node.string_attribute("post_transform") == "LOGISTIC") {
    both = g.op("Sigmoid", {both});
  }
  return {number, both};
}

std::optional<std::vector<Value*>> lower_classifier(const Node& node, GraphBuilder& g) {
  const Tensor labels = class_list(node);
  if (node.input(0) == nullptr || node.input(0)->dtype() == DataType::kUndefined) {
    return std::nullopt;
  }
  if (!labels.is_defined()) refuse_attributes(node, "there are no class labels");
  Forest forest = read_tree_lists(node, "class");
  const Tensor weights = required_numbers(node, "class_weights");
  if (weights.num_elements() != static_cast<std::int64_t>(forest.entries.size())) {
    refuse_attributes(node, fmt::format("{} class_weights for {} class_ids", weights.num_elements(),
                                        forest.entries.size()));
  }
  std::set<std::int64_t> classes;
  for (const LeafEntry& entry : forest.entries) classes.insert(entry.target);
  const bool has_one_score = labels.num_elements() == 2 && classes.size() == 1;
  if (has_one_score) {
    for (LeafEntry& entry : forest.entries) entry.target = 0;
  }
  const std::int64_t num_targets = has_one_score ? 1 : labels.num_elements();
  Value* scores =
      sum_leaves(g, node, forest, holder(node, "class_weights"), weights, num_targets, "SUM");
  scores = g.cast(add_base(g, node, scores, num_targets), DataType::kFloat32);
  std::vector<Value*> results;
  if (has_one_score) {
    const auto numbers = weights.to_doubles();
    const bool are_shares = std::ranges::all_of(numbers, [](double w) { return w >= 0; });
    results = classify_by_one(g, node, scores, are_shares);
  } else {
    results = {arg_max(g, scores),
               post_transform(g, scores, node.string_attribute("post_transform"))};
  }
  if (node.output(0) != nullptr) results[0] = pick_labels(g, node, results[0]);
  return results;
}

// Returns true for a TreeEnsemble as find_leaves() writes it, which the kernel runs.
bool is_leaf_finder(const Node& node, const Forest& forest) {
  const auto* weights = std::get_if<Tensor>(node.find_attribute("leaf_weights"));
  if (node.int_attribute("aggregate_function") != 1 || node.int_attribute("post_transform") != 0 ||
      node.int_attribute("n_targets", 0) != forest.num_trees()) {
    return false;
  }
  std::vector<double> next(forest.roots.size(), 0);
  const std::vector<double> numbers = weights->to_doubles();
  for (const LeafEntry& entry : forest.entries) {
    const std::int64_t tree = forest.tree_of_leaf[static_cast<std::size_t>(entry.leaf)];
    const double number = numbers[static_cast<std::size_t>(entry.number)];
    if (entry.target != tree || number != next[static_cast<std::size_t>(tree)]++) return false;
  }
  return true;
}

std::optional<std::vector<Value*>> lower_ensemble(const Node& node, GraphBuilder& g) {
  const Forest forest = read_tree_ensemble(node);
  if (node.input(0)->dtype() == DataType::kUndefined || is_leaf_finder(node, forest)) {
    return std::nullopt;
  }
  constexpr const char* kAggregates[] = {"AVERAGE", "SUM", "MIN", "MAX"};
  constexpr const char* kTransforms[] = {"NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT"};
  const auto* weights = std::get_if<Tensor>(node.find_attribute("leaf_weights"));
  Value* scores =
      sum_leaves(g, node, forest, "leaf_weights", *weights, node.int_attribute("n_targets", 1),
                 kAggregates[node.int_attribute("aggregate_function")]);
  return {{post_transform(g, scores, kTransforms[node.int_attribute("post_transform")])}};
}

opdef::AttributeSpec tensor_attribute(std::string_view name, bool required = false) {
  return {.name = name, .type = AttributeType::kTensor, .required = required};
}

// Integer lists of a TreeEnsemble: indices of nodes, leaves, features and targets; none may be
// empty.
opdef::AttributeSpec required_ints(std::string_view name) {
  opdef::AttributeSpec spec = list_attribute(name, AttributeType::kInts);
  spec.required = true;
  spec.min = 0;
  spec.max = std::numeric_limits<std::int32_t>::max();
  spec.min_count = 1;
  return spec;
}

std::vector<opdef::AttributeSpec> ensemble_attributes() {
  std::vector<opdef::AttributeSpec> specs = {
      {.name = "aggregate_function",
       .type = AttributeType::kInt,
       .min = 0,
       .max = 3,
       .default_value = std::int64_t{1}},
      {.name = "n_targets", .type = AttributeType::kInt, .min = 1, .max = 1 << 24},
      {.name = "post_transform",
       .type = AttributeType::kInt,
       .min = 0,
       .max = 4,
       .default_value = std::int64_t{0}},
      tensor_attribute("leaf_weights", true),
      tensor_attribute("membership_values"),
      tensor_attribute("nodes_hitrates"),
      tensor_attribute("nodes_modes", true),
      tensor_attribute("nodes_splits", true)};
  for (const std::string_view name :
       {"leaf_targetids", "nodes_falseleafs", "nodes_falsenodeids", "nodes_featureids",
        "nodes_trueleafs", "nodes_truenodeids", "tree_roots"}) {
    specs.push_back(required_ints(name));
  }
  specs.push_back(required_ints("nodes_missing_value_tracks_true"));
  specs.back().required = false;
  return specs;
}

// Attribute specifications shared by the regressor and the classifier.
std::vector<opdef::AttributeSpec> list_attributes() {
  std::vector<opdef::AttributeSpec> specs = {
      choice_attribute("post_transform", {"NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT"}),
      list_attribute("nodes_modes", AttributeType::kStrings)};
  for (const std::string_view name :
       {"nodes_falsenodeids", "nodes_featureids", "nodes_missing_value_tracks_true",
        "nodes_nodeids", "nodes_treeids", "nodes_truenodeids"}) {
    specs.push_back(list_attribute(name, AttributeType::kInts));
  }
  for (const std::string_view name : {"base_values", "nodes_hitrates", "nodes_values"}) {
    specs.push_back(list_attribute(name, AttributeType::kFloats));
  }
  for (const std::string_view name :
       {"base_values_as_tensor", "nodes_hitrates_as_tensor", "nodes_values_as_tensor"}) {
    specs.push_back(tensor_attribute(name));
  }
  return specs;
}

}  // namespace

void register_tree(opdef::OpRegistry& registry) {
  registry.add({.domain = kMl,
                .op_type = "TreeEnsemble",
                .since_version = 5,
                .attributes = ensemble_attributes(),
                .lower = lower_ensemble,
                .zero_gradient = true});
  std::vector<opdef::AttributeSpec> regressor = list_attributes();
  regressor.push_back(choice_attribute("aggregate_function", {"SUM", "AVERAGE", "MIN", "MAX"}));
  regressor.push_back({.name = "n_targets", .type = AttributeType::kInt, .min = 1, .max = 1 << 24});
  for (const std::string_view name : {"target_ids", "target_nodeids", "target_treeids"}) {
    regressor.push_back(list_attribute(name, AttributeType::kInts));
  }
  regressor.push_back(list_attribute("target_weights", AttributeType::kFloats));
  regressor.push_back(tensor_attribute("target_weights_as_tensor"));
  registry.add({.domain = kMl,
                .op_type = "TreeEnsembleRegressor",
                .since_version = 5,
                .attributes = std::move(regressor),
                .lower = lower_regressor});
  std::vector<opdef::AttributeSpec> classifier = list_attributes();
  for (const std::string_view name :
       {"class_ids", "class_nodeids", "class_treeids", "classlabels_int64s"}) {
    classifier.push_back(list_attribute(name, AttributeType::kInts));
  }
  classifier.push_back(list_attribute("classlabels_strings", AttributeType::kStrings));
  classifier.push_back(list_attribute("class_weights", AttributeType::kFloats));
  classifier.push_back(tensor_attribute("class_weights_as_tensor"));
  registry.add({.domain = kMl,
                .op_type = "TreeEnsembleClassifier",
                .since_version = 5,
                .attributes = std::move(classifier),
                .lower = lower_classifier});
}

}  // namespace onnxgrad::ops::tree_op
