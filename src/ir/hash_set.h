#ifndef ONNXGRAD_IR_HASH_SET_H_
#define ONNXGRAD_IR_HASH_SET_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace onnxgrad::ir {

/// A set of hashes in one piece of memory.
class HashSet {
 public:
  bool contains(std::uint64_t hash) const { return slots_[slot_of(stored(hash))] != 0; }
  /// Inserts a hash; false if it was there.
  bool insert(std::uint64_t hash) {
    std::uint64_t& slot = slots_[slot_of(stored(hash))];
    if (slot != 0) return false;
    slot = stored(hash);
    if (2 * ++size_ > slots_.size()) grow();
    return true;
  }

 private:
  static std::uint64_t stored(std::uint64_t hash) { return hash == 0 ? 1 : hash; }

  // The slot of the hash, or the one it would go to.
  std::size_t slot_of(std::uint64_t hash) const {
    const std::size_t mask = slots_.size() - 1;
    std::size_t slot = static_cast<std::size_t>(hash) & mask;
    while (slots_[slot] != 0 && slots_[slot] != hash) slot = (slot + 1) & mask;
    return slot;
  }

  void grow() {
    std::vector<std::uint64_t> old(2 * slots_.size());
    old.swap(slots_);
    for (const std::uint64_t hash : old) {
      if (hash != 0) slots_[slot_of(hash)] = hash;
    }
  }

  /// Slots of an open-addressing table with linear probing; 0: free. The size is a power of two.
  std::vector<std::uint64_t> slots_ = std::vector<std::uint64_t>(64);
  std::size_t size_ = 0;
};

}  // namespace onnxgrad::ir

#endif  // ONNXGRAD_IR_HASH_SET_H_
