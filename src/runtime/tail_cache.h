#ifndef ONNXGRAD_RUNTIME_TAIL_CACHE_H_
#define ONNXGRAD_RUNTIME_TAIL_CACHE_H_

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <unordered_map>

namespace onnxgrad::runtime {

class Region;

/// The compiled tails of all regions of an executor, and of the executors of its bodies: the most
/// recently used ones, up to a total. A tail may have tails itself, which are dropped with it.
class TailCache {
 public:
  explicit TailCache(std::size_t max_tails) : max_tails_(max_tails) {}
  ~TailCache();
  TailCache(const TailCache&) = delete;
  TailCache& operator=(const TailCache&) = delete;

  /// The tail of `owner` with that key, valid until the next add(); nullptr if there is none.
  Region* find(const Region& owner, const std::string& key);
  /// Adds the tail; drops the oldest ones that are not running, if there are too many.
  Region& add(Region& owner, const std::string& key, std::unique_ptr<Region> tail);
  /// Drops all tails of a region that is destroyed.
  void drop_tails_of(const Region& owner);

  template <class Visit>
  void for_each(const Visit& visit) const {
    for (const Entry& entry : entries_) visit(*entry.tail);
  }

  template <class Visit>
  void for_each_of(const Region& owner, const Visit& visit) const {
    for (const Entry& entry : entries_) {
      if (entry.owner == &owner) visit(*entry.tail);
    }
  }

  std::int64_t num_compiled = 0;  ///< plans of all kinds, including those no longer cached

 private:
  struct Entry {
    Region* owner = nullptr;
    std::string key;
    std::unique_ptr<Region> tail;
  };
  using Entries = std::list<Entry>;

  static std::string full_key(const Region& owner, const std::string& key);
  void drop(Entries::iterator entry);

  std::size_t max_tails_;
  Entries entries_;  // most recently used first
  std::unordered_map<std::string, Entries::iterator> by_key_;
};

}  // namespace onnxgrad::runtime

#endif  // ONNXGRAD_RUNTIME_TAIL_CACHE_H_
