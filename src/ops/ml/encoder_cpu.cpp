#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>

#include "onnxgrad/error.h"
#include "opdef/kernel.h"
#include "ops/kernel_support.h"

// Kernels of LabelEncoder and OneHotEncoder. Most plans have integer codes in place of strings
// (train/tools/text_codes.h); strings computed by an operator are read directly.

namespace onnxgrad::ops::encoder_cpu {
namespace {

// Sorted keys; among equal ones the first is kept, as in a linear search.
template <class Key>
class KeyTable {
 public:
  explicit KeyTable(const std::vector<Key>& keys) {
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (is_nan(keys[i])) {
        if (nan_ < 0) nan_ = static_cast<std::int64_t>(i);
      } else {
        rows_.emplace_back(keys[i], static_cast<std::int64_t>(i));
      }
    }
    std::ranges::stable_sort(rows_, {}, &Row::first);
    const auto rest = std::ranges::unique(rows_, {}, &Row::first);
    rows_.erase(rest.begin(), rest.end());
    make_dense();
  }

  // Returns the index of the key, -1 if it is absent.
  std::int64_t find(const Key& key) const {
    if (is_nan(key)) return nan_;
    if constexpr (std::is_integral_v<Key>) {
      if (!dense_.empty()) {
        if (key < rows_.front().first || key > rows_.back().first) return -1;
        return dense_[static_cast<std::size_t>(key - rows_.front().first)];
      }
    }
    const auto row = std::ranges::lower_bound(rows_, key, {}, &Row::first);
    return row == rows_.end() || row->first != key ? -1 : row->second;
  }

 private:
  using Row = std::pair<Key, std::int64_t>;

  static bool is_nan(const Key& key) {
    if constexpr (std::is_floating_point_v<Key>) return std::isnan(key);
    return false;
  }

  // Builds a table indexed by key if the keys are integers that lie close together.
  void make_dense() {
    if constexpr (std::is_integral_v<Key>) {
      if (rows_.empty()) return;
      const auto first = static_cast<std::uint64_t>(rows_.front().first);
      const std::uint64_t span = static_cast<std::uint64_t>(rows_.back().first) - first;
      if (span > 4 * rows_.size() + 64) return;
      dense_.assign(static_cast<std::size_t>(span) + 1, -1);
      for (const auto& [key, number] : rows_) {
        dense_[static_cast<std::size_t>(static_cast<std::uint64_t>(key) - first)] = number;
      }
    }
  }

  std::vector<Row> rows_;
  std::vector<std::int64_t> dense_;
  std::int64_t nan_ = -1;
};

template <class Key>
struct LabelData {
  KeyTable<Key> keys;
  std::vector<std::byte> values;  // one per key, then the default; element_bytes each
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
    std::memcpy(y, table.values.data() + place * table.element_bytes, bytes);
    y += bytes;
  }
}

// Returns the elements of the first of these attributes that the node has; undefined if it has
// none.
Tensor first_list(const ir::Node& node, const std::string& prefix) {
  if (const auto* value = node.find_attribute(prefix + "_strings")) {
    const auto& list = std::get<std::vector<std::string>>(*value);
    return Tensor::from_strings(list, {static_cast<std::int64_t>(list.size())});
  }
  if (const auto* value = node.find_attribute(prefix + "_tensor")) {
    if (const auto* tensor = std::get_if<Tensor>(value)) return *tensor;
  }
  if (const auto* value = node.find_attribute(prefix + "_int64s")) {
    const auto& list = std::get<std::vector<std::int64_t>>(*value);
    return Tensor::from(list, {static_cast<std::int64_t>(list.size())});
  }
  if (const auto* value = node.find_attribute(prefix + "_floats")) {
    const auto& list = std::get<std::vector<float>>(*value);
    return Tensor::from(list, {static_cast<std::int64_t>(list.size())});
  }
  return {};
}

Tensor default_value(const ir::Node& node, DataType dtype) {
  if (const auto* value = node.find_attribute("default_tensor")) {
    if (const auto* tensor = std::get_if<Tensor>(value); tensor->num_elements() == 1) {
      return tensor->cast(dtype);
    }
  }
  if (is_floating(dtype)) {
    return Tensor::scalar(node.float_attribute("default_float")).cast(dtype);
  }
  return Tensor::scalar(node.int_attribute("default_int64")).cast(dtype);
}

template <class T, class Key>
KernelOffer make_label_encoder(const KernelRequest& request, const std::vector<Key>& keys,
                               Tensor values) {
  values = values.cast(request.outputs[0].dtype);
  const Tensor fallback = default_value(request.node, values.dtype());
  const std::int64_t bytes = element_bytes(values.dtype());
  LabelData<Key> data{
      .keys = KeyTable<Key>(keys),
      .values = std::vector<std::byte>(static_cast<std::size_t>(values.size_bytes() + bytes)),
      .num_keys = values.num_elements(),
      .element_bytes = bytes,
      .count = request.inputs[0].dims.num_elements()};
  std::memcpy(data.values.data(), values.raw(), static_cast<std::size_t>(values.size_bytes()));
  std::memcpy(data.values.data() + values.size_bytes(), fallback.raw(),
              static_cast<std::size_t>(bytes));
  return prepared<run_label_encoder<T, Key>>(std::move(data), "lookup in sorted keys");
}

KernelOffer offer_label_encoder(const KernelRequest& request) {
  const DataType from = request.inputs[0].dtype;
  const DataType to = request.outputs[0].dtype;
  if (to == DataType::kString) return decline_dtype(request, to);
  const Tensor keys = first_list(request.node, "keys");
  const Tensor values = first_list(request.node, "values");
  if (!keys.is_defined() || !values.is_defined() || keys.num_elements() != values.num_elements()) {
    throw ModelError(
        {.what = fmt::format("{} keys for {} values", keys.is_defined() ? keys.num_elements() : 0,
                             values.is_defined() ? values.num_elements() : 0),
         .where = {.node = request.node.name, .op_type = request.node.op_type},
         .hint = "Give one value for each key."});
  }
  if ((from == DataType::kString) != (keys.dtype() == DataType::kString)) {
    return KernelOffer::decline("there are no keys of this type");
  }
  if (from == DataType::kString) {
    const auto texts = keys.strings();
    return make_label_encoder<std::string, std::string>(
        request, std::vector<std::string>(texts.begin(), texts.end()), values);
  }
  return offer_for_types<float, double, std::int64_t, std::int32_t, std::int16_t>(
      request, from, [&]<class T>(T) {
        if constexpr (std::is_floating_point_v<T>) {
          return make_label_encoder<T, double>(request, keys.to_doubles(), values);
        } else {
          return make_label_encoder<T, std::int64_t>(request, keys.to_int64s(), values);
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
