#include "device/cuda/stream.h"

#include <algorithm>
#include <bitset>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "device/cuda/libraries.h"
#include "device/cuda/persistent.h"
#include "device/cuda/recording.h"
#include "device/cuda/text_kernel.h"

namespace onnxgrad::device::cuda {
namespace {

DevicePointer pointer(Address address) { return static_cast<DevicePointer>(address); }
std::size_t size(std::int64_t bytes) { return static_cast<std::size_t>(bytes); }

Owned make_stream() {
  Handle stream = nullptr;
  check(driver().StreamCreate(&stream, kNonBlocking), "cuStreamCreate");
  return {stream, driver().StreamDestroy};
}

Owned make_event(bool is_timed) {
  Handle event = nullptr;
  check(driver().EventCreate(&event, is_timed ? 0 : kDisableTiming), "cuEventCreate");
  return {event, driver().EventDestroy};
}

class CudaEvent final : public Event {
 public:
  CudaEvent(std::shared_ptr<Context> context, Handle stream, bool is_timed)
      : context_(std::move(context)), event_(make_event(is_timed)) {
    check(driver().EventRecord(event_.get(), stream), "cuEventRecord");
  }

  Handle handle() const { return event_.get(); }
  bool is_done() const override {
    context_->make_current();
    const int result = driver().EventQuery(event_.get());
    if (result == kNotReady) return false;
    check(result, "cuEventQuery");
    return true;
  }
  void wait() const override {
    context_->make_current();
    check(driver().EventSynchronize(event_.get()), "cuEventSynchronize");
  }
  double seconds_after(const Event& earlier) const override {
    const auto& before = static_cast<const CudaEvent&>(earlier);
    before.wait();
    wait();
    float ms = 0;
    check(driver().EventElapsedTime(&ms, before.event_.get(), event_.get()), "cuEventElapsedTime");
    return 1e-3 * static_cast<double>(ms);
  }

 private:
  std::shared_ptr<Context> context_;
  Owned event_;
};

/// A captured submission: alone, and kUnrolled times in a row.
class Graph final : public CudaRecording {
 public:
  static constexpr std::int64_t kUnrolled = 32;

  explicit Graph(Handle captured) : once_(captured, driver().GraphDestroy) {
    run_once_ = instantiate(captured);
  }

  void launch(Handle stream, std::int64_t times) const override {
    if (times >= kUnrolled && !run_many_) unroll();
    for (; times >= kUnrolled; times -= kUnrolled) launch(run_many_, stream);
    for (; times > 0; --times) launch(run_once_, stream);
  }

 private:
  static Owned instantiate(Handle graph) {
    Handle made = nullptr;
    check(driver().GraphInstantiate(&made, graph, 0), "cuGraphInstantiate");
    return {made, driver().GraphExecDestroy};
  }
  static void launch(const Owned& graph, Handle stream) {
    check(driver().GraphLaunch(graph.get(), stream), "cuGraphLaunch");
  }
  void unroll() const {
    Handle row = nullptr;
    check(driver().GraphCreate(&row, 0), "cuGraphCreate");
    const Owned owner(row, driver().GraphDestroy);
    Handle last = nullptr;
    for (std::int64_t k = 0; k < kUnrolled; ++k) {
      Handle next = nullptr;
      check(driver().GraphAddChildGraphNode(&next, row, &last, k == 0 ? 0 : 1, once_.get()),
            "cuGraphAddChildGraphNode");
      last = next;
    }
    run_many_ = instantiate(row);
  }

  Owned once_;
  Owned run_once_;
  mutable Owned run_many_;
};

}  // namespace

CudaStream::CudaStream(std::shared_ptr<Context> context) : context_(std::move(context)) {
  context_->make_current();
  streams_[0] = make_stream();
}

CudaStream::~CudaStream() {
  try {
    synchronize();
  } catch (...) {  // NOLINT(bugprone-empty-catch): nobody needs the results
  }
}

void CudaStream::wait(Handle stream, Handle event) const {
  check(driver().StreamWaitEvent(stream, event, 0), "cuStreamWaitEvent");
}

void CudaStream::note(Handle event, Handle stream) const {
  check(driver().EventRecord(event, stream), "cuEventRecord");
}

Handle CudaStream::stream_of(int number) {
  Owned& stream = streams_.at(static_cast<std::size_t>(number));
  if (!stream) stream = make_stream();
  return stream.get();
}

void CudaStream::run(const Work& work, Address cells) {
  context_->make_current();
  launch(work, cells);
}

// Streams other than the first wait for its work before, and it waits for theirs at the end. In a
// capture, the same waits are the edges of the graph.
void CudaStream::launch(const Work& work, Address cells) {
  const Handle main = streams_[0].get();
  std::bitset<kComputeStreams> forked;
  std::size_t num_events = 0;
  std::vector<Handle> events(work.places.empty() ? 0 : work.calls.size());
  const auto next_event = [&] {
    if (num_events == events_.size()) events_.push_back(make_event(/*is_timed=*/false));
    return events_[num_events++].get();
  };
  Handle fork = nullptr;
  if (std::ranges::any_of(work.places, [](const CallPlace& place) { return place.stream != 0; })) {
    fork = next_event();
    note(fork, main);
  }
  for (std::size_t i = 0; i < work.calls.size(); ++i) {
    Handle stream = main;
    if (!work.places.empty()) {
      const CallPlace& place = work.places[i];
      stream = stream_of(place.stream);
      if (place.stream != 0 && !forked[static_cast<std::size_t>(place.stream)]) {
        wait(stream, fork);
        forked.set(static_cast<std::size_t>(place.stream));
      }
      for (const std::uint32_t call : place.waits) wait(stream, events[call]);
    }
    const KernelCall& call = work.calls[i];
    const Guard guard(Guard::address_of(cells, !work.places.empty() && work.places[i].is_guarded));
    call.fn(call.data, call.args,
            {.stream = stream,
             .cells = reinterpret_cast<const opdef::StepCells*>(kernel_argument(cells))});
    if (!work.places.empty() && work.places[i].is_awaited) {
      events[i] = next_event();
      note(events[i], stream);
    }
  }
  for (int s = 1; s < kComputeStreams; ++s) {
    if (!forked[static_cast<std::size_t>(s)]) continue;
    const Handle joined = next_event();
    note(joined, stream_of(s));
    wait(main, joined);
  }
}

std::unique_ptr<Recording> CudaStream::record(const Work& work, Address cells) {
  context_->make_current();
  if (auto one = make_persistent(context_, work, cells)) return one;
  const Handle main = streams_[0].get();
  for (const CallPlace& place : work.places) stream_of(place.stream);  // not made in a capture
  check(driver().StreamBeginCapture(main, kCaptureThreadLocal), "cuStreamBeginCapture");
  Handle graph = nullptr;
  try {
    launch(work, cells);
  } catch (...) {  // a stream left in capture would spoil what follows
    driver().StreamEndCapture(main, &graph);
    if (graph != nullptr) driver().GraphDestroy(graph);
    throw;
  }
  check(driver().StreamEndCapture(main, &graph), "cuStreamEndCapture");
  return std::make_unique<Graph>(graph);
}

void CudaStream::repeat(const Recording& recording, std::int64_t times) {
  context_->make_current();
  static_cast<const CudaRecording&>(recording).launch(streams_[0].get(), times);
}

std::shared_ptr<Event> CudaStream::mark(bool is_timed) {
  context_->make_current();
  return std::make_shared<CudaEvent>(context_, streams_[0].get(), is_timed);
}

void CudaStream::wait_for(const Event& event) {
  context_->make_current();
  wait(streams_[0].get(), static_cast<const CudaEvent&>(event).handle());
}

// Two blocks take turns: one is filled while copies from the other are under way.
std::byte* CudaStream::stage(std::int64_t bytes) {
  constexpr std::int64_t kBlock = 1 << 20;
  constexpr std::int64_t kUnit = 64;
  bytes = (bytes + kUnit - 1) / kUnit * kUnit;
  Staging* block = &staging_[current_staging_];
  if (block->used + bytes > block->bytes) {
    if (block->memory != nullptr) {
      if (!block->last_copy) block->last_copy = make_event(/*is_timed=*/false);
      note(block->last_copy.get(), streams_[0].get());
    }
    current_staging_ = 1 - current_staging_;
    block = &staging_[current_staging_];
    if (block->last_copy)
      check(driver().EventSynchronize(block->last_copy.get()), "cuEventSynchronize");
    if (block->bytes < bytes) {
      block->bytes = std::max(bytes, kBlock);
      block->memory = context_->allocate_pinned(block->bytes);
    }
    block->used = 0;
  }
  return block->memory.get() + std::exchange(block->used, block->used + bytes);
}

// Large copies from ordinary memory return when the driver has read it.
void CudaStream::copy_in(Address to, const std::byte* from, std::int64_t bytes) {
  constexpr std::int64_t kMostStaged = 256 << 10;
  if (bytes == 0) return;
  context_->make_current();
  if (bytes <= kMostStaged) {
    std::byte* const staged = stage(bytes);
    std::memcpy(staged, from, size(bytes));
    from = staged;
  }
  check(driver().MemcpyHtoDAsync(pointer(to), from, size(bytes), streams_[0].get()),
        "cuMemcpyHtoDAsync");
}

void CudaStream::copy_in_staged(Address to, const std::byte* from, std::int64_t bytes) {
  if (bytes == 0) return;
  context_->make_current();
  check(driver().MemcpyHtoDAsync(pointer(to), from, size(bytes), streams_[0].get()),
        "cuMemcpyHtoDAsync");
}

void CudaStream::copy_out(std::byte* to, Address from, std::int64_t bytes) {
  if (bytes == 0) return;
  context_->make_current();
  check(driver().MemcpyDtoHAsync(to, pointer(from), size(bytes), streams_[0].get()),
        "cuMemcpyDtoHAsync");
}

void CudaStream::copy(Address to, Address from, std::int64_t bytes) {
  if (bytes == 0) return;
  context_->make_current();
  check(driver().MemcpyDtoDAsync(pointer(to), pointer(from), size(bytes), streams_[0].get()),
        "cuMemcpyDtoDAsync");
}

void CudaStream::synchronize() {
  context_->make_current();
  check(driver().StreamSynchronize(streams_[0].get()), "cuStreamSynchronize");
  context_->faults().raise();
}

}  // namespace onnxgrad::device::cuda
