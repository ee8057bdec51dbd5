#ifndef ONNXGRAD_OPS_ML_LABEL_TABLE_H_
#define ONNXGRAD_OPS_ML_LABEL_TABLE_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include "onnxgrad/tensor.h"
#include "opdef/kernel.h"

// The tables of encoders, for kernels of any device.

namespace onnxgrad::ops {

/// The table of a LabelEncoder.
struct LabelTable {
  Tensor keys;    ///< numbers or strings
  Tensor values;  ///< one for each key, then the default, in the type of the result
};

/// Reads that of a node whose result is no strings. Throws: ModelError (other numbers of keys and
/// values).
LabelTable read_label_table(const opdef::KernelRequest& request);

/// Keys in ascending order with their places in a list; among equal ones the first is kept, as in a
/// linear search.
template <class Key>
struct SortedKeys {
  using Row = std::pair<Key, std::int64_t>;

  explicit SortedKeys(const std::vector<Key>& keys) {
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (is_nan(keys[i])) {
        if (nan < 0) nan = static_cast<std::int64_t>(i);
      } else {
        rows.emplace_back(keys[i], static_cast<std::int64_t>(i));
      }
    }
    std::ranges::stable_sort(rows, {}, &Row::first);
    const auto rest = std::ranges::unique(rows, {}, &Row::first);
    rows.erase(rest.begin(), rest.end());
  }

  static bool is_nan(const Key& key) {
    if constexpr (std::is_floating_point_v<Key>) return std::isnan(key);
    return false;
  }

  std::vector<Row> rows;
  std::int64_t nan = -1;  ///< the place of a key that is NaN
};

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_ML_LABEL_TABLE_H_
