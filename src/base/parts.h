#ifndef ONNXGRAD_BASE_PARTS_H_
#define ONNXGRAD_BASE_PARTS_H_

#include <cstddef>
#include <cstdint>
#include <functional>

namespace onnxgrad::base {

/// The processors that this process may run on, at least 1.
int num_processors();

/// Calls `work(begin, end)` for parts of [0, bytes), one of them here and each other one on a
/// thread that ends with the call; at most `threads` parts, and none that are too small to pay for
/// a thread; one part allocates nothing. For moving or reading large amounts of memory, of which a
/// large part may be the kernel's clearing of pages. Parts begin at multiples of 2 MiB. An
/// exception of any part is thrown when all have ended.
void in_parts(std::int64_t bytes, int threads,
              const std::function<void(std::int64_t begin, std::int64_t end)>& work);

/// Makes the kernel give memory that nothing has written to its pages now, on up to `threads`
/// threads, where that pays: one after the other the threads of a first step would wait for them.
/// Does not change its contents.
void populate(std::byte* memory, std::int64_t bytes, int threads);

}  // namespace onnxgrad::base

#endif  // ONNXGRAD_BASE_PARTS_H_
