#include "ops/ml/forest.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <utility>

#include "ops/ml/post_transform.h"

namespace onnxgrad::ops {
namespace {

using ir::Node;

std::vector<std::string> strings_of(const Node& node, std::string_view name) {
  const ir::AttributeValue* value = node.find_attribute(name);
  const auto* list = value == nullptr ? nullptr : std::get_if<std::vector<std::string>>(value);
  return list == nullptr ? std::vector<std::string>() : *list;
}

void check_length(const Node& node, std::string_view name, std::size_t given,
                  std::size_t expected) {
  if (given == expected) return;
  refuse_attributes(node, fmt::format("{} has {} elements, expected {}", name, given, expected));
}

// Checks that every node and leaf has exactly one parent, so that walks end.
void check_shape(const Node& node, const Forest& forest) {
  if (forest.roots.empty()) refuse_attributes(node, "there is no tree");
  std::vector<bool> seen(forest.splits.size(), false);
  std::vector<bool> seen_leaf(forest.tree_of_leaf.size(), false);
  std::vector<std::int64_t> stack = forest.roots;
  const auto visit = [&](std::vector<bool>& known, std::int64_t place) {
    if (place < 0 || place >= std::ssize(known)) {
      refuse_attributes(node, fmt::format("a tree has a child {} that is not there", place));
    }
    if (known[static_cast<std::size_t>(place)]) {
      refuse_attributes(node, fmt::format("two ways lead to the node or leaf {}", place));
    }
    known[static_cast<std::size_t>(place)] = true;
  };
  while (!stack.empty()) {
    const std::int64_t place = stack.back();
    stack.pop_back();
    visit(seen, place);
    const Split& split = forest.splits[static_cast<std::size_t>(place)];
    if (split.feature < 0) refuse_attributes(node, "a feature has a negative number");
    const bool is_single = split.is_leaf[0] && split.is_leaf[1] && split.child[0] == split.child[1];
    for (int side = 0; side < (is_single ? 1 : 2); ++side) {
      if (split.is_leaf[side]) {
        visit(seen_leaf, split.child[side]);
      } else {
        stack.push_back(split.child[side]);
      }
    }
  }
}

// Records the tree of each leaf.
void number_leaves(Forest& forest) {
  for (std::size_t tree = 0; tree < forest.roots.size(); ++tree) {
    std::vector<std::int64_t> stack = {forest.roots[tree]};
    while (!stack.empty()) {
      const Split& split = forest.splits[static_cast<std::size_t>(stack.back())];
      stack.pop_back();
      for (int side = 0; side < 2; ++side) {
        if (split.is_leaf[side]) {
          forest.tree_of_leaf[static_cast<std::size_t>(split.child[side])] =
              static_cast<std::int64_t>(tree);
        } else {
          stack.push_back(split.child[side]);
        }
      }
    }
  }
}

Tensor tensor_of(const Node& node, std::string_view name) {
  const ir::AttributeValue* value = node.find_attribute(name);
  const auto* tensor = value == nullptr ? nullptr : std::get_if<Tensor>(value);
  return tensor == nullptr ? Tensor() : *tensor;
}

SplitMode mode_of(const Node& node, const std::string& name) {
  static const std::map<std::string_view, SplitMode> kModes = {
      {"BRANCH_LEQ", SplitMode::kLessOrEqual},    {"BRANCH_LT", SplitMode::kLess},
      {"BRANCH_GTE", SplitMode::kGreaterOrEqual}, {"BRANCH_GT", SplitMode::kGreater},
      {"BRANCH_EQ", SplitMode::kEqual},           {"BRANCH_NEQ", SplitMode::kNotEqual}};
  const auto found = kModes.find(name);
  if (found == kModes.end()) refuse_attributes(node, "nodes_modes has '" + name + "'");
  return found->second;
}

using NodeKey = std::pair<std::int64_t, std::int64_t>;  // tree, node

// Position of a listed node: index among the splits or among the leaves.
struct Place {
  std::int64_t number = 0;
  bool is_leaf = false;
};

void add_single_leaf(Forest& forest, std::int64_t leaf) {
  forest.roots.push_back(static_cast<std::int64_t>(forest.splits.size()));
  forest.splits.push_back({.child = {leaf, leaf}, .is_leaf = {true, true}});
}

}  // namespace

Tensor tree_numbers(const Node& node, std::string_view name) {
  const auto list = node.floats_attribute(name);
  if (!list.empty()) return Tensor::from(list, {static_cast<std::int64_t>(list.size())});
  return tensor_of(node, std::string(name) + "_as_tensor");
}

Forest read_tree_lists(const Node& node, std::string_view targets) {
  const auto trees = node.ints_attribute("nodes_treeids");
  const auto ids = node.ints_attribute("nodes_nodeids");
  const auto features = node.ints_attribute("nodes_featureids");
  const auto yes = node.ints_attribute("nodes_truenodeids");
  const auto no = node.ints_attribute("nodes_falsenodeids");
  const auto missing = node.ints_attribute("nodes_missing_value_tracks_true");
  const auto modes = strings_of(node, "nodes_modes");
  const Tensor given = tree_numbers(node, "nodes_values");
  const std::vector<double> values =
      given.is_defined() ? given.to_doubles() : std::vector<double>();
  const std::size_t count = trees.size();
  check_length(node, "nodes_nodeids", ids.size(), count);
  check_length(node, "nodes_featureids", features.size(), count);
  check_length(node, "nodes_truenodeids", yes.size(), count);
  check_length(node, "nodes_falsenodeids", no.size(), count);
  check_length(node, "nodes_modes", modes.size(), count);
  check_length(node, "nodes_values", values.size(), count);
  if (!missing.empty())
    check_length(node, "nodes_missing_value_tracks_true", missing.size(), count);

  Forest forest;
  std::map<NodeKey, Place> places;
  std::int64_t num_splits = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const bool is_leaf = modes[i] == "LEAF";
    const Place place{.number = is_leaf ? forest.num_leaves() : num_splits, .is_leaf = is_leaf};
    if (!places.emplace(NodeKey{trees[i], ids[i]}, place).second) {
      refuse_attributes(node, fmt::format("tree {} has two nodes {}", trees[i], ids[i]));
    }
    if (is_leaf) {
      forest.tree_of_leaf.push_back(0);
    } else {
      ++num_splits;
    }
  }
  const auto child = [&](std::size_t i, std::int64_t id) {
    const auto found = places.find({trees[i], id});
    if (found != places.end()) return found->second;
    refuse_attributes(node, fmt::format("tree {} has no node {}", trees[i], id));
  };
  for (std::size_t i = 0; i < count; ++i) {
    if (modes[i] == "LEAF") continue;
    const Place sides[2] = {child(i, no[i]), child(i, yes[i])};
    forest.splits.push_back({.mode = mode_of(node, modes[i]),
                             .feature = features[i],
                             .value = values[i],
                             .child = {sides[0].number, sides[1].number},
                             .is_leaf = {sides[0].is_leaf, sides[1].is_leaf},
                             .missing_is_yes = !missing.empty() && missing[i] != 0});
  }
  std::map<std::int64_t, bool> has_root;
  for (std::size_t i = 0; i < count; ++i) {  // first node of each tree
    if (!has_root.emplace(trees[i], true).second) continue;
    const Place place = places.at({trees[i], ids[i]});
    if (place.is_leaf) {
      add_single_leaf(forest, place.number);
    } else {
      forest.roots.push_back(place.number);
    }
  }
  check_shape(node, forest);
  number_leaves(forest);

  const std::string prefix(targets);
  const auto target_trees = node.ints_attribute(prefix + "_treeids");
  const auto target_nodes = node.ints_attribute(prefix + "_nodeids");
  const auto target_ids = node.ints_attribute(prefix + "_ids");
  check_length(node, prefix + "_nodeids", target_nodes.size(), target_trees.size());
  check_length(node, prefix + "_ids", target_ids.size(), target_trees.size());
  for (std::size_t i = 0; i < target_trees.size(); ++i) {
    const auto found = places.find({target_trees[i], target_nodes[i]});
    if (found == places.end() || !found->second.is_leaf) {
      refuse_attributes(node, fmt::format("{}_nodeids: tree {} has no leaf {}", prefix,
                                          target_trees[i], target_nodes[i]));
    }
    forest.entries.push_back({.leaf = found->second.number,
                              .target = target_ids[i],
                              .number = static_cast<std::int64_t>(i)});
  }
  return forest;
}

Forest read_tree_ensemble(const Node& node) {
  const auto features = node.ints_attribute("nodes_featureids");
  const auto yes = node.ints_attribute("nodes_truenodeids");
  const auto no = node.ints_attribute("nodes_falsenodeids");
  const auto yes_leaf = node.ints_attribute("nodes_trueleafs");
  const auto no_leaf = node.ints_attribute("nodes_falseleafs");
  const auto missing = node.ints_attribute("nodes_missing_value_tracks_true");
  const auto targets = node.ints_attribute("leaf_targetids");
  const Tensor modes = tensor_of(node, "nodes_modes");
  const Tensor values = tensor_of(node, "nodes_splits");
  const Tensor members = tensor_of(node, "membership_values");
  const std::size_t count = features.size();
  const auto length = [](const Tensor& tensor) {
    return tensor.is_defined() ? static_cast<std::size_t>(tensor.num_elements()) : 0;
  };
  check_length(node, "nodes_truenodeids", yes.size(), count);
  check_length(node, "nodes_falsenodeids", no.size(), count);
  check_length(node, "nodes_trueleafs", yes_leaf.size(), count);
  check_length(node, "nodes_falseleafs", no_leaf.size(), count);
  check_length(node, "nodes_modes", length(modes), count);
  check_length(node, "nodes_splits", length(values), count);
  check_length(node, "leaf_weights", length(tensor_of(node, "leaf_weights")), targets.size());
  if (!missing.empty())
    check_length(node, "nodes_missing_value_tracks_true", missing.size(), count);

  Forest forest;
  forest.roots = node.ints_attribute("tree_roots");
  forest.tree_of_leaf.resize(targets.size());
  const auto mode_numbers = count == 0 ? std::vector<std::int64_t>() : modes.to_int64s();
  const auto numbers = count == 0 ? std::vector<double>() : values.to_doubles();
  const auto sets = members.is_defined() ? members.to_doubles() : std::vector<double>();
  std::size_t next = 0;  // position in `sets`; each set ends with NaN
  for (std::size_t i = 0; i < count; ++i) {
    if (mode_numbers[i] < 0 || mode_numbers[i] > static_cast<int>(SplitMode::kMember)) {
      refuse_attributes(node, fmt::format("nodes_modes has {}", mode_numbers[i]));
    }
    Split split{.mode = static_cast<SplitMode>(mode_numbers[i]),
                .feature = features[i],
                .value = numbers[i],
                .child = {no[i], yes[i]},
                .is_leaf = {no_leaf[i] != 0, yes_leaf[i] != 0},
                .missing_is_yes = !missing.empty() && missing[i] != 0};
    if (split.mode == SplitMode::kMember) {
      for (; next < sets.size() && !std::isnan(sets[next]); ++next) {
        split.members.push_back(sets[next]);
      }
      ++next;
      std::ranges::sort(split.members);
    }
    forest.splits.push_back(std::move(split));
  }
  check_shape(node, forest);
  number_leaves(forest);
  for (std::size_t i = 0; i < targets.size(); ++i) {
    const auto number = static_cast<std::int64_t>(i);
    forest.entries.push_back({.leaf = number, .target = targets[i], .number = number});
  }
  return forest;
}

std::vector<ir::Attribute> leaf_finder(const Forest& forest, DataType dtype) {
  const auto count = static_cast<std::int64_t>(forest.splits.size());
  std::vector<std::int64_t> features;
  std::vector<std::int64_t> child[2];
  std::vector<std::int64_t> leaf[2];
  std::vector<std::int64_t> missing;
  std::vector<std::uint8_t> modes;
  std::vector<double> values;
  std::vector<double> members;
  for (const Split& split : forest.splits) {
    features.push_back(split.feature);
    modes.push_back(static_cast<std::uint8_t>(split.mode));
    values.push_back(split.value);
    missing.push_back(split.missing_is_yes ? 1 : 0);
    for (int side = 0; side < 2; ++side) {
      child[side].push_back(split.child[side]);
      leaf[side].push_back(split.is_leaf[side] ? 1 : 0);
    }
    if (split.mode != SplitMode::kMember) continue;
    members.insert(members.end(), split.members.begin(), split.members.end());
    members.push_back(std::numeric_limits<double>::quiet_NaN());
  }
  std::vector<std::int64_t> next(forest.roots.size(), 0);
  std::vector<double> numbers;
  for (const std::int64_t tree : forest.tree_of_leaf) {
    numbers.push_back(static_cast<double>(next[static_cast<std::size_t>(tree)]++));
  }
  std::vector<ir::Attribute> attributes = {
      {"aggregate_function", std::int64_t{1}},
      {"leaf_targetids", forest.tree_of_leaf},
      {"leaf_weights", Tensor::from(numbers, {forest.num_leaves()}).cast(dtype)},
      {"n_targets", forest.num_trees()},
      {"nodes_falseleafs", leaf[0]},
      {"nodes_falsenodeids", child[0]},
      {"nodes_featureids", features},
      {"nodes_missing_value_tracks_true", missing},
      {"nodes_modes", Tensor::from(modes, {count})},
      {"nodes_splits", Tensor::from(values, {count}).cast(dtype)},
      {"nodes_trueleafs", leaf[1]},
      {"nodes_truenodeids", child[1]},
      {"post_transform", std::int64_t{0}},
      {"tree_roots", forest.roots}};
  if (!members.empty()) {
    const auto length = static_cast<std::int64_t>(members.size());
    attributes.push_back({"membership_values", Tensor::from(members, {length}).cast(dtype)});
  }
  return attributes;
}

}  // namespace onnxgrad::ops
