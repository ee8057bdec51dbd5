#ifndef ONNXGRAD_RUNTIME_PROFILER_H_
#define ONNXGRAD_RUNTIME_PROFILER_H_

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "device/work.h"
#include "runtime/execution.h"
#include "runtime/plan.h"

namespace onnxgrad::runtime {

/// A call between two events of its device, both of Stream::mark(true).
struct TimedCall {
  KernelProfile* kernel = nullptr;
  int stream = 0;  ///< that the plan places it on
  std::shared_ptr<device::Event> begin;
  std::shared_ptr<device::Event> end;
};

/// Times of kernels: sums per kernel, and the single calls up to a limit. Not thread-safe; belongs
/// to one executor.
class Profiler {
 public:
  using Clock = std::chrono::steady_clock;

  bool is_on() const { return is_on_; }
  /// Clears the profile and begins to record.
  void start(std::size_t max_events);
  void stop() { is_on_ = false; }
  /// A number that changes with every start(): earlier entries are then invalid.
  std::uint64_t generation() const { return generation_; }

  /// The entry of a plan's step; the same kernel in several plans is one entry.
  KernelProfile* entry(const PlanStep& step);
  /// Records a call of the kernel that just returned on this thread.
  void record(KernelProfile* kernel, Clock::time_point start, Clock::time_point end, int threads);

  /// Records a call that has been submitted. Its times are read, and it is waited for, when the
  /// profile is read or many of them are open.
  void record(TimedCall call);

  std::vector<KernelProfile> table();  ///< slowest first
  std::string trace_json();            ///< a row for each stream

 private:
  struct Event {
    const KernelProfile* kernel = nullptr;
    double start_s = 0;  ///< since start()
    double duration_s = 0;
    int stream = 0;
  };
  void add(KernelProfile* kernel, const Event& event, int threads);
  void read_times();

  bool is_on_ = false;
  std::uint64_t generation_ = 0;
  std::size_t max_events_ = 0;
  Clock::time_point began_;
  std::deque<KernelProfile> kernels_;
  std::map<std::pair<std::string, std::string>, KernelProfile*> by_name_;
  std::vector<Event> events_;
  std::vector<TimedCall> open_;           // whose times have not been read
  std::shared_ptr<device::Event> first_;  // where the first call of a device begins
  double first_s_ = 0;                    // the host's time of it
};

}  // namespace onnxgrad::runtime

#endif  // ONNXGRAD_RUNTIME_PROFILER_H_
