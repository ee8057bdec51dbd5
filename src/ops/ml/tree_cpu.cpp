#include <algorithm>
#include <cmath>
#include <utility>

#include "device/cpu/threads.h"
#include "onnxgrad/error.h"
#include "opdef/kernel.h"
#include "ops/kernel_support.h"
#include "ops/ml/forest.h"

// Kernel of TreeEnsemble: the sum of the leaf weights per target. All rows traverse one tree after
// another, so that the nodes of a tree stay in the cache.

namespace onnxgrad::ops::tree_cpu {
namespace {

// Split with the fields that a traversal reads; negative children are leaves: child = ~leaf.
template <class T>
struct WalkNode {
  T value = 0;
  std::int32_t feature = 0;
  std::int32_t child[2] = {0, 0};
  SplitMode mode = SplitMode::kLessOrEqual;
  bool missing_is_yes = false;
  std::int32_t first_member = 0;
  std::int32_t num_members = 0;
};

template <class T>
struct TreeData {
  std::vector<WalkNode<T>> nodes;
  std::vector<std::int32_t> roots;
  std::vector<T> members;
  // Range of the entries of leaf i: [first_entry[i], first_entry[i + 1]).
  std::vector<std::int32_t> first_entry;
  std::vector<std::pair<std::int32_t, T>> entries;  // (target, weight)
  bool has_plain_splits = false;                    // all splits are kLessOrEqual
  std::int64_t rows = 0;
  std::int64_t features = 0;
  std::int64_t targets = 0;
  int threads = 1;
};

template <class T>
bool answers_yes(const TreeData<T>& trees, const WalkNode<T>& node, T x) {
  if (std::isnan(x) && node.missing_is_yes) return true;
  switch (node.mode) {
    case SplitMode::kLessOrEqual:
      return x <= node.value;
    case SplitMode::kLess:
      return x < node.value;
    case SplitMode::kGreaterOrEqual:
      return x >= node.value;
    case SplitMode::kGreater:
      return x > node.value;
    case SplitMode::kEqual:
      return x == node.value;
    case SplitMode::kNotEqual:
      return x != node.value;
    case SplitMode::kMember: {
      const auto begin = trees.members.begin() + node.first_member;
      return std::binary_search(begin, begin + node.num_members, x);
    }
  }
  return false;
}

template <class T, bool kPlain>
std::int32_t find_leaf(const TreeData<T>& trees, std::int32_t place, const T* x) {
  do {
    const WalkNode<T>& node = trees.nodes[static_cast<std::size_t>(place)];
    const T value = x[node.feature];
    bool is_yes = false;
    if constexpr (kPlain) {
      is_yes = value <= node.value || (node.missing_is_yes && std::isnan(value));
    } else {
      is_yes = answers_yes(trees, node, value);
    }
    place = node.child[is_yes ? 1 : 0];
  } while (place >= 0);
  return ~place;
}

template <class T, bool kPlain>
void walk_rows(const TreeData<T>& trees, const T* x, T* y, std::int64_t first, std::int64_t last) {
  for (const std::int32_t root : trees.roots) {
    for (std::int64_t row = first; row < last; ++row) {
      const auto leaf =
          static_cast<std::size_t>(find_leaf<T, kPlain>(trees, root, x + row * trees.features));
      for (auto e = trees.first_entry[leaf]; e < trees.first_entry[leaf + 1]; ++e) {
        const auto& [target, weight] = trees.entries[static_cast<std::size_t>(e)];
        y[row * trees.targets + target] += weight;
      }
    }
  }
}

// x: [rows, features], y: [rows, targets].
template <class T>
void run_trees(const TreeData<T>& trees, KernelArgs args) {
  const auto* x = args.at<T>(0);
  auto* y = args.at<T>(1);
  std::fill_n(y, trees.rows * trees.targets, T{0});
  constexpr std::int64_t kBlock = 64;
  const std::int64_t blocks = ceil_div(trees.rows, kBlock);
  const auto walk = trees.has_plain_splits ? walk_rows<T, true> : walk_rows<T, false>;
  device::parallel_for(trees.threads, blocks, [&](std::int64_t b) {
    walk(trees, x, y, b * kBlock, std::min(trees.rows, (b + 1) * kBlock));
  });
}

template <class T>
TreeData<T> make_data(const ir::Node& node, const Forest& forest) {
  TreeData<T> data;
  data.has_plain_splits = true;
  for (const Split& split : forest.splits) {
    WalkNode<T> walk{.value = static_cast<T>(split.value),
                     .feature = static_cast<std::int32_t>(split.feature),
                     .child = {},
                     .mode = split.mode,
                     .missing_is_yes = split.missing_is_yes,
                     .first_member = static_cast<std::int32_t>(data.members.size()),
                     .num_members = static_cast<std::int32_t>(split.members.size())};
    for (int side = 0; side < 2; ++side) {
      const auto child = static_cast<std::int32_t>(split.child[side]);
      walk.child[side] = split.is_leaf[side] ? ~child : child;
    }
    for (const double member : split.members) data.members.push_back(static_cast<T>(member));
    data.has_plain_splits = data.has_plain_splits && split.mode == SplitMode::kLessOrEqual;
    data.nodes.push_back(walk);
  }
  for (const std::int64_t root : forest.roots) {
    data.roots.push_back(static_cast<std::int32_t>(root));
  }
  const auto weights = std::get<Tensor>(*node.find_attribute("leaf_weights")).to_doubles();
  std::vector<LeafEntry> entries = forest.entries;
  std::ranges::stable_sort(entries, {}, &LeafEntry::leaf);
  for (const LeafEntry& entry : entries) {
    while (std::ssize(data.first_entry) <= entry.leaf) {
      data.first_entry.push_back(static_cast<std::int32_t>(data.entries.size()));
    }
    data.entries.emplace_back(static_cast<std::int32_t>(entry.target),
                              static_cast<T>(weights[static_cast<std::size_t>(entry.number)]));
  }
  while (std::ssize(data.first_entry) <= forest.num_leaves()) {
    data.first_entry.push_back(static_cast<std::int32_t>(data.entries.size()));
  }
  return data;
}

template <class T>
KernelOffer make_trees(const KernelRequest& request, const Forest& forest) {
  TreeData<T> data = make_data<T>(request.node, forest);
  data.rows = request.inputs[0].dims[0];
  data.features = request.inputs[0].dims[1];
  data.targets = request.outputs[0].dims[1];
  data.threads = request.threads;
  const double trees = std::max(static_cast<double>(data.roots.size()), 1.0);
  const double levels = std::log2(1 + static_cast<double>(data.nodes.size()) / trees);
  const double comparisons = static_cast<double>(data.rows) * trees * levels;
  KernelOffer offer = prepared<run_trees<T>>(std::move(data), "trees, block by block of rows");
  offer.kernel.flops = comparisons;
  return offer;
}

KernelOffer offer_trees(const KernelRequest& request) {
  const TensorDesc& x = request.inputs[0];
  if (x.dtype != DataType::kFloat32 && x.dtype != DataType::kFloat64) {
    return decline_dtype(request, x.dtype);
  }
  const ir::Node& node = request.node;
  if (node.int_attribute("aggregate_function") != 1 || node.int_attribute("post_transform") != 0) {
    return KernelOffer::decline("it sums leaves only");
  }
  const Forest forest = read_tree_ensemble(node);
  if (x.dims.rank() != 2) {
    throw ShapeError({.what = "input X has shape " + x.dims.to_string() + ", expected [N, F]",
                      .where = {.node = node.name, .op_type = node.op_type},
                      .hint = "Give a matrix with a row per sample."});
  }
  for (const Split& split : forest.splits) {
    if (split.feature < x.dims[1]) continue;
    throw ShapeError({.what = "a tree reads feature " + std::to_string(split.feature) +
                              ", input X has " + std::to_string(x.dims[1]),
                      .where = {.node = node.name, .op_type = node.op_type, .value = "X"},
                      .hint = "Give all features that the trees were trained on."});
  }
  const std::int64_t targets = node.int_attribute("n_targets", 1);
  for (const LeafEntry& entry : forest.entries) {
    if (entry.target >= 0 && entry.target < targets) continue;
    throw ModelError({.what = "a leaf has target " + std::to_string(entry.target) + " of " +
                              std::to_string(targets),
                      .where = {.node = node.name, .op_type = node.op_type},
                      .hint = "Export the model again: its attributes are inconsistent."});
  }
  return x.dtype == DataType::kFloat32 ? make_trees<float>(request, forest)
                                       : make_trees<double>(request, forest);
}

}  // namespace

void register_tree_cpu(opdef::KernelRegistry& registry) {
  registry.add("ai.onnx.ml", "TreeEnsemble", 0, offer_trees);
}

}  // namespace onnxgrad::ops::tree_cpu
