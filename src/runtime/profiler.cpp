#include "runtime/profiler.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

namespace onnxgrad::runtime {

void Profiler::start(std::size_t max_events) {
  kernels_.clear();
  by_name_.clear();
  events_.clear();
  events_.reserve(max_events);
  open_.clear();
  first_.reset();
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

void Profiler::add(KernelProfile* kernel, const Event& event, int threads) {
  ++kernel->calls;
  kernel->threads = std::max(kernel->threads, threads);
  kernel->total_s += event.duration_s;
  if (events_.size() < max_events_) events_.push_back(event);
}

void Profiler::record(KernelProfile* kernel, Clock::time_point start, Clock::time_point end,
                      int threads) {
  add(kernel,
      {.kernel = kernel,
       .start_s = std::chrono::duration<double>(start - began_).count(),
       .duration_s = std::chrono::duration<double>(end - start).count()},
      threads);
}

void Profiler::record(TimedCall call) {
  constexpr std::size_t kMostOpen = 4096;
  if (open_.size() >= kMostOpen) read_times();
  if (first_ == nullptr) {
    first_ = call.begin;
    first_s_ = std::chrono::duration<double>(Clock::now() - began_).count();
  }
  open_.push_back(std::move(call));
}

void Profiler::read_times() {
  for (const TimedCall& call : std::exchange(open_, {})) {
    double start = 0;
    double duration = 0;
    try {
      start = call.begin->seconds_after(*first_);
      duration = call.end->seconds_after(*call.begin);
    } catch (...) {  // an error before it, which whoever reads results throws: it has not run
      continue;
    }
    add(call.kernel,
        {.kernel = call.kernel,
         .start_s = first_s_ + start,
         .duration_s = duration,
         .stream = call.stream},
        1);
  }
}

std::vector<KernelProfile> Profiler::table() {
  read_times();
  std::vector<KernelProfile> result(kernels_.begin(), kernels_.end());
  std::ranges::sort(result, std::greater<>(), &KernelProfile::total_s);
  return result;
}

std::string Profiler::trace_json() {
  read_times();
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
         {"tid", event.stream},
         {"args", {{"kernel", event.kernel->label}, {"threads", event.kernel->threads}}}});
  }
  const nlohmann::json trace{{"traceEvents", std::move(events)}, {"displayTimeUnit", "ns"}};
  // Names come from files: bytes that are not UTF-8 are replaced.
  return trace.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace onnxgrad::runtime
