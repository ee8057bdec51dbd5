#include <algorithm>
#include <numeric>
#include <string>
#include <type_traits>
#include <vector>

#include "base/f16.h"
#include "onnxgrad/error.h"
#include "opdef/kernel.h"
#include "ops/kernel_support.h"

// Compared items are single elements, or slices along the axis: x is [outer, items, inner], and
// item i has the outer * inner elements x[:, i, :]. Items are sorted by value, equal ones by
// position; the first of each group represents it.

namespace onnxgrad::ops::unique_cpu {
namespace {

struct Items {
  std::int64_t outer = 1;
  std::int64_t count = 0;
  std::int64_t inner = 1;
};

struct Groups {
  std::vector<std::int64_t> first;    // position of the first item of each group
  std::vector<std::int64_t> inverse;  // the group of each item
  std::vector<std::int64_t> sizes;
};

// Orders values, then NaN; all NaN are equal.
template <class T>
bool comes_before(const T& a, const T& b) {
  if constexpr (std::is_same_v<T, base::Float16> || std::is_same_v<T, base::Bfloat16>) {
    return comes_before(base::to_float(a), base::to_float(b));
  } else if constexpr (std::is_floating_point_v<T>) {
    return a < b || (b != b && a == a);
  } else {
    return a < b;
  }
}

template <class T>
class ItemOrder {
 public:
  ItemOrder(const T* x, const Items& items) : x_(x), items_(items) {}

  bool operator()(std::int64_t i, std::int64_t j) const {
    for (std::int64_t o = 0; o < items_.outer; ++o) {
      const T* a = x_ + (o * items_.count + i) * items_.inner;
      const T* b = x_ + (o * items_.count + j) * items_.inner;
      for (std::int64_t k = 0; k < items_.inner; ++k) {
        if (comes_before(a[k], b[k])) return true;
        if (comes_before(b[k], a[k])) return false;
      }
    }
    return false;
  }

 private:
  const T* x_;
  Items items_;
};

template <class T>
Groups find_groups(const T* x, const Items& items, bool is_sorted) {
  const ItemOrder<T> before(x, items);
  std::vector<std::int64_t> order(static_cast<std::size_t>(items.count));
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, before);
  Groups groups;
  groups.inverse.resize(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (i == 0 || before(order[i - 1], order[i])) {
      groups.first.push_back(order[i]);
      groups.sizes.push_back(0);
    }
    ++groups.sizes.back();
    groups.inverse[static_cast<std::size_t>(order[i])] =
        static_cast<std::int64_t>(groups.first.size()) - 1;
  }
  if (is_sorted) return groups;
  // Orders the groups by first occurrence.
  std::vector<std::int64_t> by_place(groups.first.size());
  std::iota(by_place.begin(), by_place.end(), 0);
  std::ranges::sort(by_place, {},
                    [&](auto g) { return groups.first[static_cast<std::size_t>(g)]; });
  Groups result;
  std::vector<std::int64_t> rank(by_place.size());
  for (const std::int64_t group : by_place) {
    const auto g = static_cast<std::size_t>(group);
    rank[g] = static_cast<std::int64_t>(result.first.size());
    result.first.push_back(groups.first[g]);
    result.sizes.push_back(groups.sizes[g]);
  }
  for (const std::int64_t group : groups.inverse) {
    result.inverse.push_back(rank[static_cast<std::size_t>(group)]);
  }
  return result;
}

template <class T>
void pick(const T* x, const Items& items, const std::vector<std::int64_t>& places, T* y) {
  for (std::int64_t o = 0; o < items.outer; ++o) {
    for (const std::int64_t place : places) {
      y = std::copy_n(x + (o * items.count + place) * items.inner, items.inner, y);
    }
  }
}

Tensor int64s(const std::vector<std::int64_t>& numbers) {
  return Tensor::from(numbers, Dims{static_cast<std::int64_t>(numbers.size())});
}

template <class T>
std::vector<Tensor> unique_of(const T* x, const Tensor& input, const Items& items, bool is_sorted,
                              std::vector<std::int64_t> dims, std::size_t axis) {
  const Groups groups = find_groups(x, items, is_sorted);
  dims[axis] = static_cast<std::int64_t>(groups.first.size());
  Tensor y = Tensor::empty(input.dtype(), Dims(std::move(dims)));
  if constexpr (std::is_same_v<T, std::string>)
    pick(x, items, groups.first, y.mutable_strings().data());
  else
    pick(x, items, groups.first, reinterpret_cast<T*>(y.mutable_raw()));
  return {y, int64s(groups.first), int64s(groups.inverse), int64s(groups.sizes)};
}

std::vector<Tensor> run_unique(const DynamicCall& call) {
  Tensor x = call.inputs.at(0);
  const bool is_flat = call.node.find_attribute("axis") == nullptr;
  if (is_flat) x = x.reshaped(Dims{x.num_elements()});
  const std::size_t rank = x.dims().rank();
  const std::size_t axis =
      is_flat ? 0 : static_cast<std::size_t>(normalize_axis(call.node.int_attribute("axis"), rank));
  const Items items{.outer = x.dims().product(0, axis),
                    .count = x.dims()[axis],
                    .inner = x.dims().product(axis + 1, rank)};
  const bool is_sorted = call.node.int_attribute("sorted") != 0;
  const std::vector<std::int64_t> dims(x.dims().begin(), x.dims().end());
  if (x.dtype() == DataType::kString) {
    return unique_of(x.strings().data(), x, items, is_sorted, dims, axis);
  }
  std::vector<Tensor> results;
  const auto of = [&]<class T>(T /*element*/) {
    results = unique_of(reinterpret_cast<const T*>(x.raw()), x, items, is_sorted, dims, axis);
  };
  const DataType dtype = x.dtype() == DataType::kBool ? DataType::kUint8 : x.dtype();
  if (!base::visit_types<float, double, base::Float16, base::Bfloat16, std::int8_t, std::int16_t,
                         std::int32_t, std::int64_t, std::uint8_t, std::uint16_t, std::uint32_t,
                         std::uint64_t>(dtype, of)) {
    throw UnsupportedOperatorError({.what = "no kernel for " + std::string(dtype_name(x.dtype())),
                                    .where = {.node = call.node.name, .op_type = "Unique"},
                                    .hint = "Put a Cast to float32 or int64 before it."});
  }
  return results;
}

}  // namespace

void register_unique_cpu(opdef::KernelRegistry& registry) {
  registry.add_dynamic("", "Unique", run_unique);
}

}  // namespace onnxgrad::ops::unique_cpu
