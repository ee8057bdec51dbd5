#include "runtime/profiler.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace onnxgrad::runtime {

void Profiler::start(std::size_t max_events) {
  kernels_.clear();
  by_name_.clear();
  events_.clear();
  events_.reserve(max_events);
  max_events_ = max_events;
  ++generation_;
  began_ = Clock::now();
  is_on_ = true;
}

KernelProfile* Profiler::entry(const PlanStep& step) {
  KernelProfile*& known = by_name_[{step.node, step.kernel.label}];
  if (known == nullptr) {
    known = &kernels_.emplace_back();
    known->op_type = step.op_type;
    known->node = step.node;
    known->label = step.kernel.label;
    known->flops = step.kernel.flops;
  }
  return known;
}

void Profiler::record(KernelProfile* kernel, Clock::time_point start, Clock::time_point end,
                      int threads) {
  const double duration = std::chrono::duration<double>(end - start).count();
  ++kernel->calls;
  kernel->threads = std::max(kernel->threads, threads);
  kernel->total_s += duration;
  if (events_.size() >= max_events_) return;
  events_.push_back({.kernel = kernel,
                     .start_s = std::chrono::duration<double>(start - began_).count(),
                     .duration_s = duration});
}

std::vector<KernelProfile> Profiler::table() const {
  std::vector<KernelProfile> result(kernels_.begin(), kernels_.end());
  std::ranges::sort(result, std::greater<>(), &KernelProfile::total_s);
  return result;
}

std::string Profiler::trace_json() const {
  constexpr double kMicroseconds = 1e6;  // the unit of the format
  nlohmann::json events = nlohmann::json::array();
  for (const Event& event : events_) {
    events.push_back(
        {{"name", event.kernel->node},
         {"cat", event.kernel->op_type},
         {"ph", "X"},
         {"ts", event.start_s * kMicroseconds},
         {"dur", event.duration_s * kMicroseconds},
         {"pid", 0},
         {"tid", 0},
         {"args", {{"kernel", event.kernel->label}, {"threads", event.kernel->threads}}}});
  }
  const nlohmann::json trace{{"traceEvents", std::move(events)}, {"displayTimeUnit", "ns"}};
  // Names come from files: bytes that are not UTF-8 are replaced.
  return trace.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace onnxgrad::runtime
