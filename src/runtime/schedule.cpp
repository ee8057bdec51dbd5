#include "runtime/schedule.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <queue>
#include <utility>

#include "base/check.h"
#include "ir/static_size.h"

namespace onnxgrad::runtime {
namespace {

bool makes_numbers(const ir::Node& node) {
  return std::ranges::all_of(node.outputs, [](const ir::Value* value) {
    return value == nullptr || ir::static_elements(*value) == 1;
  });
}

// Whether a node writes more bytes than it reads of others (a rounded weight, 16 bits to float32).
bool grows(const ir::Node& node) {
  constexpr std::int64_t kLeast = 16384;  // bytes
  const auto size_of = [](const ir::Value* value) -> std::int64_t {
    if (value == nullptr || value->dtype() == DataType::kString) return 0;
    return ir::static_bytes(*value).value_or(0);
  };
  std::int64_t read = 0;
  std::int64_t made = 0;
  for (const ir::Value* output : node.outputs) made += size_of(output);
  if (made < kLeast) return false;
  for (const ir::Value* input : node.inputs) {
    if (input != nullptr && input->producer != nullptr) read += size_of(input);
  }
  return made > read;
}

}  // namespace

Scheduler::Scheduler(const ir::Graph& graph, const ViewRoots& roots,
                     std::span<const StateUpdate> updates,
                     std::span<const ir::Node* const> throwing)
    : graph_(graph),
      roots_(roots),
      position_(graph.nodes.size()),
      first_(graph.nodes.size(), -1),
      old_values_(updates.size()),
      seen_(graph.nodes.size(), 0) {
  find_edges(updates);
  order_exchanges(ExchangeRole::Kind::kStart);
  order_exchanges(ExchangeRole::Kind::kFinish);
  find_checked(throwing);
  place_updates(updates);
  with_numbers_ = writers_;
  has_numbers_ = add_numbers(with_numbers_);
}

Schedule Scheduler::schedule(UpdateNumbers numbers) const {
  const Nodes& urgent = numbers == UpdateNumbers::kEarly ? with_numbers_ : writers_;
  return {.order = with_late_growth(order(urgent), urgent), .in_place_updates = in_place_};
}

void Scheduler::add_edge(std::size_t from, std::size_t to) {
  edges_.push_back({.to = to, .next = std::exchange(first_[from], std::ssize(edges_))});
}

template <class Visit>
void Scheduler::visit_successors(std::size_t from, const Visit& visit) const {
  for (std::ptrdiff_t edge = first_[from]; edge >= 0;
       edge = edges_[static_cast<std::size_t>(edge)].next) {
    visit(edges_[static_cast<std::size_t>(edge)].to);
  }
}

void Scheduler::find_edges(std::span<const StateUpdate> updates) {
  readers_.resize(updates.size());
  for (std::size_t i = 0; i < updates.size(); ++i) old_values_[updates[i].input] = i;
  const std::size_t count = graph_.nodes.size();
  edges_.reserve(4 * count);
  roles_.reserve(count);
  for (std::size_t i = 0; i < count; ++i) position_[graph_.nodes[i]] = i;
  for (std::size_t i = 0; i < count; ++i) {
    const ir::Node& node = *graph_.nodes[i];
    roles_.push_back(exchange_role(node));
    for (const ir::Value* input : node.inputs) {
      if (input == nullptr) continue;
      // A view of an old value is not a reader itself: nodes that read through it are listed too.
      const std::size_t* old = roots_.is_view(&node) ? nullptr : old_values_.find(roots_.of(input));
      if (old != nullptr) readers_[*old].push_back(i);
      if (const std::size_t* from = position_.find(input->producer)) add_edge(*from, i);
    }
  }
}

// Puts the exchanges of a kind in the order of their numbers.
void Scheduler::order_exchanges(ExchangeRole::Kind kind) {
  std::map<std::int64_t, std::size_t> by_number;
  for (std::size_t i = 0; i < roles_.size(); ++i) {
    if (roles_[i].kind == kind) by_number.emplace(roles_[i].number, i);
  }
  const std::size_t* before = nullptr;
  for (const auto& [number, at] : by_number) {
    if (before != nullptr) add_edge(*before, at);
    before = &at;
  }
}

// Marks the nodes before one that may throw: they must not write to the state.
void Scheduler::find_checked(std::span<const ir::Node* const> throwing) {
  const std::size_t count = graph_.nodes.size();
  is_before_throw_.assign(count, false);
  if (throwing.empty()) return;
  std::vector<std::vector<std::size_t>> before(count);
  for (std::size_t i = 0; i < count; ++i) {
    visit_successors(i, [&](std::size_t next) { before[next].push_back(i); });
  }
  std::vector<std::size_t> work;
  const auto add = [&](std::size_t i) {
    if (is_before_throw_[i]) return;
    is_before_throw_[i] = true;
    work.push_back(i);
  };
  for (const ir::Node* node : throwing) {
    throwing_.push_back(*position_.find(node));
    add(throwing_.back());
  }
  while (!work.empty()) {
    const std::size_t i = work.back();
    work.pop_back();
    for (const std::size_t earlier : before[i]) add(earlier);
  }
}

void Scheduler::place_updates(std::span<const StateUpdate> updates) {
  ir::PointerSet<ir::Value> taken(2 * updates.size());  // one buffer holds one state
  for (const ir::Value* output : graph_.outputs) {
    // A result that shows the old value keeps it.
    const ir::Value* root = roots_.of(output);
    if (root->is_input) taken.insert(root);
  }
  for (std::size_t i = 0; i < updates.size(); ++i) {
    const auto [input, value] = updates[i];
    const ir::Value* root = roots_.of(value);
    const std::size_t* writer = position_.find(root->producer);  // none of inputs and constants
    if (writer == nullptr || taken.contains(input) || taken.contains(root)) continue;
    if (is_before_throw_[*writer]) continue;
    if (!order_readers_first(input, *writer)) continue;
    // No cycle: nothing that these depend on is a writer.
    for (const std::size_t earlier : throwing_) add_edge(earlier, *writer);
    taken.insert(root);
    in_place_.insert(i);
    writers_.insert(*writer);
  }
}

// Puts every other reader of `input` before `writer`, if that makes no cycle.
bool Scheduler::order_readers_first(const ir::Value* input, std::size_t writer) {
  std::vector<std::size_t> before;
  for (const std::size_t reader : readers_[*old_values_.find(input)]) {
    if (reader == writer) continue;
    if (reaches(writer, reader)) return false;
    before.push_back(reader);
  }
  for (const std::size_t reader : before) add_edge(reader, writer);
  return true;
}

bool Scheduler::reaches(std::size_t from, std::size_t to) {
  ++search_;
  std::vector<std::size_t> work{from};
  seen_[from] = search_;
  while (!work.empty()) {
    const std::size_t at = work.back();
    work.pop_back();
    if (at == to) return true;
    visit_successors(at, [&](std::size_t next) {
      if (std::exchange(seen_[next], search_) != search_) work.push_back(next);
    });
  }
  return false;
}

// Numbers that an update of a state waits for, such as the corrections of Adam, are as urgent as
// the update: what that is the last to read would live longer. True if there are any.
bool Scheduler::add_numbers(Nodes& urgent) const {
  const std::size_t before = urgent.size();
  std::vector<std::size_t> work(urgent.begin(), urgent.end());
  while (!work.empty()) {
    const ir::Node& node = *graph_.nodes[work.back()];
    work.pop_back();
    for (const ir::Value* input : node.inputs) {
      const std::size_t* at = input == nullptr ? nullptr : position_.find(input->producer);
      if (at == nullptr || !makes_numbers(*input->producer)) continue;
      if (urgent.insert(*at).second) work.push_back(*at);
    }
  }
  return urgent.size() > before;
}

std::vector<std::size_t> Scheduler::order(const Nodes& urgent) const {
  const std::size_t count = graph_.nodes.size();
  std::vector<std::size_t> missing(count, 0);
  for (const Edge& edge : edges_) ++missing[edge.to];
  using Entry = std::pair<int, std::size_t>;  // (0: urgent, 2: as late as possible; position)
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> ready;
  const auto add_ready = [&](std::size_t i) {
    const ExchangeRole::Kind kind = roles_[i].kind;
    const bool is_first = kind == ExchangeRole::Kind::kStart || urgent.contains(i);
    ready.emplace(kind == ExchangeRole::Kind::kFinish ? 2 : is_first ? 0 : 1, i);
  };
  for (std::size_t i = 0; i < count; ++i) {
    if (missing[i] == 0) add_ready(i);
  }
  std::vector<std::size_t> result;
  result.reserve(count);
  while (!ready.empty()) {
    const std::size_t i = ready.top().second;
    ready.pop();
    result.push_back(i);
    visit_successors(i, [&](std::size_t next) {
      if (--missing[next] == 0) add_ready(next);
    });
  }
  const bool is_acyclic = result.size() == count;
  ONNXGRAD_ASSERT(is_acyclic);
  return result;
}

// A node that grows waits for the first node that it must precede: its result takes memory no
// longer than needed.
std::vector<ir::Node*> Scheduler::with_late_growth(const std::vector<std::size_t>& ordered,
                                                   const Nodes& urgent) const {
  const std::size_t count = ordered.size();
  std::vector<std::size_t> rank(count, 0);
  for (std::size_t r = 0; r < count; ++r) rank[ordered[r]] = r;
  std::vector<std::vector<std::size_t>> waiting(count);  // by the rank of what they precede
  std::vector<ir::Node*> result;
  result.reserve(count);
  const auto run = [&](std::size_t i) { result.push_back(graph_.nodes[i]); };
  for (std::size_t r = 0; r < count; ++r) {
    const std::size_t i = ordered[r];
    std::size_t first = count;
    visit_successors(i, [&](std::size_t next) { first = std::min(first, rank[next]); });
    // Nodes that wait for this one may have other successors.
    const bool all_can_wait = std::ranges::all_of(waiting[r], [&](std::size_t node) {
      bool can_wait = true;
      visit_successors(node, [&](std::size_t next) {
        can_wait = can_wait && (next == i || rank[next] >= first);
      });
      return can_wait;
    });
    const bool is_exchange = roles_[i].kind != ExchangeRole::Kind::kNone;
    if (first < count && first > r + 1 && !is_exchange && all_can_wait && !urgent.contains(i) &&
        grows(*graph_.nodes[i])) {
      std::ranges::copy(waiting[r], std::back_inserter(waiting[first]));
      waiting[first].push_back(i);
      continue;
    }
    std::ranges::for_each(waiting[r], run);
    run(i);
  }
  return result;
}

}  // namespace onnxgrad::runtime
