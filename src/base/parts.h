#ifndef ONNXGRAD_BASE_PARTS_H_
#define ONNXGRAD_BASE_PARTS_H_

#include <cstddef>
#include <cstdint>
#include <functional>

namespace onnxgrad::base {

/// Number of processors that this process may run on, at least 1.
int num_processors();

/// Calls `work(begin, end)` for chunks of [0, bytes), one of them on this thread and each other one
/// on a new thread that ends with the call; at most `threads` chunks, none too small to pay for a
/// thread; a single chunk allocates nothing. For moving or reading large amounts of memory, of
/// which a large part may be the kernel's clearing of pages. Parts begin at multiples of 2 MiB. An
/// exception of any part is thrown when all have ended.
void in_parts(std::int64_t bytes, int threads,
              const std::function<void(std::int64_t begin, std::int64_t end)>& work);

/// Makes the operating system map the pages of fresh memory now, on up to `threads` threads, where
/// that pays: in a first step, threads would wait for them one after the other. Does not change its
/// contents.
void populate(std::byte* memory, std::int64_t bytes, int threads);

}  // namespace onnxgrad::base

#endif  // ONNXGRAD_BASE_PARTS_H_
