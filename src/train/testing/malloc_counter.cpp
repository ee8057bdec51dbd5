#include "train/testing/malloc_counter.h"

#include <atomic>
#include <cerrno>
#include <cstddef>

#include "train/tools/devices.h"

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define ONNXGRAD_COUNTS_ALLOCATIONS 1
#else
#define ONNXGRAD_COUNTS_ALLOCATIONS 0
#endif

namespace onnxgrad::train_test {
namespace {

std::atomic<std::int64_t> count{0};
std::atomic<std::int64_t> left{0};  // until one fails; 0: none will
std::atomic<bool> fails_on{false};
std::atomic<bool> has_failed{false};

}  // namespace

// False: it is to fail.
bool count_allocation() {
  count.fetch_add(1, std::memory_order_relaxed);
  if (left.load(std::memory_order_relaxed) <= 0) return true;
  const std::int64_t before = left.fetch_sub(1);
  if (before > 1) return true;
  if (fails_on) left = 1;
  has_failed = true;
  return false;
}

void fail_allocations(std::int64_t number, bool all_after) {
  left = 0;
  has_failed = false;
  fails_on = all_after;
  left = number;
}

void stop_failing() { left = 0; }

bool has_failed_allocation() { return has_failed; }

std::int64_t allocation_count() { return count.load(std::memory_order_relaxed); }

bool counts_allocations() {
  return ONNXGRAD_COUNTS_ALLOCATIONS != 0 && train::engine_on("")->device.is_host();
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
  return count_allocation() ? __libc_malloc(bytes) : nullptr;
}

__attribute__((visibility("default"))) void* calloc(std::size_t count, std::size_t bytes) {
  return count_allocation() ? __libc_calloc(count, bytes) : nullptr;
}

__attribute__((visibility("default"))) void* realloc(void* memory, std::size_t bytes) {
  return count_allocation() ? __libc_realloc(memory, bytes) : nullptr;
}

__attribute__((visibility("default"))) void* memalign(std::size_t alignment, std::size_t bytes) {
  return count_allocation() ? __libc_memalign(alignment, bytes) : nullptr;
}

__attribute__((visibility("default"))) void* aligned_alloc(std::size_t alignment,
                                                           std::size_t bytes) {
  return count_allocation() ? __libc_memalign(alignment, bytes) : nullptr;
}

__attribute__((visibility("default"))) int posix_memalign(void** memory, std::size_t alignment,
                                                          std::size_t bytes) noexcept {
  *memory = count_allocation() ? __libc_memalign(alignment, bytes) : nullptr;
  return *memory == nullptr ? ENOMEM : 0;
}
}
// NOLINTEND(readability-inconsistent-declaration-parameter-name)
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)

#endif
