#ifndef ONNXGRAD_OPS_ML_FOREST_H_
#define ONNXGRAD_OPS_ML_FOREST_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "ir/graph.h"
#include "onnxgrad/tensor.h"

// Decision trees of TreeEnsembleRegressor, TreeEnsembleClassifier and TreeEnsemble in one form.

namespace onnxgrad::ops {

/// Comparison of a node with its feature x; the values are those of TreeEnsemble's nodes_modes.
enum class SplitMode : std::uint8_t {
  kLessOrEqual,
  kLess,
  kGreaterOrEqual,
  kGreater,
  kEqual,
  kNotEqual,
  kMember,
};

/// Inner node of a tree. A child is an inner node, or a leaf if its flag says so.
struct Split {
  SplitMode mode = SplitMode::kLessOrEqual;
  std::int64_t feature = 0;
  double value = 0;
  std::int64_t child[2] = {0, 0};  ///< children for false and true
  bool is_leaf[2] = {false, false};
  bool missing_is_yes = false;
  std::vector<double> members = {};  ///< set of values of kMember
};

/// Weight that a leaf adds to an output.
struct LeafEntry {
  std::int64_t leaf = 0;
  std::int64_t target = 0;
  std::int64_t number = 0;  ///< index of the weight in the attribute
};

struct Forest {
  std::vector<Split> splits;
  std::vector<std::int64_t> roots;         ///< root of each tree, a split even for a single leaf
  std::vector<std::int64_t> tree_of_leaf;  ///< tree of each leaf
  std::vector<LeafEntry> entries;          ///< entries in the order of the weights

  std::int64_t num_trees() const { return static_cast<std::int64_t>(roots.size()); }
  std::int64_t num_leaves() const { return static_cast<std::int64_t>(tree_of_leaf.size()); }
};

/// Reads the trees of a TreeEnsemble. Throws: ModelError (lists of different lengths, indices out
/// of range, children that form a cycle).
Forest read_tree_ensemble(const ir::Node& node);
/// Reads the trees of a TreeEnsembleRegressor (`targets` is "target") or TreeEnsembleClassifier
/// ("class").
Forest read_tree_lists(const ir::Node& node, std::string_view targets);

/// Returns attribute `name` or, if absent, `name`_as_tensor; undefined if both are absent.
Tensor tree_numbers(const ir::Node& node, std::string_view name);

/// Returns the attributes of a TreeEnsemble with one output per tree: the index of the leaf within
/// its tree. `dtype` is the dtype of its input.
std::vector<ir::Attribute> leaf_finder(const Forest& forest, DataType dtype);

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_ML_FOREST_H_
