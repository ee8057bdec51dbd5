#ifndef ONNXGRAD_PASSES_CONTRACTION_H_
#define ONNXGRAD_PASSES_CONTRACTION_H_

#include <cstdint>
#include <vector>

#include "ir/graph.h"
#include "ir/pointer_map.h"

namespace onnxgrad::passes {

/// A partition of the nodes of a graph into units, each of which is to become one node; initially
/// every node is a separate unit. The graph of units stays acyclic.
///
/// Every unit has a position, after those of the units that it reads. A merge examines and
/// moves only what is between the two positions (after Pearce and Kelly, "A dynamic topological
/// sort algorithm for directed acyclic graphs", 2006).
class Contraction {
 public:
  /// `graph.nodes` are in topological order and do not change meanwhile.
  explicit Contraction(const ir::Graph& graph);

  /// Merges the units of `a` and `b`. Returns false, changing nothing, if a path leads from one
  /// of them through a third unit to the other, or if more than kMaxSearched reads would have to be
  /// followed to rule that out.
  bool merge(const ir::Node* a, const ir::Node* b);

  static constexpr std::size_t kMaxSearched = 2048;

 private:
  using Unit = std::uint32_t;
  using Nodes = std::vector<std::uint32_t>;  // positions of nodes in the graph

  /// Collects the units reachable from `start` through `neighbours` that `is_between` admits.
  /// False if one of them leads to `forbidden`, or after too many steps.
  template <class IsBetween>
  bool search(Unit start, Unit forbidden, const std::vector<Nodes>& neighbours,
              const IsBetween& is_between, std::vector<Unit>& found);
  void unite(Unit to, Unit from);

  ir::PointerMap<ir::Node, std::uint32_t> position_;
  std::vector<Nodes> producers_;  // producers of each node
  std::vector<Nodes> readers_;
  std::vector<Unit> unit_of_;   // unit of each node
  std::vector<Nodes> members_;  // nodes of each unit
  std::vector<std::uint32_t> place_;
  std::vector<std::uint32_t> seen_;  // last search that found each unit
  std::uint32_t search_ = 0;
  std::vector<Unit> before_;  // during a merge: units that the later one needs
  std::vector<Unit> behind_;
};

}  // namespace onnxgrad::passes

#endif  // ONNXGRAD_PASSES_CONTRACTION_H_
