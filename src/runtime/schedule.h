#ifndef ONNXGRAD_RUNTIME_SCHEDULE_H_
#define ONNXGRAD_RUNTIME_SCHEDULE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_set>
#include <vector>

#include "ir/graph.h"
#include "ir/pointer_map.h"
#include "opdef/registry.h"
#include "runtime/exchanges.h"
#include "runtime/views.h"

namespace onnxgrad::runtime {

/// An update of a state: after a step, input `input` of the graph gets the value of `value`.
struct StateUpdate {
  ir::Value* input = nullptr;
  ir::Value* value = nullptr;
};

/// The position in a schedule of scalars that updates wait for, such as the corrections of Adam.
enum class UpdateNumbers : std::uint8_t {
  kEarly,    ///< before all else: each update runs as soon as it has its gradient
  kInOrder,  ///< in the order of the graph
};

struct Schedule {
  std::vector<ir::Node*> order;
  /// Updates (by number) whose new value may be written over the old one: every other reader of the
  /// old value comes before the writer.
  std::unordered_set<std::size_t> in_place_updates;
};

/// Orders the nodes of a graph: dependencies first, writers of state as soon as they can run,
/// otherwise as in the graph. An update is in place where the added order leaves the graph acyclic.
/// Nodes that may throw come before all updates in place.
class Scheduler {
 public:
  /// The graph and `roots` outlive this and do not change. `throwing`: nodes that may throw.
  Scheduler(const ir::Graph& graph, const ViewRoots& roots, std::span<const StateUpdate> updates,
            std::span<const ir::Node* const> throwing = {});

  Schedule schedule(UpdateNumbers numbers) const;
  /// True if updates wait for scalars; if not, both schedules are equal.
  bool has_numbers() const { return has_numbers_; }

 private:
  using Nodes = std::unordered_set<std::size_t>;  // by position in the graph
  struct Edge {
    std::size_t to = 0;
    std::ptrdiff_t next = -1;
  };

  void add_edge(std::size_t from, std::size_t to);
  template <class Visit>
  void visit_successors(std::size_t from, const Visit& visit) const;
  void find_edges(std::span<const StateUpdate> updates);
  void order_exchanges(ExchangeRole::Kind kind);
  void find_checked(std::span<const ir::Node* const> throwing);
  void place_updates(std::span<const StateUpdate> updates);
  bool order_readers_first(const ir::Value* input, std::size_t writer);
  bool reaches(std::size_t from, std::size_t to);
  bool add_numbers(Nodes& urgent) const;
  std::vector<std::size_t> order(const Nodes& urgent) const;
  std::vector<ir::Node*> with_late_growth(const std::vector<std::size_t>& ordered,
                                          const Nodes& urgent) const;

  const ir::Graph& graph_;
  const ViewRoots& roots_;
  ir::PointerMap<ir::Node, std::size_t> position_;
  std::vector<ExchangeRole> roles_;
  std::vector<Edge> edges_;                            // lists, one per node
  std::vector<std::ptrdiff_t> first_;                  // edge of each node; -1: none
  std::vector<std::vector<std::size_t>> readers_;      // readers of old values of states
  ir::PointerMap<ir::Value, std::size_t> old_values_;  // states by old value
  std::vector<std::uint32_t> seen_;                    // last search that found each node
  std::uint32_t search_ = 0;
  std::vector<std::size_t> throwing_;
  std::vector<bool> is_before_throw_;  // per node: it or one that depends on it may throw
  std::unordered_set<std::size_t> in_place_;
  Nodes writers_;       // writers of updates in place
  Nodes with_numbers_;  // writers_, and scalars that they wait for
  bool has_numbers_ = false;
};

}  // namespace onnxgrad::runtime

#endif  // ONNXGRAD_RUNTIME_SCHEDULE_H_
