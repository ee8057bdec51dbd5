#ifndef ONNXGRAD_TRAIN_TESTING_MALLOC_COUNTER_H_
#define ONNXGRAD_TRAIN_TESTING_MALLOC_COUNTER_H_

#include <cstdint>

namespace onnxgrad::train_test {

/// Calls of malloc, calloc, realloc, aligned_alloc, posix_memalign and memalign in this process so
/// far, libraries included: the test binary puts its own in front of the C library's.
std::int64_t allocation_count();

/// False where a sanitizer has its own allocator in that place, and nothing is counted, or where
/// steps run on the simulated device, whose queue allocates.
bool counts_allocations();

}  // namespace onnxgrad::train_test

#endif  // ONNXGRAD_TRAIN_TESTING_MALLOC_COUNTER_H_
