#ifndef ONNXGRAD_DEVICE_TESTING_SIMULATED_MEMORY_H_
#define ONNXGRAD_DEVICE_TESTING_SIMULATED_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>

#include "device/device.h"

// The memory of the simulated device, at addresses that fault when they are used as pointers.

namespace onnxgrad::device::testing {

inline constexpr int kPoison = 0xFF;  // NaN as floating-point number, -1 as integer

/// Ends the process with a message.
[[noreturn]] void die(std::string_view what);

/// Memory that is allocated now, of the device and for staging. Thread-safe.
class SimulatedMemory {
 public:
  /// Returns memory filled with poison; `self` lives as long as it.
  static Buffer allocate(const std::shared_ptr<SimulatedMemory>& self, std::int64_t bytes,
                         std::int64_t alignment);
  static std::shared_ptr<std::byte> allocate_staging(const std::shared_ptr<SimulatedMemory>& self,
                                                     std::int64_t bytes);

  /// Returns the pointer for an address. `bytes` from there on must belong to one buffer.
  std::byte* pointer(Address address, std::int64_t bytes) const;
  /// The allocation that an address is in: it is another one when the address is used again.
  using Allocation = std::pair<std::uintptr_t, std::uint64_t>;
  Allocation allocation(Address address) const;
  bool has(const Allocation& allocation) const;
  /// Checks that staging memory is still there.
  void check_staging(const std::byte* from, std::int64_t bytes) const;

 private:
  struct Range {
    std::int64_t bytes = 0;
    std::uint64_t number = 0;  ///< of the allocation
  };
  using Ranges = std::map<std::uintptr_t, Range>;  // by begin
  enum class Found : std::uint8_t { kYes, kNo, kTooLong };
  Found find(const Ranges& ranges, std::uintptr_t at, std::int64_t bytes) const;
  void add(Ranges& ranges, std::uintptr_t at, std::int64_t bytes);
  void remove(Ranges& ranges, std::uintptr_t at);

  mutable std::mutex mutex_;
  Ranges buffers_;  // by address
  Ranges staging_;
  std::uint64_t allocations_ = 0;
};

}  // namespace onnxgrad::device::testing

#endif  // ONNXGRAD_DEVICE_TESTING_SIMULATED_MEMORY_H_
