#ifndef ONNXGRAD_TRAIN_TESTING_MALLOC_COUNTER_H_
#define ONNXGRAD_TRAIN_TESTING_MALLOC_COUNTER_H_

#include <cstdint>

namespace onnxgrad::train_test {

/// Number of calls of malloc, calloc, realloc, aligned_alloc, posix_memalign and memalign in this
/// process so far, including libraries: the test binary wraps those of the C library.
std::int64_t allocation_count();

/// Makes the `number`-th allocation from now on fail, counted from 1, and with `all_after` every
/// later one too; 0 ends failures.
void fail_allocations(std::int64_t number, bool all_after = false);
/// Lets all further allocations succeed; has_failed_allocation() stays as it is.
void stop_failing();
/// True if an allocation has failed since then.
bool has_failed_allocation();

/// False if a sanitizer has its own allocator, so that nothing is counted, or if
/// steps run on the simulated device, whose queue allocates.
bool counts_allocations();

}  // namespace onnxgrad::train_test

#endif  // ONNXGRAD_TRAIN_TESTING_MALLOC_COUNTER_H_
