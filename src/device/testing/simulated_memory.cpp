#include "device/testing/simulated_memory.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <utility>

#include "base/memory_budget.h"
#include "base/rounding.h"

namespace onnxgrad::device::testing {
namespace {

// Bit 62 makes an address non-canonical: x86-64 and AArch64 fault on any use of it as a pointer.
constexpr std::uintptr_t kTag = std::uintptr_t{1} << 62;

}  // namespace

void die(std::string_view what) {
  std::fprintf(stderr, "simulated device: %.*s\n", static_cast<int>(what.size()), what.data());
  std::abort();
}

void SimulatedMemory::add(Ranges& ranges, std::uintptr_t at, std::int64_t bytes) {
  const std::scoped_lock lock(mutex_);
  ranges.emplace(at, Range{.bytes = bytes, .number = ++allocations_});
}

void SimulatedMemory::remove(Ranges& ranges, std::uintptr_t at) {
  const std::scoped_lock lock(mutex_);
  ranges.erase(at);
}

Buffer SimulatedMemory::allocate(const std::shared_ptr<SimulatedMemory>& self, std::int64_t bytes,
                                 std::int64_t alignment) {
  const std::shared_ptr<std::byte> real = base::allocate_uncharged(bytes + alignment);
  const auto begin = reinterpret_cast<std::intptr_t>(real.get());
  const std::intptr_t skipped = base::round_up(begin, alignment) - begin;
  std::memset(real.get() + skipped, kPoison, static_cast<std::size_t>(bytes));
  const std::uintptr_t tagged = static_cast<std::uintptr_t>(begin + skipped) | kTag;
  self->add(self->buffers_, tagged, bytes);
  std::shared_ptr<const void> owner(
      real.get(), [self, real, tagged](const void*) { self->remove(self->buffers_, tagged); });
  return {.address = Address{tagged}, .bytes = bytes, .owner = std::move(owner)};
}

std::shared_ptr<std::byte> SimulatedMemory::allocate_staging(
    const std::shared_ptr<SimulatedMemory>& self, std::int64_t bytes) {
  const std::shared_ptr<std::byte> real = base::allocate_aligned(bytes);
  const auto at = reinterpret_cast<std::uintptr_t>(real.get());
  self->add(self->staging_, at, bytes);
  return {real.get(), [self, real, at](std::byte*) { self->remove(self->staging_, at); }};
}

SimulatedMemory::Found SimulatedMemory::find(const Ranges& ranges, std::uintptr_t at,
                                             std::int64_t bytes) const {
  const std::scoped_lock lock(mutex_);
  const auto next = ranges.upper_bound(at);
  if (next == ranges.begin()) return Found::kNo;
  const auto& [begin, range] = *std::prev(next);
  const bool is_within = static_cast<std::int64_t>(at - begin) + bytes <= range.bytes;
  return is_within ? Found::kYes : Found::kTooLong;
}

std::byte* SimulatedMemory::pointer(Address address, std::int64_t bytes) const {
  const auto at = static_cast<std::uintptr_t>(address);
  const Found found = find(buffers_, at, bytes);
  if (found == Found::kNo) die("an address that is not memory of the device");
  if (found == Found::kTooLong) die("an address outside the device's buffers");
  return reinterpret_cast<std::byte*>(at & ~kTag);  // NOLINT(performance-no-int-to-ptr)
}

SimulatedMemory::Allocation SimulatedMemory::allocation(Address address) const {
  const auto at = static_cast<std::uintptr_t>(address);
  const std::scoped_lock lock(mutex_);
  const auto next = buffers_.upper_bound(at);
  if (next == buffers_.begin()) die("an address that is not memory of the device");
  const auto& [begin, range] = *std::prev(next);
  return {begin, range.number};
}

bool SimulatedMemory::has(const Allocation& allocation) const {
  const std::scoped_lock lock(mutex_);
  const auto range = buffers_.find(allocation.first);
  return range != buffers_.end() && range->second.number == allocation.second;
}

void SimulatedMemory::check_staging(const std::byte* from, std::int64_t bytes) const {
  if (find(staging_, reinterpret_cast<std::uintptr_t>(from), bytes) == Found::kYes) return;
  die("a copy from staging memory that is not there");
}

}  // namespace onnxgrad::device::testing
