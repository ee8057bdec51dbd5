#include "runtime/host_steps.h"

#include <algorithm>
#include <iterator>

#include "base/check.h"
#include "base/memory_budget.h"
#include "base/rounding.h"

namespace onnxgrad::runtime {
namespace {

constexpr std::int64_t kMirrorUnit = 64;  // alignment of operands on the CPU

}  // namespace

Mirror::Place Mirror::place_of(const Location& location) {
  switch (location.kind) {
    case Location::Kind::kArena:
      return {location.kind, 0};
    case Location::Kind::kBlock:
      return {location.kind, static_cast<std::int64_t>(location.block)};
    default:
      return {location.kind, location.at};
  }
}

std::int64_t Mirror::begin_of(const Location& location) {
  const bool has_offset =
      location.kind == Location::Kind::kArena || location.kind == Location::Kind::kBlock;
  return has_offset ? location.at : 0;
}

// Ranges of whole units, so that operands are aligned as on the device.
void Mirror::add(const Location& at, std::int64_t bytes) {
  if (at.kind == Location::Kind::kNone || at.kind == Location::Kind::kConstant) return;
  std::int64_t begin = begin_of(at) / kMirrorUnit * kMirrorUnit;
  std::int64_t end = base::round_up(begin_of(at) + std::max<std::int64_t>(bytes, 1), kMirrorUnit);
  auto& ranges = ranges_[place_of(at)];
  auto next = ranges.upper_bound(begin);
  if (next != ranges.begin() && std::prev(next)->second.end > begin) --next;
  while (next != ranges.end() && next->first < end) {
    begin = std::min(begin, next->first);
    end = std::max(end, next->second.end);
    next = ranges.erase(next);
  }
  ranges.emplace(begin, Range{.end = end});
}

void Mirror::allocate() {
  for (auto& [place, ranges] : ranges_) {
    for (auto& [begin, range] : ranges) {
      range.offset = bytes_;
      bytes_ += range.end - begin;
    }
  }
  if (bytes_ > 0) memory_ = base::allocate_aligned(bytes_);
}

std::byte* Mirror::at(const Location& location) const {
  const auto place = ranges_.find(place_of(location));
  if (place == ranges_.end()) return nullptr;
  const std::int64_t begin = begin_of(location);
  const auto after = place->second.upper_bound(begin);
  ONNXGRAD_ASSERT(after != place->second.begin());
  const auto& [first, range] = *std::prev(after);
  ONNXGRAD_ASSERT(begin < range.end);
  return memory_.get() + range.offset + (begin - first);
}

HostSteps::HostSteps(const Plan& plan) : plan_(plan), feeds_(plan.feed_bytes.size()) {
  for (const PlanStep& step : plan.steps) {
    if (!step.is_on_host) continue;
    for (std::size_t a = 0; a < step.args.size(); ++a) {
      mirror_.add(step.args[a], step.uses[a].bytes);
    }
  }
  mirror_.allocate();
  for (const PlanStep& step : plan.steps) {
    first_args_.push_back(args_.size());
    if (!step.is_on_host) continue;
    for (const Location& at : step.args) {
      const auto place = static_cast<std::size_t>(at.at);
      if (at.kind == Location::Kind::kFeed) feeds_[place].args.push_back(args_.size());
      // Kernels only read constants.
      args_.push_back(at.kind == Location::Kind::kConstant
                          ? const_cast<std::byte*>(plan.constants[place].raw())
                          : mirror_.at(at));
    }
  }
}

void HostSteps::bind(std::size_t i, const std::byte* data) {
  Feed& feed = feeds_[i];
  feed.data = data;
  std::byte* const place =
      data != nullptr
          ? const_cast<std::byte*>(data)  // kernels only read it
          : mirror_.at({.kind = Location::Kind::kFeed, .at = static_cast<std::int64_t>(i)});
  for (const std::size_t arg : feed.args) args_[arg] = place;
}

void HostSteps::run(std::size_t i, const opdef::Launch& launch) const {
  const opdef::PreparedKernel& kernel = plan_.steps[i].kernel;
  kernel.fn(kernel.data.get(), args_.data() + first_args_[i], launch);
}

const std::byte* HostSteps::argument(std::size_t i, std::size_t arg) const {
  return args_[first_args_[i] + arg];
}

}  // namespace onnxgrad::runtime
