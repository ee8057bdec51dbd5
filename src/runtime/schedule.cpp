#include "runtime/schedule.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <iterator>
#include <map>
#include <queue>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "runtime/exchanges.h"

namespace onnxgrad::runtime {
namespace {

class Scheduler {
 public:
  Scheduler(const ir::Graph& graph, const opdef::OpRegistry& registry)
      : graph_(graph), registry_(registry), successors_(graph.nodes.size()) {
    for (std::size_t i = 0; i < graph.nodes.size(); ++i) position_.emplace(graph.nodes[i], i);
    for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
      for (const ir::Value* input : graph.nodes[i]->inputs) {
        if (input == nullptr) continue;
        readers_[view_root(input, registry)].push_back(i);
        if (const auto at = position_.find(input->producer); at != position_.end()) {
          successors_[at->second].push_back(i);
        }
      }
    }
  }

  // The node that writes the bytes of `value`; none for inputs and constants.
  std::optional<std::size_t> writer(const ir::Value* value) const {
    const auto at = position_.find(view_root(value, registry_)->producer);
    if (at == position_.end()) return std::nullopt;
    return at->second;
  }

  // Puts every other reader of `input` before `writer_at`, if that makes no cycle.
  bool order_readers_first(const ir::Value* input, std::size_t writer_at) {
    std::vector<std::size_t> before;
    for (const std::size_t reader : readers_[input]) {
      // A view of the old value is not a reader itself: nodes that read through it are listed too.
      const opdef::OpDef* def = registry_.find(*graph_.nodes[reader]);
      if (reader == writer_at || (def != nullptr && def->is_view())) continue;
      if (reaches(writer_at, reader)) return false;
      before.push_back(reader);
    }
    for (const std::size_t reader : before) successors_[reader].push_back(writer_at);
    return true;
  }

  // Puts the exchanges of a kind in the order of their numbers.
  void order_exchanges(ExchangeRole::Kind kind) {
    std::map<std::int64_t, std::size_t> by_number;
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) {
      const ExchangeRole role = exchange_role(*graph_.nodes[i]);
      if (role.kind == kind) by_number.emplace(role.number, i);
    }
    const std::size_t* before = nullptr;
    for (const auto& [number, at] : by_number) {
      if (before != nullptr) successors_[*before].push_back(at);
      before = &at;
    }
  }

  // Numbers that an update of a state waits for, such as the corrections of Adam, are as urgent as
  // the update: what that is the last to read would live longer.
  // True if there are any.
  bool add_numbers(std::unordered_set<std::size_t>& urgent) const {
    const std::size_t before = urgent.size();
    std::vector<std::size_t> work(urgent.begin(), urgent.end());
    while (!work.empty()) {
      const ir::Node& node = *graph_.nodes[work.back()];
      work.pop_back();
      for (const ir::Value* input : node.inputs) {
        const auto at = input == nullptr ? position_.end() : position_.find(input->producer);
        if (at == position_.end() || !makes_numbers(*at->first)) continue;
        if (urgent.insert(at->second).second) work.push_back(at->second);
      }
    }
    return urgent.size() > before;
  }

  std::vector<ir::Node*> order(const std::unordered_set<std::size_t>& urgent) const {
    const std::size_t count = graph_.nodes.size();
    std::vector<std::size_t> missing(count, 0);
    for (const auto& list : successors_) {
      for (const std::size_t to : list) ++missing[to];
    }
    using Entry = std::pair<int, std::size_t>;  // (0: urgent, 2: as late as possible; position)
    std::priority_queue<Entry, std::vector<Entry>, std::greater<>> ready;
    const auto add_ready = [&](std::size_t i) {
      const ExchangeRole::Kind kind = exchange_role(*graph_.nodes[i]).kind;
      const bool is_first = kind == ExchangeRole::Kind::kStart || urgent.contains(i);
      ready.emplace(kind == ExchangeRole::Kind::kFinish ? 2 : is_first ? 0 : 1, i);
    };
    for (std::size_t i = 0; i < count; ++i) {
      if (missing[i] == 0) add_ready(i);
    }
    std::vector<ir::Node*> result;
    result.reserve(count);
    while (!ready.empty()) {
      const std::size_t i = ready.top().second;
      ready.pop();
      result.push_back(graph_.nodes[i]);
      for (const std::size_t next : successors_[i]) {
        if (--missing[next] == 0) add_ready(next);
      }
    }
    const bool is_acyclic = result.size() == count;
    ONNXGRAD_ASSERT(is_acyclic);
    return with_late_growth(result, urgent);
  }

 private:
  static bool makes_numbers(const ir::Node& node) {
    return std::ranges::all_of(node.outputs, [](const ir::Value* value) {
      const auto dims = value == nullptr ? std::nullopt : value->type.static_dims();
      return value == nullptr || (dims && dims->num_elements() == 1);
    });
  }

  // A node that makes more bytes than it reads of others (a rounded weight, a half in float32)
  // waits for the first node that it must precede: its result takes memory no longer than needed.
  std::vector<ir::Node*> with_late_growth(const std::vector<ir::Node*>& ordered,
                                          const std::unordered_set<std::size_t>& urgent) const {
    const std::size_t count = ordered.size();
    std::vector<std::size_t> rank(count, 0);
    for (std::size_t r = 0; r < count; ++r) rank[position_.at(ordered[r])] = r;
    std::vector<std::vector<ir::Node*>> waiting(count);  // by the rank of what they precede
    std::vector<ir::Node*> result;
    result.reserve(count);
    for (std::size_t r = 0; r < count; ++r) {
      const std::size_t i = position_.at(ordered[r]);
      std::size_t first = count;
      for (const std::size_t next : successors_[i]) first = std::min(first, rank[next]);
      // What waits for this node may have other successors.
      const bool all_can_wait = std::ranges::all_of(waiting[r], [&](const ir::Node* node) {
        return std::ranges::all_of(successors_[position_.at(node)], [&](std::size_t next) {
          return next == i || rank[next] >= first;
        });
      });
      const bool is_exchange = exchange_role(*ordered[r]).kind != ExchangeRole::Kind::kNone;
      if (!urgent.contains(i) && !is_exchange && first < count && first > r + 1 && all_can_wait &&
          grows(*ordered[r])) {
        std::ranges::copy(waiting[r], std::back_inserter(waiting[first]));
        waiting[first].push_back(ordered[r]);
        continue;
      }
      std::ranges::copy(waiting[r], std::back_inserter(result));
      result.push_back(ordered[r]);
    }
    return result;
  }

  static bool grows(const ir::Node& node) {
    constexpr std::int64_t kLeast = 16384;  // bytes
    const auto size_of = [](const ir::Value* value) -> std::int64_t {
      if (value == nullptr || value->dtype() == DataType::kString) return 0;
      const auto dims = value->type.static_dims();
      return dims ? dims->size_bytes(value->dtype()) : 0;
    };
    std::int64_t read = 0;
    std::int64_t made = 0;
    for (const ir::Value* input : node.inputs) {
      if (input != nullptr && input->producer != nullptr) read += size_of(input);
    }
    for (const ir::Value* output : node.outputs) made += size_of(output);
    return made > read && made >= kLeast;
  }

  bool reaches(std::size_t from, std::size_t to) const {
    std::vector<bool> seen(graph_.nodes.size(), false);
    std::vector<std::size_t> work{from};
    seen[from] = true;
    while (!work.empty()) {
      const std::size_t at = work.back();
      work.pop_back();
      if (at == to) return true;
      for (const std::size_t next : successors_[at]) {
        if (!seen[next]) {
          seen[next] = true;
          work.push_back(next);
        }
      }
    }
    return false;
  }

  const ir::Graph& graph_;
  const opdef::OpRegistry& registry_;
  std::unordered_map<const ir::Node*, std::size_t> position_;
  std::unordered_map<const ir::Value*, std::vector<std::size_t>> readers_;  // of roots
  std::vector<std::vector<std::size_t>> successors_;
};

}  // namespace

const ir::Value* view_root(const ir::Value* value, const opdef::OpRegistry& registry) {
  while (value->producer != nullptr) {
    const opdef::OpDef* def = registry.find(*value->producer);
    if (def == nullptr || !def->is_view() || value->output_index != 0) break;
    value = value->producer->inputs[0];
  }
  return value;
}

Schedule make_schedule(const ir::Graph& graph, const opdef::OpRegistry& registry,
                       std::span<const StateUpdate> updates, UpdateNumbers numbers) {
  Scheduler scheduler(graph, registry);
  Schedule schedule;
  scheduler.order_exchanges(ExchangeRole::Kind::kStart);
  scheduler.order_exchanges(ExchangeRole::Kind::kFinish);
  std::unordered_set<std::size_t> urgent;
  std::unordered_set<const ir::Value*> taken;  // one buffer holds one state
  for (const ir::Value* output : graph.outputs) {
    // A result that shows the old value keeps it.
    const ir::Value* root = view_root(output, registry);
    if (root->is_input) taken.insert(root);
  }
  for (std::size_t i = 0; i < updates.size(); ++i) {
    const auto [input, value] = updates[i];
    const auto writer = scheduler.writer(value);
    const ir::Value* root = view_root(value, registry);
    if (!writer || taken.contains(input) || taken.contains(root)) continue;
    if (!scheduler.order_readers_first(input, *writer)) continue;
    taken.insert(root);
    schedule.in_place_updates.insert(i);
    urgent.insert(*writer);
  }
  auto with_numbers = urgent;
  schedule.has_numbers = scheduler.add_numbers(with_numbers);
  if (numbers == UpdateNumbers::kEarly) urgent = std::move(with_numbers);
  schedule.order = scheduler.order(urgent);
  return schedule;
}

}  // namespace onnxgrad::runtime
