#ifndef ONNXGRAD_OPS_ML_FOREST_H_
#define ONNXGRAD_OPS_ML_FOREST_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "ir/graph.h"
#include "onnxgrad/tensor.h"

// The decision trees of TreeEnsembleRegressor, TreeEnsembleClassifier and TreeEnsemble in one form.

namespace onnxgrad::ops {

/// What a node asks of its feature x; the numbers are those of TreeEnsemble's nodes_modes.
enum class SplitMode : std::uint8_t {
  kLessOrEqual,
  kLess,
  kGreaterOrEqual,
  kGreater,
  kEqual,
  kNotEqual,
  kMember,
};

/// A node that is no leaf. A child is a node, or a leaf if its flag says so.
struct Split {
  SplitMode mode = SplitMode::kLessOrEqual;
  std::int64_t feature = 0;
  double value = 0;
  std::int64_t child[2] = {0, 0};  ///< where the answer is no, yes
  bool is_leaf[2] = {false, false};
  bool missing_is_yes = false;
  std::vector<double> members = {};  ///< of kMember
};

/// One number that a leaf adds to an output.
struct LeafEntry {
  std::int64_t leaf = 0;
  std::int64_t target = 0;
  std::int64_t number = 0;  ///< of the weight in the attribute
};

struct Forest {
  std::vector<Split> splits;
  std::vector<std::int64_t> roots;         ///< of the trees; a tree of one leaf has a split, too
  std::vector<std::int64_t> tree_of_leaf;  ///< per leaf
  std::vector<LeafEntry> entries;          ///< in the order of the weights

  std::int64_t num_trees() const { return static_cast<std::int64_t>(roots.size()); }
  std::int64_t num_leaves() const { return static_cast<std::int64_t>(tree_of_leaf.size()); }
};

/// The trees of a TreeEnsemble. Throws: ModelError (lists that do not fit each other, numbers out
/// of range, children that form a cycle).
Forest read_tree_ensemble(const ir::Node& node);
/// The trees of a TreeEnsembleRegressor (`targets` is "target") or TreeEnsembleClassifier
/// ("class").
Forest read_tree_lists(const ir::Node& node, std::string_view targets);

/// The first of the attributes `name` and `name`_as_tensor that is there; undefined if none is.
Tensor tree_numbers(const ir::Node& node, std::string_view name);

/// The attributes of a TreeEnsemble with an output per tree: the number that the leaf has among
/// those of its tree. `dtype` is that of its input.
std::vector<ir::Attribute> leaf_finder(const Forest& forest, DataType dtype);

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_ML_FOREST_H_
