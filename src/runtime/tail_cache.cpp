#include "runtime/tail_cache.h"

#include <algorithm>
#include <utility>

#include "runtime/region.h"

namespace onnxgrad::runtime {

TailCache::~TailCache() {
  while (!entries_.empty()) drop(entries_.begin());
}

std::string TailCache::full_key(const Region& owner, const std::string& key) {
  const auto address = reinterpret_cast<std::uintptr_t>(&owner);
  return std::string(reinterpret_cast<const char*>(&address), sizeof address) + key;
}

Region* TailCache::find(const Region& owner, const std::string& key) {
  const auto found = by_key_.find(full_key(owner, key));
  if (found == by_key_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, found->second);
  return entries_.front().tail.get();
}

Region& TailCache::add(Region& owner, const std::string& key, std::unique_ptr<Region> tail) {
  while (entries_.size() >= max_tails_) {
    const auto oldest = std::find_if(entries_.rbegin(), entries_.rend(),
                                     [](const Entry& entry) { return !entry.tail->is_running(); });
    if (oldest == entries_.rend()) break;
    drop(std::next(oldest).base());
  }
  std::string full = full_key(owner, key);
  entries_.push_front({.owner = &owner, .key = full, .tail = std::move(tail)});
  by_key_.emplace(std::move(full), entries_.begin());
  return *entries_.front().tail;
}

void TailCache::drop_tails_of(const Region& owner) {
  const auto is_its = [&owner](const Entry& entry) { return entry.owner == &owner; };
  for (auto found = std::ranges::find_if(entries_, is_its); found != entries_.end();
       found = std::ranges::find_if(entries_, is_its)) {
    drop(found);
  }
}

// Remove it from the list first: a tail drops its own tails when destroyed.
void TailCache::drop(Entries::iterator entry) {
  Entries dropped;
  dropped.splice(dropped.begin(), entries_, entry);
  by_key_.erase(entry->key);
  entry->owner->forget(*entry->tail);
}

}  // namespace onnxgrad::runtime
