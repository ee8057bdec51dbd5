#ifndef ONNXGRAD_DEVICE_CPU_THREADS_H_
#define ONNXGRAD_DEVICE_CPU_THREADS_H_

#include <algorithm>
#include <cstdint>

#include "base/rounding.h"
#include "device/host_threads.h"

// Thread pools, whose threads compute a kernel together. Work is cut into chunks. Each thread
// begins with its own chunks, the same ones each time, whose data its caches have; then it takes
// those that other threads have not begun. A thread that does not run, since another process has
// its processor, therefore holds up one chunk at most, and none if it has not begun. A kernel that
// needs all results of a first phase in a second one makes two calls.
//
// Each thread of a program that runs kernels has a pool of its own, which grows to the largest
// count asked for and then stays: a kernel that takes fewer threads leaves the others alone, so
// kernels of different counts may follow each other. (OpenMP's runtime of GCC ends the threads that
// a region does not need, and makes them anew for the next one.) Waiting threads spin for a moment,
// then sleep; if there are more of them than processors, they sleep almost at once. A pool whose
// threads lose their processors to other processes uses fewer for a while (thread_limit.h).

namespace onnxgrad::device {

/// Chunk `index` of `count` of a kernel's work: [first(total), last(total)) of any range.
struct Chunk {
  std::int64_t index = 0;
  std::int64_t count = 1;
  std::int64_t thread = 0;  ///< that runs the chunk, below the number of threads: its scratch

  std::int64_t first(std::int64_t total) const { return total * index / count; }
  std::int64_t last(std::int64_t total) const { return total * (index + 1) / count; }
};

using ChunkFn = void (*)(const void* context, const Chunk& chunk);

/// Maximum of the chunks of a call.
inline constexpr std::int64_t kMostChunks = 4096;

/// Runs chunks on threads of the pool; see on_threads().
void run_on_pool(std::int64_t threads, std::int64_t chunks, ChunkFn part, const void* context);

/// Calls part(chunk) once for each of `chunks` chunks, on up to `threads` threads of which this is
/// one, and returns when all are done; with one thread, there is one chunk. Which thread runs a
/// chunk is not determined: results must depend on its index alone. Writes of a chunk are visible
/// to the caller, and to all chunks of later calls. Within a part another call has one thread and
/// one chunk. A part must not throw. Throws: DeviceError, before anything is called (the system has
/// no more threads).
template <class F>
void on_threads(std::int64_t threads, std::int64_t chunks, const F& part) {
  if (threads <= 1 || chunks <= 1) {
    part(Chunk{});
    return;
  }
  run_on_pool(
      threads, chunks,
      [](const void* context, const Chunk& chunk) { (*static_cast<const F*>(context))(chunk); },
      &part);
}

/// Calls part(chunk) for one chunk per thread.
template <class F>
void on_threads(std::int64_t threads, const F& part) {
  on_threads(threads, threads, part);
}

/// Chunks of `total` items for each thread, where a chunk costs little but its work.
inline constexpr std::int64_t kChunksPerThread = 4;

/// Number of chunks of `total` items; 1 for one thread.
inline std::int64_t chunks_of(std::int64_t threads, std::int64_t total) {
  const std::int64_t most = threads <= 1 ? 1 : threads * kChunksPerThread;
  return std::clamp<std::int64_t>(total, 1, std::min(most, kMostChunks));
}

/// Calls f(first, last) for ranges that cover [0, total), several for each thread.
template <class F>
void parallel_ranges(std::int64_t threads, std::int64_t total, const F& f) {
  on_threads(threads, chunks_of(threads, total), [&](const Chunk& chunk) {
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
