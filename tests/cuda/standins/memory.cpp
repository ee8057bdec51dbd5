#include "memory.h"

#include <cstdlib>
#include <cstring>

namespace onnxgrad::cuda_standin {
namespace {

// Bit 62 makes an address non-canonical: x86-64 and AArch64 fault on it.
constexpr std::uint64_t kTag = std::uint64_t{1} << 62;
constexpr std::size_t kAlignment = 512;

}  // namespace

std::uint64_t Memory::allocate(std::size_t bytes) {
  if (bytes > kCapacity - used_) return 0;
  const std::size_t size = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  auto* memory = static_cast<std::byte*>(std::aligned_alloc(kAlignment, size));
  std::memset(memory, 0xFF, size);
  const std::uint64_t address = reinterpret_cast<std::uintptr_t>(memory) | kTag;
  blocks_[address] = {.memory = memory, .bytes = bytes};
  used_ += bytes;
  return address;
}

bool Memory::free(std::uint64_t address) {
  const auto found = blocks_.find(address);
  if (found == blocks_.end()) return false;
  used_ -= found->second.bytes;
  std::free(found->second.memory);
  blocks_.erase(found);
  return true;
}

std::byte* Memory::pointer(std::uint64_t address, std::size_t bytes) const {
  auto block = blocks_.upper_bound(address);
  if (block == blocks_.begin()) return nullptr;
  --block;
  const std::size_t offset = address - block->first;
  return offset + bytes <= block->second.bytes ? block->second.memory + offset : nullptr;
}

}  // namespace onnxgrad::cuda_standin
