#include "runtime/segments.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>
#include <vector>

namespace onnxgrad::runtime {
namespace {

// Bytes that are neither adjacent nor overlapping, by their first one.
class Ranges {
 public:
  void add(std::int64_t begin, std::int64_t end) {
    if (begin >= end) return;
    auto next = ends_.upper_bound(begin);
    if (next != ends_.begin() && std::prev(next)->second >= begin) --next;
    while (next != ends_.end() && next->first <= end) {
      begin = std::min(begin, next->first);
      end = std::max(end, next->second);
      next = ends_.erase(next);
    }
    ends_.emplace(begin, end);
  }

  /// Calls part(begin, end) for what it removes.
  template <class F>
  void remove(std::int64_t begin, std::int64_t end, const F& part) {
    auto next = ends_.upper_bound(begin);
    if (next != ends_.begin() && std::prev(next)->second > begin) --next;
    while (next != ends_.end() && next->first < end) {
      const auto [first, last] = *next;
      next = ends_.erase(next);
      if (first < begin) ends_.emplace(first, begin);
      if (last > end) ends_.emplace(end, last);
      part(std::max(first, begin), std::min(last, end));
    }
  }

  /// Calls part(begin, end) for what of [begin, end) it does not have.
  template <class F>
  void for_missing(std::int64_t begin, std::int64_t end, const F& part) const {
    auto next = ends_.upper_bound(begin);
    if (next != ends_.begin()) begin = std::max(begin, std::prev(next)->second);
    for (; next != ends_.end() && next->first < end; ++next) {
      if (begin < next->first) part(begin, next->first);
      begin = next->second;
    }
    if (begin < end) part(begin, end);
  }

  void clear() { ends_.clear(); }
  const std::map<std::int64_t, std::int64_t>& all() const { return ends_; }

 private:
  std::map<std::int64_t, std::int64_t> ends_;
};

// Follows a run through the plan: which bytes the host has, and which of these the device has not.
class TransferSearch {
 public:
  void read_on_host(const Location& at, std::int64_t bytes, std::vector<Transfer>& transfers) {
    if (!is_mirrored(at)) return;
    Place& place = places_[key_of(at)];
    const std::int64_t begin = begin_of(at);
    place.on_host.for_missing(begin, begin + bytes, [&](std::int64_t first, std::int64_t last) {
      transfers.push_back({.at = moved(at, first), .bytes = last - first});
    });
    place.on_host.add(begin, begin + bytes);
  }

  void write_on_host(const Location& at, std::int64_t bytes) {
    if (!is_mirrored(at)) return;
    Place& place = places_[key_of(at)];
    place.on_host.add(begin_of(at), begin_of(at) + bytes);
    place.only_on_host.add(begin_of(at), begin_of(at) + bytes);
  }

  void read_on_device(const Location& at, std::int64_t bytes, std::vector<Transfer>& transfers) {
    const auto found = places_.find(key_of(at));
    if (found == places_.end()) return;
    const std::int64_t begin = begin_of(at);
    found->second.only_on_host.remove(
        begin, begin + bytes, [&](std::int64_t first, std::int64_t last) {
          transfers.push_back({.at = moved(at, first), .bytes = last - first});
        });
  }

  void write_on_device(const Location& at, std::int64_t bytes) {
    const auto found = places_.find(key_of(at));
    if (found == places_.end()) return;
    const auto nothing = [](std::int64_t, std::int64_t) {};
    const std::int64_t begin = begin_of(at);
    found->second.only_on_host.remove(begin, begin + bytes, nothing);
    found->second.on_host.remove(begin, begin + bytes, nothing);
  }

  // States have their new values on the device in the end.
  void read_states(std::vector<Transfer>& transfers) {
    for (auto& [key, place] : places_) {
      if (key.first != Location::Kind::kState) continue;
      for (const auto& [begin, end] : place.only_on_host.all()) {
        transfers.push_back({.at = {.kind = key.first, .at = key.second}, .bytes = end - begin});
      }
      place.only_on_host.clear();
    }
  }

 private:
  using Kind = Location::Kind;
  using Key = std::pair<Kind, std::int64_t>;
  struct Place {
    Ranges on_host;
    Ranges only_on_host;
  };

  static bool is_mirrored(const Location& at) {
    return at.kind != Kind::kNone && at.kind != Kind::kConstant;
  }
  static Key key_of(const Location& at) {
    if (at.kind == Kind::kArena) return {at.kind, 0};
    return {at.kind, at.kind == Kind::kBlock ? static_cast<std::int64_t>(at.block) : at.at};
  }
  // States and feeds are read and written from their first byte on.
  static std::int64_t begin_of(const Location& at) {
    return at.kind == Kind::kArena || at.kind == Kind::kBlock ? at.at : 0;
  }
  static Location moved(Location at, std::int64_t begin) {
    if (at.kind == Kind::kArena || at.kind == Kind::kBlock) at.at = begin;
    return at;
  }

  std::map<Key, Place> places_;
};

void find_transfers(Plan& plan) {
  TransferSearch search;
  for (Segment& segment : plan.segments) {
    for (std::size_t i = segment.begin; i < segment.end; ++i) {
      const PlanStep& step = plan.steps[i];
      for (std::size_t a = 0; a < step.args.size(); ++a) {
        if (!step.uses[a].is_read) continue;
        if (step.is_on_host) {
          search.read_on_host(step.args[a], step.uses[a].bytes, segment.transfers);
        } else {
          search.read_on_device(step.args[a], step.uses[a].bytes, segment.transfers);
        }
      }
      for (std::size_t a = 0; a < step.args.size(); ++a) {
        if (!step.uses[a].is_written) continue;
        if (step.is_on_host) {
          search.write_on_host(step.args[a], step.uses[a].bytes);
        } else {
          search.write_on_device(step.args[a], step.uses[a].bytes);
        }
      }
    }
  }
  std::vector<Transfer>& last = plan.last_transfers;
  last.clear();
  for (const Copy& copy : plan.copies) {
    search.read_on_device(copy.from, copy.bytes, last);
    search.write_on_device(copy.to, copy.bytes);
  }
  for (const PlanOutput& output : plan.outputs) {
    if (output.desc.dtype == DataType::kString) continue;
    search.read_on_device(output.location, output.desc.dims.size_bytes(output.desc.dtype), last);
  }
  search.read_states(last);
}

Segment segment_of(const PlanStep& step, std::size_t at) {
  using Kind = Segment::Kind;
  const std::string name = step.op_type + (step.node.empty() ? "" : " '" + step.node + "'");
  if (step.is_on_host) {
    return {.kind = Kind::kHost,
            .begin = at,
            .end = at + 1,
            .reason = name + ": the device has no kernel"};
  }
  if (step.kernel.not_recordable.empty()) return {.begin = at, .end = at + 1};
  return {.kind = Kind::kSubmitted,
          .begin = at,
          .end = at + 1,
          .reason = name + ": " + step.kernel.not_recordable};
}

}  // namespace

void add_segments(Plan& plan) {
  plan.segments.clear();
  for (std::size_t i = 0; i < plan.steps.size(); ++i) {
    Segment next = segment_of(plan.steps[i], i);
    if (!plan.segments.empty() && plan.segments.back().kind == next.kind) {
      plan.segments.back().end = next.end;
    } else {
      plan.segments.push_back(std::move(next));
    }
  }
  find_transfers(plan);
}

std::int64_t transferred_bytes(const Plan& plan) {
  std::int64_t total = 0;
  const auto add = [&](const std::vector<Transfer>& transfers) {
    for (const Transfer& transfer : transfers) total += transfer.bytes;
  };
  for (const Segment& segment : plan.segments) add(segment.transfers);
  add(plan.last_transfers);
  return total;
}

}  // namespace onnxgrad::runtime
