#include "base/memory_budget.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <new>
#include <string>
#include <utility>

#include "base/rounding.h"
#include "onnxgrad/error.h"

namespace onnxgrad::base {
namespace {

std::int64_t machine_bytes() {
  std::int64_t bytes = std::int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGE_SIZE);
  for (const char* path :
       {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    std::int64_t limit = 0;
    if (std::ifstream(path) >> limit && limit > 0) bytes = std::min(bytes, limit);
  }
  rlimit address_space{};
  if (getrlimit(RLIMIT_AS, &address_space) == 0 && address_space.rlim_cur != RLIM_INFINITY) {
    bytes = std::min(bytes, static_cast<std::int64_t>(address_space.rlim_cur));
  }
  return bytes;
}

// The active budget is a property of the call, not of the process: scopes nest per thread.
std::shared_ptr<MemoryBudget>& slot() {
  thread_local std::shared_ptr<MemoryBudget> budget;
  return budget;
}

}  // namespace

MemoryBudget::MemoryBudget(std::int64_t limit_bytes)
    : given_(limit_bytes), limit_(limit_bytes > 0 ? limit_bytes : machine_bytes() / 4 * 3) {}

std::shared_ptr<MemoryBudget> MemoryBudget::on_device(const std::string& device,
                                                      std::int64_t device_bytes) {
  const std::scoped_lock lock(mutex_);
  std::shared_ptr<MemoryBudget>& budget = devices_[device];
  if (budget == nullptr) {
    const std::int64_t most =
        device_bytes > 0 ? device_bytes : std::numeric_limits<std::int64_t>::max();
    budget = std::make_shared<MemoryBudget>(given_ > 0 ? given_ : most);
    budget->device_ = device;
  }
  return budget;
}

void MemoryBudget::reserve(std::int64_t bytes) {
  const std::int64_t before = used_.fetch_add(bytes, std::memory_order_relaxed);
  if (bytes > limit_ || before > limit_ - bytes) {
    used_.fetch_sub(bytes, std::memory_order_relaxed);
    throw DeviceError(
        {.what = "out of memory budget" + (device_.empty() ? "" : " on device '" + device_ + "'") +
                 ": " + std::to_string(bytes) + " bytes requested, " + std::to_string(before) +
                 " in use, " + std::to_string(limit_) + " allowed",
         .hint = "Use a smaller batch or model, or raise the memory limit."});
  }
}

void MemoryBudget::release(std::int64_t bytes) noexcept {
  used_.fetch_sub(bytes, std::memory_order_relaxed);
}

std::shared_ptr<MemoryBudget> current_budget() {
  static const auto default_budget = std::make_shared<MemoryBudget>();
  const std::shared_ptr<MemoryBudget>& scoped = slot();
  return scoped ? scoped : default_budget;
}

MemoryBudgetScope::MemoryBudgetScope(std::shared_ptr<MemoryBudget> budget)
    : previous_(std::exchange(slot(), std::move(budget))) {}

MemoryBudgetScope::~MemoryBudgetScope() { slot() = std::move(previous_); }

namespace {

constexpr std::int64_t kAlignment = 64;
constexpr std::size_t kLargePage = std::size_t{2} << 20;

// Large blocks may have large pages: a page is cleared when it is first touched, and the kernel
// takes longer for many small ones than for a few of 2 MiB.
void* allocate(std::size_t bytes, std::size_t alignment) {
#ifdef MADV_HUGEPAGE
  if (bytes >= 2 * kLargePage) {
    const std::size_t pages = (bytes + kLargePage - 1) / kLargePage;
    void* data = std::aligned_alloc(kLargePage, pages * kLargePage);
    if (data != nullptr) (void)::madvise(data, bytes, MADV_HUGEPAGE);  // only a wish
    return data;
  }
#endif
  return std::aligned_alloc(alignment, bytes);
}

std::int64_t block_bytes(std::int64_t bytes) {
  return round_up(std::max<std::int64_t>(bytes, 1), kAlignment);
}

// Memory for `bytes` from `take`, of block_bytes(), until `give_back`.
template <class Take, class GiveBack>
std::shared_ptr<std::byte> taken(std::int64_t bytes, const Take& take, const GiveBack& give_back) {
  const auto size = static_cast<std::size_t>(block_bytes(bytes));
  void* data = take(size);
  if (data == nullptr) {
    throw DeviceError({.what = "the system has no memory for " + std::to_string(bytes) + " bytes",
                       .hint = "Use a smaller batch or model, or close other programs."});
  }
  return {static_cast<std::byte*>(data),
          [size, give_back](std::byte* memory) { give_back(memory, size); }};
}

// Such memory, charged to the budget.
template <class Take, class GiveBack>
std::shared_ptr<std::byte> charged(std::int64_t bytes, const Take& take,
                                   const GiveBack& give_back) {
  const std::int64_t size = block_bytes(bytes);
  std::shared_ptr<MemoryBudget> budget = current_budget();
  budget->reserve(size);
  try {
    return taken(bytes, take, [budget, size, give_back](std::byte* memory, std::size_t length) {
      give_back(memory, length);
      budget->release(size);
    });
  } catch (...) {
    budget->release(size);
    throw;
  }
}

}  // namespace

std::shared_ptr<std::byte> allocate_aligned(std::int64_t bytes) {
  return charged(
      bytes, [](std::size_t size) { return allocate(size, kAlignment); },
      [](std::byte* data, std::size_t /*size*/) { std::free(data); });
}

std::shared_ptr<std::byte> allocate_uncharged(std::int64_t bytes) {
  return taken(
      bytes, [](std::size_t size) { return allocate(size, kAlignment); },
      [](std::byte* data, std::size_t /*size*/) { std::free(data); });
}

std::shared_ptr<std::byte> allocate_zeros(std::int64_t bytes) {
  if (bytes < static_cast<std::int64_t>(2 * kLargePage)) {
    std::shared_ptr<std::byte> memory = allocate_aligned(bytes);
    std::memset(memory.get(), 0, static_cast<std::size_t>(bytes));
    return memory;
  }
  // The kernel's pages are zero; one that is only read is the same one for all.
  const auto map = [](std::size_t size) -> void* {
    void* data = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) return nullptr;
#ifdef MADV_HUGEPAGE
    (void)::madvise(data, size, MADV_HUGEPAGE);  // only a wish
#endif
    return data;
  };
  return charged(bytes, map, [](std::byte* data, std::size_t size) { (void)::munmap(data, size); });
}

}  // namespace onnxgrad::base
