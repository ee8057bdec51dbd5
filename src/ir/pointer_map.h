#ifndef ONNXGRAD_IR_POINTER_MAP_H_
#define ONNXGRAD_IR_POINTER_MAP_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace onnxgrad::ir {

/// A hash table from addresses of nodes or values, nullptr excluded, in one piece of memory. Walks
/// over a graph make many of these. References are valid until the next insertion.
template <class Key, class T>
class PointerMap {
 public:
  /// Reserves space for `count` entries.
  explicit PointerMap(std::size_t count = 8) : entries_(std::bit_ceil(2 * count + 2)) {}

  std::size_t size() const { return size_; }
  bool contains(const Key* key) const { return find(key) != nullptr; }
  /// The entry of `key`; nullptr if there is none.
  T* find(const Key* key) {
    Entry& entry = entries_[slot_of(key)];
    return key != nullptr && entry.key == key ? &entry.value : nullptr;
  }
  const T* find(const Key* key) const {
    return const_cast<PointerMap*>(this)->find(key);
  }  // NOLINT
  /// The entry of `key`, added if there is none.
  T& operator[](const Key* key) {
    if (T* known = find(key)) return *known;
    if (2 * ++size_ > entries_.size()) grow();
    Entry& entry = entries_[slot_of(key)];
    entry.key = key;
    return entry.value;
  }
  /// Visits all entries, in an order that differs from run to run.
  template <class Visit>
  void for_each(const Visit& visit) {
    for (Entry& entry : entries_) {
      if (entry.key != nullptr) visit(entry.key, entry.value);
    }
  }

 private:
  struct Entry {
    const Key* key = nullptr;
    T value = {};
  };

  // The slot of the key, or the one it would go to.
  std::size_t slot_of(const Key* key) const {
    constexpr std::uint64_t kSpread = 0x9E3779B97F4A7C15;
    const auto hash = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(key)) * kSpread;
    const std::size_t mask = entries_.size() - 1;
    std::size_t slot = static_cast<std::size_t>(hash >> 32) & mask;
    while (entries_[slot].key != nullptr && entries_[slot].key != key) slot = (slot + 1) & mask;
    return slot;
  }

  void grow() {
    std::vector<Entry> old(2 * entries_.size());
    old.swap(entries_);
    for (Entry& entry : old) {
      if (entry.key != nullptr) entries_[slot_of(entry.key)] = std::move(entry);
    }
  }

  std::vector<Entry> entries_;  ///< linear probing; the size is a power of two
  std::size_t size_ = 0;
};

/// A set of addresses of nodes or values.
template <class Key>
class PointerSet {
 public:
  explicit PointerSet(std::size_t count = 8) : keys_(count) {}
  bool contains(const Key* key) const { return keys_.contains(key); }
  /// Inserts a key; false if it was there.
  bool insert(const Key* key) {
    const std::size_t before = keys_.size();
    static_cast<void>(keys_[key]);
    return keys_.size() > before;
  }

 private:
  struct Nothing {};
  PointerMap<Key, Nothing> keys_;
};

}  // namespace onnxgrad::ir

#endif  // ONNXGRAD_IR_POINTER_MAP_H_
