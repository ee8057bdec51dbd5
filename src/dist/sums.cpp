#include <algorithm>
#include <array>
#include <cstring>

#include "base/f16.h"
#include "dist/schedule.h"

namespace onnxgrad::dist {
namespace {

constexpr std::int64_t kBlock = 1024;  // elements added at a time, in the first-level cache

float widen(base::Bfloat16 value) { return base::to_float(value); }
template <class T>
T widen(T value) {
  return value;
}

template <class To, class Wide>
To narrow(Wide value) {
  if constexpr (std::is_same_v<To, base::Bfloat16>) {
    return base::to_bfloat16(value);
  } else {
    return value;
  }
}

// An overflow wraps, as in NumPy.
template <class T>
T plus(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
  } else {
    return a + b;
  }
}

// The target may be one of the sources: each block is read before it is written.
template <class From, class To>
void add(const std::vector<const std::byte*>& sources, std::byte* target, std::int64_t count) {
  using Wide = decltype(widen(From{}));
  std::array<Wide, kBlock> sum{};
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const std::int64_t n = std::min(kBlock, count - begin);
    const auto* first = reinterpret_cast<const From*>(sources[0]) + begin;
    for (std::int64_t i = 0; i < n; ++i) sum[static_cast<std::size_t>(i)] = widen(first[i]);
    for (std::size_t k = 1; k < sources.size(); ++k) {
      const auto* source = reinterpret_cast<const From*>(sources[k]) + begin;
      for (std::int64_t i = 0; i < n; ++i) {
        Wide& element = sum[static_cast<std::size_t>(i)];
        element = plus<Wide>(element, widen(source[i]));
      }
    }
    auto* out = reinterpret_cast<To*>(target) + begin;
    for (std::int64_t i = 0; i < n; ++i) {
      out[i] = narrow<To, Wide>(sum[static_cast<std::size_t>(i)]);
    }
  }
}

}  // namespace

void add_in_order(const Sum& sum, const std::vector<const std::byte*>& sources, std::byte* target) {
  using As = Sum::As;
  const std::int64_t bytes = sum.sources[0].bytes;
  if (bytes == 0) return;
  if (sources.size() == 1 && sum.from == sum.to) {
    if (sources[0] != target) std::memmove(target, sources[0], static_cast<std::size_t>(bytes));
  } else if (sum.from == As::kFloat32 && sum.to == As::kFloat32) {
    add<float, float>(sources, target, bytes / 4);
  } else if (sum.from == As::kFloat64) {
    add<double, double>(sources, target, bytes / 8);
  } else if (sum.from == As::kInt64) {
    add<std::int64_t, std::int64_t>(sources, target, bytes / 8);
  } else if (sum.from == As::kFloat32) {
    add<float, base::Bfloat16>(sources, target, bytes / 4);
  } else if (sum.to == As::kFloat32) {
    add<base::Bfloat16, float>(sources, target, bytes / 2);
  } else {
    add<base::Bfloat16, base::Bfloat16>(sources, target, bytes / 2);
  }
}

}  // namespace onnxgrad::dist
