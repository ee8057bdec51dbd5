#ifndef ONNXGRAD_DEVICE_CPU_THREADS_H_
#define ONNXGRAD_DEVICE_CPU_THREADS_H_

#include <algorithm>
#include <cstdint>

#include "base/rounding.h"
#include "device/host_threads.h"

// Thread pools, whose threads compute a kernel together. Each thread of a program that runs kernels
// has a pool of its own, which grows to the largest count asked for and then stays: a kernel that
// takes fewer threads leaves the others alone, so kernels of different counts may follow each
// other. (OpenMP's runtime of GCC ends the threads that a region does not need, and makes them anew
// for the next one.) Waiting threads spin for a moment, then sleep; if there are more of them than
// processors, they sleep almost at once. Variables that one thread writes and others read have
// cache lines of their own.

namespace onnxgrad::device {

class ThreadPool;

/// One thread of a kernel and its chunk of the work: [first(total), last(total)) of any range.
struct Chunk {
  std::int64_t thread = 0;
  std::int64_t threads = 1;
  ThreadPool* pool = nullptr;

  std::int64_t first(std::int64_t total) const { return total * thread / threads; }
  std::int64_t last(std::int64_t total) const { return total * (thread + 1) / threads; }
  /// Waits until all threads of the kernel have called it: a barrier.
  void wait() const;
};

using ChunkFn = void (*)(const void* context, const Chunk& chunk);

/// Runs `part` on the threads of the pool; see on_threads().
void run_on_pool(std::int64_t threads, ChunkFn part, const void* context);

/// Calls part(chunk) on `threads` threads, thread 0 being this one, and returns when all are done.
/// Writes of each thread are visible to the others after wait(), and to the caller after the call.
/// Within a part the number of threads is 1. A part must not throw. Throws: DeviceError, before
/// anything is called (the system has no more threads).
template <class F>
void on_threads(std::int64_t threads, const F& part) {
  if (threads <= 1) {
    part(Chunk{});
    return;
  }
  run_on_pool(
      threads,
      [](const void* context, const Chunk& chunk) { (*static_cast<const F*>(context))(chunk); },
      &part);
}

/// Calls f(first, last) with the part of [0, total) of each thread; those without one do nothing.
template <class F>
void parallel_ranges(std::int64_t threads, std::int64_t total, const F& f) {
  on_threads(std::min(threads, total), [&](const Chunk& chunk) {
    const std::int64_t first = chunk.first(total);
    const std::int64_t last = chunk.last(total);
    if (first < last) f(first, last);
  });
}

/// Calls f(first, last) as parallel_ranges(), in multiples of `block` except for the last.
template <class F>
void parallel_blocks(std::int64_t threads, std::int64_t total, std::int64_t block, const F& f) {
  parallel_ranges(threads, base::ceil_div(total, block),
                  [&](std::int64_t first, std::int64_t last) {
                    f(first * block, std::min(last * block, total));
                  });
}

/// Calls f(i) for each i of [0, total): one on each thread if there are as many.
template <class F>
void parallel_for(std::int64_t threads, std::int64_t total, const F& f) {
  parallel_ranges(threads, total, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) f(i);
  });
}

/// Number of threads, at most `most`, that get at least `least` of `work` each; at least 1.
template <class Work>
int useful_threads(Work work, Work least, std::int64_t most) {
  const double times = static_cast<double>(work) / static_cast<double>(least);
  return static_cast<int>(std::clamp(times, 1.0, std::max(static_cast<double>(most), 1.0)));
}

}  // namespace onnxgrad::device

#endif  // ONNXGRAD_DEVICE_CPU_THREADS_H_
