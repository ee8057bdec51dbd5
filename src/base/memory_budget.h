#ifndef ONNXGRAD_BASE_MEMORY_BUDGET_H_
#define ONNXGRAD_BASE_MEMORY_BUDGET_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace onnxgrad::base {

/// The total bytes that tensors and arenas may use. Checked before every allocation, so that a
/// malicious file causes an error and does not exhaust the machine's memory. Thread-safe.
class MemoryBudget {
 public:
  /// Sets the limit; limit_bytes == 0: three quarters of the memory of the machine (or cgroup).
  explicit MemoryBudget(std::int64_t limit_bytes = 0);
  /// Reserves bytes. Throws: DeviceError naming bytes requested, in use and allowed.
  void reserve(std::int64_t bytes);
  void release(std::int64_t bytes) noexcept;
  /// The budget for the memory of a device, which has a limit of its own: this one's if it was
  /// given, else the device's `device_bytes` (0: none). Messages name the device.
  std::shared_ptr<MemoryBudget> on_device(const std::string& device, std::int64_t device_bytes);
  std::int64_t used_bytes() const { return used_.load(std::memory_order_relaxed); }
  std::int64_t limit_bytes() const { return limit_; }

 private:
  std::int64_t given_ = 0;  // 0: the limit is that of the machine
  std::int64_t limit_;
  std::string device_ = {};  // "": the memory is the host's
  std::atomic<std::int64_t> used_{0};
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<MemoryBudget>> devices_;
};

/// The active budget on this thread: the innermost MemoryBudgetScope's, else one of the default
/// size.
std::shared_ptr<MemoryBudget> current_budget();

/// Activates `budget` on this thread for the lifetime of the scope.
class MemoryBudgetScope {
 public:
  explicit MemoryBudgetScope(std::shared_ptr<MemoryBudget> budget);
  ~MemoryBudgetScope();
  MemoryBudgetScope(const MemoryBudgetScope&) = delete;
  MemoryBudgetScope& operator=(const MemoryBudgetScope&) = delete;

 private:
  std::shared_ptr<MemoryBudget> previous_;
};

/// 64-byte aligned memory, charged to the current budget and released with the pointer.
/// Throws: DeviceError. `bytes` == 0 returns a valid, unique pointer.
std::shared_ptr<std::byte> allocate_aligned(std::int64_t bytes);
/// Memory from allocate_aligned() that no budget is charged for.
std::shared_ptr<std::byte> allocate_uncharged(std::int64_t bytes);
/// Memory from allocate_aligned(), filled with zeros. A large block uses no memory until it is
/// written to.
std::shared_ptr<std::byte> allocate_zeros(std::int64_t bytes);

}  // namespace onnxgrad::base

#endif  // ONNXGRAD_BASE_MEMORY_BUDGET_H_
