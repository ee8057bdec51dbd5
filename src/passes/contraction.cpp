#include "passes/contraction.h"

#include <algorithm>
#include <utility>

namespace onnxgrad::passes {

Contraction::Contraction(const ir::Graph& graph)
    : position_(graph.nodes.size()),
      producers_(graph.nodes.size()),
      readers_(graph.nodes.size()),
      seen_(graph.nodes.size(), 0) {
  for (std::uint32_t i = 0; i < graph.nodes.size(); ++i) {
    const ir::Node* node = graph.nodes[i];
    const auto read = [&](const ir::Value* value) {
      if (value == nullptr) return;
      const std::uint32_t* producer = position_.find(value->producer);
      if (producer == nullptr) return;
      Nodes& readers = readers_[*producer];
      if (!readers.empty() && readers.back() == i) return;
      readers.push_back(i);
      producers_[i].push_back(*producer);
    };
    for (const ir::Value* input : node->inputs) read(input);
    if (!node->subgraphs().empty()) {
      for (const ir::Value* captured : ir::captured_values(*node)) read(captured);
    }
    position_[node] = i;
    unit_of_.push_back(i);
    members_.push_back({i});
    place_.push_back(i);
  }
}

template <class IsBetween>
bool Contraction::search(Unit start, Unit forbidden, const std::vector<Nodes>& neighbours,
                         const IsBetween& is_between, std::vector<Unit>& found) {
  ++search_;
  seen_[start] = search_;
  found.clear();
  std::size_t steps = 0;
  Unit from = start;
  for (std::size_t next = 0;; from = found[next++]) {
    for (const std::uint32_t member : members_[from]) {
      for (const std::uint32_t neighbour : neighbours[member]) {
        if (++steps > kMaxSearched) return false;
        const Unit unit = unit_of_[neighbour];
        if (unit == forbidden && from != start) return false;
        if (unit == forbidden || seen_[unit] == search_ || !is_between(place_[unit])) continue;
        seen_[unit] = search_;
        found.push_back(unit);
      }
    }
    if (next == found.size()) return true;
  }
}

bool Contraction::merge(const ir::Node* a, const ir::Node* b) {
  Unit first = unit_of_[*position_.find(a)];
  Unit last = unit_of_[*position_.find(b)];
  if (first == last) return true;
  if (place_[first] > place_[last]) std::swap(first, last);
  const auto behind_first = [&](std::uint32_t place) { return place > place_[first]; };
  if (!search(last, first, producers_, behind_first, before_)) return false;
  if (!before_.empty()) {
    // Order of the units in between: those of before_, the merged one, those that need `first`.
    std::uint32_t limit = 0;
    for (const Unit unit : before_) limit = std::max(limit, place_[unit]);
    const auto in_between = [&](std::uint32_t place) { return place < limit; };
    if (!search(first, last, readers_, in_between, behind_)) return false;
    std::vector<Unit> order;
    std::vector<std::uint32_t> places;
    for (auto* units : {&before_, &behind_}) {
      std::ranges::sort(*units, {}, [this](Unit unit) { return place_[unit]; });
      order.insert(order.end(), units->begin(), units->end());
      if (units == &before_) order.push_back(first);
    }
    for (const Unit unit : order) places.push_back(place_[unit]);
    std::ranges::sort(places);
    for (std::size_t i = 0; i < order.size(); ++i) place_[order[i]] = places[i];
  }
  unite(first, last);
  return true;
}

// `to` keeps its place.
void Contraction::unite(Unit to, Unit from) {
  for (const std::uint32_t member : members_[from]) unit_of_[member] = to;
  members_[to].insert(members_[to].end(), members_[from].begin(), members_[from].end());
  members_[from] = {};
}

}  // namespace onnxgrad::passes
