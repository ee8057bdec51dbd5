#ifndef ONNXGRAD_TRAIN_PRECISION_KINDS_H_
#define ONNXGRAD_TRAIN_PRECISION_KINDS_H_

#include <cstdint>
#include <string>
#include <unordered_set>
#include <vector>

#include "ir/uses.h"
#include "opdef/registry.h"
#include "train/precision/precision.h"

// The kinds of nodes that lower_precision() distinguishes.

namespace onnxgrad::train {

enum class NodeKind : std::uint8_t {
  kMatmul,
  kElementwise,
  kMovement,
  kReduction,  // with few results, which are never stored in 16 bits
  kShape,      // reads no elements
  kWide,       // all else: computed in float32, result 0 may have 16 bits
  kExcluded,   // excluded by the user
};

/// Whether a value is a float32 tensor of more than one element, as far as is known.
bool is_wide(const ir::Value* value);

class NodeKinds {
 public:
  /// The arguments outlive the object.
  NodeKinds(const ir::Graph& graph, const opdef::OpRegistry& registry, const PrecisionScope& scope,
            const std::vector<std::string>& float32_nodes, const ir::Uses& uses);

  NodeKind kind(const ir::Node& node) const;
  /// Number of a product's first operands that are multiplied; 0: it is no product.
  std::size_t num_operands(const ir::Node& node) const;
  bool has_matmul_inside(const ir::Node& node) const;
  /// True for nodes of an attention: from the products of queries and keys to that with the values,
  /// with nodes before and after that only move elements, and their gradients. Computed in float32
  /// from stored 16-bit values, since no matrix of scores need be stored where a kernel computes
  /// all of it (passes/fuse_attention.cpp).
  bool is_attention(const ir::Node* node) const { return attention_.contains(node); }
  /// True for nodes that rules write where an operand may have been broadcast: a sum over axes that
  /// are computed from shapes, and a Reshape. Mostly there are no such axes.
  static bool undoes_broadcast(const ir::Node& node);
  /// Checks the patterns of nodes. Throws: OptionError (a pattern without a match).
  void check_patterns(const ir::Graph& graph) const;

 private:
  using NodeSet = std::unordered_set<const ir::Node*>;
  static constexpr std::size_t kMostInAttention = 32;

  bool is_excluded(const ir::Node& node) const;
  bool matches(const ir::Node& node) const;
  void collect_names(const ir::Graph& graph, std::vector<std::string>& names) const;
  void find_attention(const ir::Graph& graph);
  bool joins(const ir::Node* node, NodeSet& found) const;
  bool find_scores(const ir::Value* value, NodeSet& found) const;
  bool find_sum(const ir::Value* value, NodeSet& found) const;

  const opdef::OpRegistry& registry_;
  const PrecisionScope& scope_;
  const std::vector<std::string>& patterns_;
  const ir::Uses& uses_;
  NodeSet attention_;
};

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_PRECISION_KINDS_H_
