#include "device/testing/simulated_shadow.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/memory_budget.h"
#include "base/rounding.h"
#include "device/testing/simulated_memory.h"

namespace onnxgrad::device::testing {
namespace {

constexpr std::int64_t kUnit = 256;    // alignment of what is not in the middle of a buffer
constexpr std::int64_t kZone = kUnit;  // and what alignment adds

constexpr std::size_t kLongestZone = 4 * kUnit;

// NaN in every floating-point type, and bytes that no kernel writes by accident.
constexpr std::array<std::byte, kLongestZone> kZoneBytes = [] {
  std::array<std::byte, kLongestZone> bytes{};
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = i % 2 == 0 ? std::byte{0xF5} : std::byte{0xFF};
  return bytes;
}();

void fill_zone(std::byte* begin, const std::byte* end) {
  std::memcpy(begin, kZoneBytes.data(), static_cast<std::size_t>(end - begin));
}

bool is_zone(const std::byte* begin, const std::byte* end) {
  return std::memcmp(begin, kZoneBytes.data(), static_cast<std::size_t>(end - begin)) == 0;
}

// A range of the device's memory that one argument, or several that overlap, lie in.
struct Shadow {
  std::byte* real = nullptr;
  std::int64_t bytes = 0;
  std::byte* copy = nullptr;
  std::vector<std::size_t> args = {};
};

class Shadows {
 public:
  Shadows(const KeptCall& call, std::span<std::byte* const> args)
      : call_(call), args_(args), operands_(call.operands), pointers_(args.size()) {
    group();
    place();
    fill();
  }

  std::byte* const* pointers() const { return pointers_.data(); }

  /// Checks what the kernel has done, and returns its results.
  void finish() const {
    const std::byte* free = memory_;
    for (const Shadow& shadow : shadows_) {
      if (!is_zone(free, shadow.copy) || !is_zone(shadow.copy + shadow.bytes, zone_end(shadow))) {
        complain("writes outside of", shadow);
      }
      free = zone_end(shadow);
      check_inputs(shadow);
    }
    for (const Shadow& shadow : shadows_) {
      for (const std::size_t i : shadow.args) {
        if (!operands_[i].is_written) continue;
        std::memcpy(args_[i], pointers_[i], static_cast<std::size_t>(operands_[i].bytes));
      }
    }
  }

 private:
  void group() {
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < args_.size(); ++i) {
      if (args_[i] != nullptr) order.push_back(i);
    }
    std::ranges::stable_sort(order, std::less<>(), [&](std::size_t i) { return args_[i]; });
    for (const std::size_t i : order) {
      const std::int64_t bytes = operands_[i].bytes;
      if (!shadows_.empty()) {
        Shadow& last = shadows_.back();
        const std::int64_t offset = args_[i] - last.real;
        if (offset < last.bytes || offset == 0) {
          last.bytes = std::max(last.bytes, offset + bytes);
          last.args.push_back(i);
          continue;
        }
      }
      shadows_.push_back({.real = args_[i], .bytes = bytes, .args = {i}});
    }
  }

  static std::byte* zone_end(const Shadow& shadow) { return shadow.copy + shadow.bytes + kZone; }

  // One after another, aligned as they are in the device's memory.
  void place() {
    std::int64_t size = 2 * kUnit;
    for (const Shadow& shadow : shadows_) size += shadow.bytes + 2 * kZone + 2 * kUnit;
    memory_ = reserve(size);
    std::byte* free = memory_;
    for (Shadow& shadow : shadows_) {
      const auto real = reinterpret_cast<std::intptr_t>(shadow.real);
      const auto least = reinterpret_cast<std::intptr_t>(free + kZone);
      const std::intptr_t at = base::round_up(least, kUnit) + real % kUnit;
      shadow.copy = free + kZone + (at - least);
      fill_zone(free, shadow.copy);
      fill_zone(shadow.copy + shadow.bytes, zone_end(shadow));
      free = zone_end(shadow);
      for (const std::size_t i : shadow.args) {
        pointers_[i] = shadow.copy + (args_[i] - shadow.real);
      }
    }
  }

  // Memory of this thread, for the kernel that runs.
  static std::byte* reserve(std::int64_t size) {
    thread_local std::shared_ptr<std::byte> memory;
    thread_local std::int64_t reserved = 0;
    if (size > reserved) {
      memory = base::allocate_uncharged(size);
      reserved = size;
    }
    return memory.get();
  }

  void fill() const {
    for (const Shadow& shadow : shadows_) {
      for (const std::size_t i : shadow.args) {
        std::memset(pointers_[i], kPoison, static_cast<std::size_t>(operands_[i].bytes));
      }
      for (const std::size_t i : shadow.args) {
        if (!operands_[i].is_read) continue;
        std::memcpy(pointers_[i], args_[i], static_cast<std::size_t>(operands_[i].bytes));
      }
    }
  }

  bool is_written(const Shadow& shadow, std::int64_t at) const {
    return std::ranges::any_of(shadow.args, [&](std::size_t i) {
      const std::int64_t offset = at - (args_[i] - shadow.real);
      return operands_[i].is_written && offset >= 0 && offset < operands_[i].bytes;
    });
  }

  void check_inputs(const Shadow& shadow) const {
    for (const std::size_t i : shadow.args) {
      const auto bytes = static_cast<std::size_t>(operands_[i].bytes);
      if (!operands_[i].is_read || std::memcmp(args_[i], pointers_[i], bytes) == 0) continue;
      for (std::size_t b = 0; b < bytes; ++b) {
        const bool is_same = args_[i][b] == pointers_[i][b];
        if (is_same || is_written(shadow, pointers_[i] + b - shadow.copy)) continue;
        complain("writes to its input,", shadow);
      }
    }
  }

  [[noreturn]] void complain(const char* what, const Shadow& shadow) const {
    std::string text = call_.name + " " + what;
    for (const std::size_t i : shadow.args) text += " argument " + std::to_string(i);
    die(text + " of " + std::to_string(shadow.bytes) + " bytes");
  }

  const KeptCall& call_;
  std::span<std::byte* const> args_;
  std::span<const Operand> operands_;
  std::vector<std::byte*> pointers_;
  std::vector<Shadow> shadows_;  // by address
  std::byte* memory_ = nullptr;
};

}  // namespace

void run_on_shadows(const KeptCall& call, std::span<std::byte* const> args,
                    const opdef::StepCells& cells) {
  const Shadows shadows(call, args);
  opdef::StepCells own = cells;
  call.fn(call.data, shadows.pointers(), {.stream = nullptr, .cells = &own});
  if (!(own == cells)) die(call.name + " writes to the cells");
  shadows.finish();
}

}  // namespace onnxgrad::device::testing
