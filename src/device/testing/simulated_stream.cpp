#include "device/testing/simulated_stream.h"

#include <array>
#include <chrono>
#include <cstring>
#include <exception>
#include <limits>
#include <set>
#include <string>
#include <utility>

#include "device/testing/simulated_recording.h"

namespace onnxgrad::device::testing {
namespace {

constexpr std::size_t kMostPending = 4096;

class SimulatedEvent final : public Event {
 public:
  explicit SimulatedEvent(std::shared_ptr<SimulatedParts> parts) : parts_(std::move(parts)) {}

  void reach() {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    at_s_ = std::chrono::duration<double>(now).count();
  }
  void set_task(TaskRef task) { task_ = std::move(task); }
  const TaskRef& task() const { return task_; }

  bool is_done() const override { return parts_->schedule.is_done(*task_); }
  void wait() const override {
    if (const std::exception_ptr error = reach_or_drop()) std::rethrow_exception(error);
  }
  double seconds_after(const Event& earlier) const override {
    const auto& before = static_cast<const SimulatedEvent&>(earlier);
    before.reach_or_drop();
    reach_or_drop();
    return at_s_ - before.at_s_;
  }

 private:
  // Returns the error for which the point was not reached.
  std::exception_ptr reach_or_drop() const {
    ++SimulatedParts::num_waits;
    return parts_->schedule.wait({&task_, 1});
  }

  std::shared_ptr<SimulatedParts> parts_;
  TaskRef task_;
  double at_s_ = std::numeric_limits<double>::quiet_NaN();  // not reached, or dropped
};

struct SimulatedRecording final : Recording {
  std::shared_ptr<const std::vector<KeptCall>> calls;
  Address cells = Address::kNull;
  std::vector<SimulatedMemory::Allocation> memory;
};

void run_call(const KeptCall& call, const SimulatedMemory& memory, const opdef::StepCells& cells) {
  const bool has_operands = !call.operands.empty();
  if (has_operands && call.operands.size() != call.args.size()) {
    die(call.name + " has arguments without operands");
  }
  std::vector<std::byte*> pointers(call.args.size(), nullptr);
  for (std::size_t i = 0; i < pointers.size(); ++i) {
    if (call.args[i] == Address::kNull) continue;
    pointers[i] = memory.pointer(call.args[i], has_operands ? call.operands[i].bytes : 0);
  }
  // An exchange with other workers goes on after the kernel that begins it.
  if (has_operands && cells.collectives == nullptr) {
    run_on_shadows(call, pointers, cells);
  } else {
    call.fn(call.data, pointers.data(), {.stream = nullptr, .cells = &cells});
  }
}

}  // namespace

SimulatedStream::~SimulatedStream() { parts_->schedule.drop(owner_); }

std::shared_ptr<const std::vector<KeptCall>> SimulatedStream::keep(const Work& work) {
  auto calls = std::make_shared<std::vector<KeptCall>>();
  for (std::size_t i = 0; i < work.calls.size(); ++i) {
    const KernelCall& call = work.calls[i];
    KeptCall& kept = calls->emplace_back(
        KeptCall{.fn = call.fn,
                 .data = call.data,
                 .name = work.names.empty() ? "call " + std::to_string(i) : work.names[i]});
    for (std::size_t a = 0; a < call.num_args; ++a) kept.args.push_back(address_of(call.args[a]));
    if (!work.places.empty()) kept.place = work.places[i];
    if (!work.operands.empty()) kept.operands = work.operands[i];
    const bool has_stream = kept.place.stream >= 0 && kept.place.stream < kComputeStreams;
    if (!has_stream) die("a compute stream that it does not have");
    for (const std::uint32_t other : kept.place.waits) {
      if (other >= i) die("a call that waits for a later one");
    }
  }
  return calls;
}

void SimulatedStream::submit(const std::shared_ptr<const std::vector<KeptCall>>& calls,
                             Address cells) {
  std::array<TaskRef, kComputeStreams> ends;
  std::vector<TaskRef> tasks;
  for (const KeptCall& call : *calls) {
    TaskRef& before = ends.at(static_cast<std::size_t>(call.place.stream));
    std::vector<TaskRef> after = before == nullptr ? last_ : std::vector{before};
    for (const std::uint32_t other : call.place.waits) after.push_back(tasks[other]);
    const auto work = [&memory = *parts_->memory, calls, &call, cells] {
      const std::byte* own = memory.pointer(cells, sizeof(opdef::StepCells));
      run_call(call, memory, *reinterpret_cast<const opdef::StepCells*>(own));
    };
    before = parts_->schedule.add(owner_, call.place.stream, after, work);
    tasks.push_back(before);
  }
  if (tasks.empty()) return;
  last_.clear();
  for (const TaskRef& end : ends) {
    if (end != nullptr) last_.push_back(end);
  }
  keep_short();
}

void SimulatedStream::run(const Work& work, Address cells) {
  for (const KernelCall& call : work.calls) RecordingRules::of_process().note_run(call);
  submit(keep(work), cells);
}

std::unique_ptr<Recording> SimulatedStream::record(const Work& work, Address cells) {
  const std::string refusal = RecordingRules::of_process().refusal(work);
  if (!refusal.empty()) die(refusal);
  auto recording = std::make_unique<SimulatedRecording>();
  recording->calls = keep(work);
  recording->cells = cells;
  std::set<SimulatedMemory::Allocation> memory{parts_->memory->allocation(cells)};
  for (const KeptCall& call : *recording->calls) {
    for (const Address address : call.args) {
      if (address != Address::kNull) memory.insert(parts_->memory->allocation(address));
    }
  }
  recording->memory.assign(memory.begin(), memory.end());
  return recording;
}

void SimulatedStream::repeat(const Recording& recording, std::int64_t times) {
  const auto& own = static_cast<const SimulatedRecording&>(recording);
  for (const SimulatedMemory::Allocation& allocation : own.memory) {
    if (!parts_->memory->has(allocation)) die("a recording that uses memory which is freed");
  }
  for (std::int64_t i = 0; i < times; ++i) submit(own.calls, own.cells);
}

void SimulatedStream::give(std::function<void()> work) {
  last_ = {parts_->schedule.add(owner_, kOwnRow, last_, std::move(work))};
  keep_short();
}

void SimulatedStream::keep_short() {
  if (parts_->schedule.num_pending(owner_) >= kMostPending) parts_->schedule.wait(last_);
}

std::shared_ptr<Event> SimulatedStream::mark(bool /*is_timed*/) {
  auto event = std::make_shared<SimulatedEvent>(parts_);
  give([kept = std::weak_ptr(event)] {
    if (const auto own = kept.lock()) own->reach();
  });
  event->set_task(last_.front());
  return event;
}

void SimulatedStream::wait_for(const Event& event) {
  last_.push_back(static_cast<const SimulatedEvent&>(event).task());
}

void SimulatedStream::copy_in(Address to, const std::byte* from, std::int64_t bytes) {
  ++SimulatedParts::num_copies_in;
  give([&memory = *parts_->memory, to, kept = std::vector<std::byte>(from, from + bytes)] {
    const auto size = static_cast<std::int64_t>(kept.size());
    std::memcpy(memory.pointer(to, size), kept.data(), kept.size());
  });
}

void SimulatedStream::copy_in_staged(Address to, const std::byte* from, std::int64_t bytes) {
  ++SimulatedParts::num_copies_in;
  give([&memory = *parts_->memory, to, from, bytes] {
    memory.check_staging(from, bytes);
    std::memcpy(memory.pointer(to, bytes), from, static_cast<std::size_t>(bytes));
  });
}

void SimulatedStream::copy_out(std::byte* to, Address from, std::int64_t bytes) {
  ++SimulatedParts::num_copies_out;
  std::memset(to, kPoison, static_cast<std::size_t>(bytes));
  give([&memory = *parts_->memory, to, from, bytes] {
    std::memcpy(to, memory.pointer(from, bytes), static_cast<std::size_t>(bytes));
  });
}

void SimulatedStream::copy(Address to, Address from, std::int64_t bytes) {
  give([&memory = *parts_->memory, to, from, bytes] {
    std::byte* const target = memory.pointer(to, bytes);
    const std::byte* const source = memory.pointer(from, bytes);
    if (target < source + bytes && source < target + bytes) die("a copy that overlaps its source");
    std::memcpy(target, source, static_cast<std::size_t>(bytes));
  });
}

void SimulatedStream::synchronize() {
  ++SimulatedParts::num_waits;
  const std::exception_ptr error = parts_->schedule.wait(last_);
  last_.clear();
  if (error) std::rethrow_exception(error);
}

}  // namespace onnxgrad::device::testing
