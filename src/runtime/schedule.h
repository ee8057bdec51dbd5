#ifndef ONNXGRAD_RUNTIME_SCHEDULE_H_
#define ONNXGRAD_RUNTIME_SCHEDULE_H_

#include <cstdint>
#include <span>
#include <unordered_set>
#include <vector>

#include "ir/graph.h"
#include "opdef/registry.h"

namespace onnxgrad::runtime {

/// After a step, state input `input` of the graph gets the value of `value`.
struct StateUpdate {
  ir::Value* input = nullptr;
  ir::Value* value = nullptr;
};

/// When numbers are computed that updates wait for, such as the corrections of Adam.
enum class UpdateNumbers : std::uint8_t {
  kEarly,    ///< before all else: each update runs as soon as it has its gradient
  kInOrder,  ///< as in the graph
};

struct Schedule {
  std::vector<ir::Node*> order;
  bool has_numbers = false;  ///< updates wait for numbers
  /// Updates (by number) whose new value may be written over the old one: every other reader of the
  /// old value comes before the writer.
  std::unordered_set<std::size_t> in_place_updates;
};

/// The value whose bytes `value` shows: follows views.
const ir::Value* view_root(const ir::Value* value, const opdef::OpRegistry& registry);

/// Orders the nodes: dependencies first, writers of state as soon as they can run, otherwise as in
/// the graph. An update is in place where the added order leaves the graph acyclic.
Schedule make_schedule(const ir::Graph& graph, const opdef::OpRegistry& registry,
                       std::span<const StateUpdate> updates,
                       UpdateNumbers numbers = UpdateNumbers::kEarly);

}  // namespace onnxgrad::runtime

#endif  // ONNXGRAD_RUNTIME_SCHEDULE_H_
