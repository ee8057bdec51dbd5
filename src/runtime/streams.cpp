#include "runtime/streams.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <ranges>
#include <span>
#include <unordered_set>
#include <utility>
#include <vector>

// A pass over the plan finds for each step the earlier ones that it has to come after; a second one
// gives it to the stream on which it ends first by estimated costs (list scheduling in plan order).
// Of what it has to come after, it waits only for what its stream does not imply yet: a step knows
// for each stream the last step that is done when it begins (a vector clock).

namespace onnxgrad::runtime {
namespace {

using Number = std::uint32_t;  // of a step within its segment

/// Uses of bytes so far, by what came last.
class UsedBytes {
 public:
  /// Adds to `before` the earlier steps that conflict with a use of [begin, end).
  void use(std::int64_t begin, std::int64_t end, Number step, bool is_written,
           std::vector<Number>& before) {
    split(begin);
    split(end);
    fill_gaps(begin, end);
    for (auto piece = pieces_.find(begin); piece != pieces_.end() && piece->first < end; ++piece) {
      Piece& used = piece->second;
      if (used.writer) before.push_back(*used.writer);
      if (is_written) before.insert(before.end(), used.readers.begin(), used.readers.end());
      if (!is_written) used.readers.push_back(step);
    }
    if (!is_written) return;
    pieces_.erase(pieces_.find(begin), pieces_.lower_bound(end));
    pieces_.emplace(begin, Piece{.end = end, .writer = step});
  }

 private:
  struct Piece {
    std::int64_t end = 0;
    std::optional<Number> writer = {};
    std::vector<Number> readers = {};  ///< since then
  };

  void split(std::int64_t at) {
    auto piece = pieces_.upper_bound(at);
    if (piece == pieces_.begin()) return;
    --piece;
    if (piece->first == at || piece->second.end <= at) return;
    pieces_.emplace(at, piece->second);
    piece->second.end = at;
  }

  void fill_gaps(std::int64_t begin, std::int64_t end) {
    auto piece = pieces_.lower_bound(begin);
    for (std::int64_t at = begin; at < end;) {
      if (piece != pieces_.end() && piece->first == at) {
        at = piece->second.end;
        ++piece;
        continue;
      }
      const std::int64_t next = piece == pieces_.end() ? end : std::min(end, piece->first);
      pieces_.emplace(at, Piece{.end = next});
      at = next;
    }
  }

  std::map<std::int64_t, Piece> pieces_;  // by begin; none overlap
};

/// Finds what the steps of a segment have to come after.
class Conflicts {
 public:
  /// Steps are given in order; the result is sorted.
  std::vector<Number> before(const PlanStep& step, Number number) {
    std::vector<Number> result;
    bool updates_state = false;
    for (const bool writes : {false, true}) {  // of an argument that is both: not after itself
      for (std::size_t i = 0; i < step.uses.size(); ++i) {
        const device::Operand& use = step.uses[i];
        if (use.bytes == 0 || !(writes ? use.is_written : use.is_read)) continue;
        const Location& at = step.args[i];
        const bool is_state = at.kind == Location::Kind::kState;
        UsedBytes* bytes = bytes_of(at);
        if (bytes == nullptr) continue;
        const std::int64_t begin = is_state ? 0 : at.at;
        bytes->use(begin, begin + use.bytes, number, writes, result);
        updates_state |= is_state && writes;
      }
    }
    if (updates_state) result.insert(result.end(), throwing_.begin(), throwing_.end());
    if (!step.kernel.checks.empty()) throwing_.push_back(number);
    if (step.is_exchange) {
      if (exchange_) result.push_back(*exchange_);
      exchange_ = number;
    }
    std::ranges::sort(result);
    const auto repeated = std::ranges::unique(result);
    result.erase(repeated.begin(), repeated.end());
    if (!result.empty() && result.back() == number) result.pop_back();
    return result;
  }

 private:
  // nullptr: nothing is written there.
  UsedBytes* bytes_of(const Location& at) {
    switch (at.kind) {
      case Location::Kind::kArena:
        return &spaces_[{at.kind, 0}];
      case Location::Kind::kState:
        return &spaces_[{at.kind, at.at}];
      case Location::Kind::kBlock:
        return &spaces_[{at.kind, static_cast<std::int64_t>(at.block)}];
      case Location::Kind::kNone:
      case Location::Kind::kFeed:
      case Location::Kind::kConstant:
        break;
    }
    return nullptr;
  }

  std::map<std::pair<Location::Kind, std::int64_t>, UsedBytes> spaces_;
  std::vector<Number> throwing_;
  std::optional<Number> exchange_;
};

// Rates of a graphics card, to compare steps of a plan with each other. Small kernels cost their
// launch; a wait costs a fraction of it.
double cost_ns(const PlanStep& step) {
  constexpr double kLaunchNs = 1000;
  constexpr double kBytesPerNs = 1000;
  constexpr double kFlopsPerNs = 20000;
  double bytes = 0;
  for (const device::Operand& use : step.uses) bytes += static_cast<double>(use.bytes);
  return kLaunchNs + bytes / kBytesPerNs + step.kernel.flops / kFlopsPerNs;
}
constexpr double kWaitNs = 200;

class Streams {
 public:
  Streams(std::span<PlanStep> steps, int num_streams)
      : steps_(steps),
        ends_(static_cast<std::size_t>(num_streams)),
        end_ns_(steps.size()),
        clocks_(steps.size()) {}

  void run() {
    Conflicts conflicts;
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      place(static_cast<Number>(i), conflicts.before(steps_[i], static_cast<Number>(i)));
    }
  }

 private:
  /// For each stream the number of its first step that need not be done; none: 0.
  using Clock = std::vector<Number>;
  struct End {
    double ns = 0;
    std::optional<Number> last = {};
  };

  std::size_t stream_of(Number step) const {
    return static_cast<std::size_t>(steps_[step].place.stream);
  }

  void place(Number step, const std::vector<Number>& before) {
    const auto [stream, begin_ns] = choose(before);
    device::CallPlace& place = steps_[step].place;
    place = {.stream = static_cast<int>(stream)};
    end_ns_[step] = begin_ns + cost_ns(steps_[step]);
    Clock clock = ends_[stream].last ? clocks_[*ends_[stream].last] : Clock(ends_.size(), 0);
    for (const Number other : needed(before, clock)) {
      place.waits.push_back(other);
      steps_[other].place.is_awaited = true;
    }
    for (const Number other : place.waits) {
      for (std::size_t s = 0; s < clock.size(); ++s) {
        clock[s] = std::max(clock[s], clocks_[other][s]);
      }
    }
    clock[stream] = step + 1;
    clocks_[step] = std::move(clock);
    ends_[stream] = {.ns = end_ns_[step], .last = step};
  }

  // The stream where the step can begin first; of equals, that of the step which it needs last.
  std::pair<std::size_t, double> choose(const std::vector<Number>& before) const {
    std::size_t preferred = 0;
    double needed_ns = -1;
    for (const Number other : before) {
      if (end_ns_[other] < needed_ns) continue;
      needed_ns = end_ns_[other];
      preferred = stream_of(other);
    }
    std::pair best(preferred, begin_on(preferred, before));
    for (std::size_t s = 0; s < ends_.size(); ++s) {
      const double ns = begin_on(s, before);
      if (ns < best.second) best = {s, ns};
    }
    return best;
  }

  double begin_on(std::size_t stream, const std::vector<Number>& before) const {
    double ns = ends_[stream].ns;
    for (const Number other : before) {
      ns = std::max(ns, end_ns_[other] + (stream_of(other) == stream ? 0 : kWaitNs));
    }
    return ns;
  }

  // Steps of other streams that nothing else implies.
  std::vector<Number> needed(const std::vector<Number>& before, const Clock& known) const {
    std::vector<Number> last(ends_.size(), 0);  // as in Clock
    for (const Number other : before) {
      Number& number = last[stream_of(other)];
      number = std::max(number, other + 1);
    }
    std::vector<Number> found;
    for (std::size_t s = 0; s < last.size(); ++s) {
      if (last[s] <= known[s]) continue;
      const bool is_implied = std::ranges::any_of(last, [&](Number other) {
        return other > 0 && other != last[s] && clocks_[other - 1][s] >= last[s];
      });
      if (!is_implied) found.push_back(last[s] - 1);
    }
    std::ranges::sort(found);
    return found;
  }

  std::span<PlanStep> steps_;
  std::vector<End> ends_;       // per stream
  std::vector<double> end_ns_;  // per step, like the next
  std::vector<Clock> clocks_;
};

}  // namespace

void assign_streams(Plan& plan, int num_streams) {
  for (PlanStep& step : plan.steps) step.place = {};
  if (num_streams <= 1) return;
  for (const Segment& segment : plan.segments) {
    if (segment.kind == Segment::Kind::kHost) continue;
    Streams(std::span(plan.steps).subspan(segment.begin, segment.end - segment.begin), num_streams)
        .run();
  }
}

bool has_independent_reader(std::span<const ir::Node* const> nodes, const ViewRoots& roots,
                            std::size_t i, const ir::Value* old) {
  const auto root_of = [&](const ir::Value* value) {
    return value == nullptr ? nullptr : roots.of(value);
  };
  std::vector<const ir::Node*> readers;
  for (const ir::Node* before : std::views::reverse(nodes.first(i))) {
    if (before == old->producer) break;
    const bool reads = std::ranges::any_of(
        before->inputs, [&](const ir::Value* input) { return root_of(input) == old; });
    if (reads) readers.push_back(before);
  }
  if (readers.empty()) return false;
  // All that the node needs, as far back as `old`.
  std::unordered_set<const ir::Node*> needed{nodes[i]};
  std::vector<const ir::Node*> found{nodes[i]};
  while (!found.empty()) {
    const ir::Node* node = found.back();
    found.pop_back();
    for (const ir::Value* input : node->inputs) {
      const ir::Value* base = root_of(input);
      if (base == nullptr || base == old || base->producer == nullptr) continue;
      if (needed.insert(base->producer).second) found.push_back(base->producer);
    }
  }
  return !std::ranges::all_of(readers,
                              [&](const ir::Node* reader) { return needed.contains(reader); });
}

}  // namespace onnxgrad::runtime
