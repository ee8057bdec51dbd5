#include "train/testing/malloc_counter.h"

#include <atomic>
#include <cerrno>
#include <cstddef>

#include "device/device.h"

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define ONNXGRAD_COUNTS_ALLOCATIONS 1
#else
#define ONNXGRAD_COUNTS_ALLOCATIONS 0
#endif

namespace onnxgrad::train_test {
namespace {

std::atomic<std::int64_t> count{0};

}  // namespace

void count_allocation() { count.fetch_add(1, std::memory_order_relaxed); }

std::int64_t allocation_count() { return count.load(std::memory_order_relaxed); }

bool counts_allocations() {
  return ONNXGRAD_COUNTS_ALLOCATIONS != 0 && device::default_device().is_host();
}

}  // namespace onnxgrad::train_test

#if ONNXGRAD_COUNTS_ALLOCATIONS

using onnxgrad::train_test::count_allocation;

// glibc exports its allocator under these names for programs that wrap it.
// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming)
// NOLINTBEGIN(readability-inconsistent-declaration-parameter-name)
extern "C" {
void* __libc_malloc(std::size_t bytes);
void* __libc_calloc(std::size_t count, std::size_t bytes);
void* __libc_realloc(void* memory, std::size_t bytes);
void* __libc_memalign(std::size_t alignment, std::size_t bytes);

__attribute__((visibility("default"))) void* malloc(std::size_t bytes) {
  count_allocation();
  return __libc_malloc(bytes);
}

__attribute__((visibility("default"))) void* calloc(std::size_t count, std::size_t bytes) {
  count_allocation();
  return __libc_calloc(count, bytes);
}

__attribute__((visibility("default"))) void* realloc(void* memory, std::size_t bytes) {
  count_allocation();
  return __libc_realloc(memory, bytes);
}

__attribute__((visibility("default"))) void* memalign(std::size_t alignment, std::size_t bytes) {
  count_allocation();
  return __libc_memalign(alignment, bytes);
}

__attribute__((visibility("default"))) void* aligned_alloc(std::size_t alignment,
                                                           std::size_t bytes) {
  count_allocation();
  return __libc_memalign(alignment, bytes);
}

__attribute__((visibility("default"))) int posix_memalign(void** memory, std::size_t alignment,
                                                          std::size_t bytes) {
  count_allocation();
  *memory = __libc_memalign(alignment, bytes);
  return *memory == nullptr ? ENOMEM : 0;
}
}
// NOLINTEND(readability-inconsistent-declaration-parameter-name)
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)

#endif
