#ifndef ONNXGRAD_PASSES_ELEMENTWISE_GROUPS_H_
#define ONNXGRAD_PASSES_ELEMENTWISE_GROUPS_H_

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "ir/graph.h"
#include "opdef/fused.h"
#include "opdef/registry.h"

namespace onnxgrad::passes {

/// A reduction that an onnxgrad.fused.Elementwise can end in. Pattern: ReduceSum, ReduceMean,
/// ReduceMax, ReduceMin of float32 or float64 over axes known when the plan is made.
struct Reduction {
  std::vector<std::int64_t> axes;  ///< sorted, of the input; only those longer than 1
  opdef::Fold fold = opdef::Fold::kSum;
  double factor = 1;  ///< applied to the result (1/n of a mean)
};

/// Matches a reduction; nullopt for other nodes, unknown shapes, empty tensors and no axes.
std::optional<Reduction> match_reduction(const ir::Node& node);

/// The role of a node in its group.
enum class Role : std::uint8_t {
  kMain,    ///< element-wise over the group's space
  kReduce,  ///< reduction of a main value
  kPost,    ///< element-wise over the reduced space
};

/// Nodes that become one onnxgrad.fused.Elementwise.
struct ElementwiseGroup {
  DataType compute = DataType::kUndefined;  ///< float32, float64, int64 or uint64
  Dims space = {};                          ///< shape of the main members
  std::vector<std::int64_t> reduce_axes =
      {};  ///< axes of `space` longer than 1; empty: no reduction
  std::vector<ir::Node*> main = {};
  std::vector<ir::Node*> reductions = {};
  std::vector<ir::Node*> post = {};

  std::size_t num_instructions = 0;  ///< upper bound, of their programs

  std::size_t size() const { return main.size() + reductions.size() + post.size(); }
  std::vector<ir::Node*>& members(Role role) {
    return role == Role::kMain ? main : role == Role::kReduce ? reductions : post;
  }
  /// Its nodes as groups of one.
  std::vector<ElementwiseGroup> singles() const;
  /// Any member of a non-empty group.
  const ir::Node* any_member() const { return main.empty() ? reductions.front() : main.front(); }
  /// Calls visit(node, role) for all members.
  template <class Visit>
  void for_each(const Visit& visit) const {
    for (ir::Node* node : main) visit(node, Role::kMain);
    for (ir::Node* node : reductions) visit(node, Role::kReduce);
    for (ir::Node* node : post) visit(node, Role::kPost);
  }
};

/// The type in which an element-wise node is computed, float32 for float16 and bfloat16; kUndefined
/// if no kernel supports it.
DataType compute_type(const ir::Node& node);

/// Partitions the element-wise nodes (and reductions over constant axes) of `graph`. With `merge`,
/// connected nodes share a group if fusing them leaves the graph acyclic; without, each
/// element-wise node is a separate group and reductions are left alone.
std::vector<ElementwiseGroup> group_elementwise(const ir::Graph& graph,
                                                const opdef::OpRegistry& registry, bool merge);

}  // namespace onnxgrad::passes

#endif  // ONNXGRAD_PASSES_ELEMENTWISE_GROUPS_H_
