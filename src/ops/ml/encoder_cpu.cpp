#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>

#include "onnxgrad/error.h"
#include "opdef/kernel.h"
#include "ops/kernel_support.h"
#include "ops/ml/label_table.h"

// Kernels of LabelEncoder and OneHotEncoder. Most plans have integer codes in place of strings
// (train/tools/text_codes.h); strings computed by an operator are read directly.

namespace onnxgrad::ops::encoder_cpu {
namespace {

// Sorted keys, and where they lie close together a table indexed by key.
template <class Key>
class KeyTable {
 public:
  explicit KeyTable(const std::vector<Key>& keys) : sorted_(keys) { make_dense(); }

  // Returns the index of the key, -1 if it is absent.
  std::int64_t find(const Key& key) const {
    const auto& rows = sorted_.rows;
    if (Sorted::is_nan(key)) return sorted_.nan;
    if constexpr (std::is_integral_v<Key>) {
      if (!dense_.empty()) {
        if (key < rows.front().first || key > rows.back().first) return -1;
        return dense_[static_cast<std::size_t>(key - rows.front().first)];
      }
    }
    const auto row = std::ranges::lower_bound(rows, key, {}, &Sorted::Row::first);
    return row == rows.end() || row->first != key ? -1 : row->second;
  }

 private:
  using Sorted = SortedKeys<Key>;

  // Builds a table indexed by key if the keys are integers that lie close together.
  void make_dense() {
    if constexpr (std::is_integral_v<Key>) {
      if (sorted_.rows.empty()) return;
      const auto first = static_cast<std::uint64_t>(sorted_.rows.front().first);
      const std::uint64_t span = static_cast<std::uint64_t>(sorted_.rows.back().first) - first;
      if (span > 4 * sorted_.rows.size() + 64) return;
      dense_.assign(static_cast<std::size_t>(span) + 1, -1);
      for (const auto& [key, number] : sorted_.rows) {
        dense_[static_cast<std::size_t>(static_cast<std::uint64_t>(key) - first)] = number;
      }
    }
  }

  Sorted sorted_;
  std::vector<std::int64_t> dense_;
};

template <class Key>
struct LabelData {
  KeyTable<Key> keys;
  Tensor values;  // one per key, then the default
  std::int64_t num_keys = 0;
  std::int64_t element_bytes = 0;
  std::int64_t count = 0;
};

// x: [count] of type T, y: [count] elements of element_bytes.
template <class T, class Key>
void run_label_encoder(const LabelData<Key>& table, KernelArgs args) {
  const auto* x = args.at<T>(0);
  std::byte* y = args[1];
  const auto bytes = static_cast<std::size_t>(table.element_bytes);
  for (std::int64_t i = 0; i < table.count; ++i) {
    const std::int64_t found = table.keys.find(Key(x[i]));
    const std::int64_t place = found < 0 ? table.num_keys : found;
    std::memcpy(y, table.values.raw() + place * table.element_bytes, bytes);
    y += bytes;
  }
}

template <class T, class Key>
KernelOffer make_label_encoder(const KernelRequest& request, const std::vector<Key>& keys,
                               const Tensor& values) {
  LabelData<Key> data{.keys = KeyTable<Key>(keys),
                      .values = values,
                      .num_keys = values.num_elements() - 1,
                      .element_bytes = element_bytes(values.dtype()),
                      .count = request.inputs[0].dims.num_elements()};
  return prepared<run_label_encoder<T, Key>>(std::move(data), "lookup in sorted keys");
}

KernelOffer offer_label_encoder(const KernelRequest& request) {
  const DataType from = request.inputs[0].dtype;
  const DataType to = request.outputs[0].dtype;
  if (to == DataType::kString) return decline_dtype(request, to);
  const LabelTable table = read_label_table(request);
  const Tensor& keys = table.keys;
  if ((from == DataType::kString) != (keys.dtype() == DataType::kString)) {
    return KernelOffer::decline("there are no keys of this type");
  }
  if (from == DataType::kString) {
    const auto texts = keys.strings();
    return make_label_encoder<std::string, std::string>(
        request, std::vector<std::string>(texts.begin(), texts.end()), table.values);
  }
  return offer_for_types<float, double, std::int64_t, std::int32_t, std::int16_t>(
      request, from, [&]<class T>(T) {
        if constexpr (std::is_floating_point_v<T>) {
          return make_label_encoder<T, double>(request, keys.to_doubles(), table.values);
        } else {
          return make_label_encoder<T, std::int64_t>(request, keys.to_int64s(), table.values);
        }
      });
}

template <class Key>
struct OneHotData {
  KeyTable<Key> keys;
  std::int64_t categories = 0;
  std::int64_t count = 0;
  bool takes_others = true;
  std::string node;
};

[[noreturn]] void refuse_category(const std::string& node, std::int64_t element,
                                  std::int64_t categories) {
  throw DataError(
      {.what = fmt::format("element {} of the input of {} is not one of its {} categories", element,
                           node, categories),
       .hint = "Give known categories, or export the encoder with handle_unknown='ignore'."});
}

// y: [count, categories], at most one 1 per row.
template <class T, class Key>
void run_one_hot_encoder(const OneHotData<Key>& table, KernelArgs args) {
  const auto* x = args.at<T>(0);
  auto* y = args.at<float>(1);
  std::fill_n(y, table.count * table.categories, 0.0F);
  for (std::int64_t i = 0; i < table.count; ++i, y += table.categories) {
    std::int64_t found = -1;
    if constexpr (std::is_floating_point_v<T>) {
      // Floats are truncated to integers, as in onnxruntime.
      constexpr T kLimit = static_cast<T>(1LL << 62);
      if (x[i] > -kLimit && x[i] < kLimit) found = table.keys.find(static_cast<std::int64_t>(x[i]));
    } else {
      found = table.keys.find(x[i]);
    }
    if (found >= 0) {
      y[found] = 1;
    } else if (!table.takes_others) {
      refuse_category(table.node, i, table.categories);
    }
  }
}

template <class Key>
KernelOffer make_one_hot(const KernelRequest& request, opdef::KernelFn fn,
                         const std::vector<Key>& categories) {
  if (categories.empty()) return KernelOffer::decline("there are no categories of this type");
  OneHotData<Key> data{.keys = KeyTable<Key>(categories),
                       .categories = static_cast<std::int64_t>(categories.size()),
                       .count = request.inputs[0].dims.num_elements(),
                       .takes_others = request.node.int_attribute("zeros") != 0,
                       .node = request.node.describe()};
  const bool refuses = !data.takes_others;
  KernelOffer offer = prepared(fn, std::move(data), "lookup in sorted keys");
  if (refuses) offer.kernel.checks = {{.input = 0}};
  return offer;
}

KernelOffer offer_one_hot_encoder(const KernelRequest& request) {
  const DataType from = request.inputs[0].dtype;
  if (from == DataType::kString) {
    const auto* given = request.node.find_attribute("cats_strings");
    const auto* texts = given == nullptr ? nullptr : std::get_if<std::vector<std::string>>(given);
    return make_one_hot(request, kKernel<run_one_hot_encoder<std::string, std::string>>,
                        texts == nullptr ? std::vector<std::string>() : *texts);
  }
  const std::vector<std::int64_t> categories = request.node.ints_attribute("cats_int64s");
  return offer_for_types<float, double, std::int64_t, std::int32_t>(request, from, [&]<class T>(T) {
    return make_one_hot(request, kKernel<run_one_hot_encoder<T, std::int64_t>>, categories);
  });
}

}  // namespace

void register_encoder_cpu(opdef::KernelRegistry& registry) {
  registry.add("ai.onnx.ml", "LabelEncoder", 0, offer_label_encoder);
  registry.add("ai.onnx.ml", "OneHotEncoder", 0, offer_one_hot_encoder);
}

}  // namespace onnxgrad::ops::encoder_cpu
