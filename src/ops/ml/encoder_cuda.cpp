#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ops/index_walk_cuda.h"
#include "ops/ml/label_table.h"

// Encoders of numbers: a binary search among the sorted keys. Strings, and encoders that refuse
// other categories, stay on the CPU.

namespace onnxgrad::ops::encoder_cuda {
namespace {

using device::cuda::TextKernel;
using device::cuda::Word;

// og_T: of x; og_K: of keys, in ascending order; og_V: of as many bytes as an element of y.
constexpr const char* kText = R"(
// The place of a key; their number: it is not among them.
OG_FUNCTION og_i64 og_find(const og_K* keys, og_i64 count, og_K key) {
  og_i64 first = 0, end = count;
  while (first < end) {
    const og_i64 middle = (first + end) / 2;
    if (keys[middle] < key) first = middle + 1;
    else end = middle;
  }
  return first < count && keys[first] == key ? first : count;
}

// Words: x, y, keys, a value for each, for others and for NaN; elements, keys.
OG_KERNEL(og_label_encode, 6) {
  const og_T* const x = a.pointer<const og_T>(0);
  const og_V* const values = a.pointer<const og_V>(3);
  const og_i64 count = a.integer(5);
  for (og_i64 i = og_first(); i < a.integer(4); i += og_stride()) {
    const og_K key = (og_K)x[i];
    a.pointer<og_V>(1)[i] =
        values[key != key ? count + 1 : og_find(a.pointer<const og_K>(2), count, key)];
  }
}

// Words: x, y, keys, the column of each, -1 for others; elements of y, columns, keys. Floats are
// truncated, as in onnxruntime.
OG_KERNEL(og_one_hot_encode, 7) {
  const og_T* const x = a.pointer<const og_T>(0);
  const og_i64* const columns = a.pointer<const og_i64>(3);
  const og_i64 width = a.integer(5), count = a.integer(6);
  for (og_i64 i = og_first(); i < a.integer(4); i += og_stride()) {
    const og_T value = x[i / width];
    const bool is_integer =
        !OG_IS_FLOAT || (value > -4611686018427387904.0 && value < 4611686018427387904.0);
    const og_i64 place =
        is_integer ? og_find(a.pointer<const og_K>(2), count, (og_K)(og_i64)value) : count;
    a.pointer<float>(1)[i] = columns[place] == i % width ? 1.0f : 0.0f;
  }
}
)";

std::string text_of(DataType dtype, bool has_integer_keys, std::int64_t value_bytes) {
  return typed_text(walk_type(dtype)) +
         fmt::format("typedef {} og_K;\ntypedef og_u{} og_V;\nenum {{ OG_IS_FLOAT = {} }};\n",
                     has_integer_keys ? "og_i64" : "double", value_bytes * 8,
                     is_floating(dtype) ? 1 : 0) +
         kText;
}

/// The tables of a kernel, in the memory of the card.
struct Tables {
  std::int64_t num_keys = 0;
  device::Buffer keys, values;
};

Word address(const device::Buffer& buffer) {
  return Word::of(static_cast<std::int64_t>(buffer.address));
}

KernelOffer offer_of(TextKernel kernel, std::shared_ptr<const Tables> tables) {
  kernel.keeps = std::move(tables);
  KernelOffer offer;
  offer.kernel = prepared(std::move(kernel), "search in sorted keys");
  return offer;
}

bool has_numbers(DataType dtype) {
  return dtype == DataType::kFloat32 || dtype == DataType::kFloat64 || dtype == DataType::kInt64 ||
         dtype == DataType::kInt32;
}

// The key of each row and its value, then those of others and of NaN.
template <class Key>
Tables tables_of(const KernelRequest& request, const std::vector<Key>& given,
                 const Tensor& values) {
  const SortedKeys<Key> sorted(given);
  const std::int64_t others = values.num_elements() - 1;
  const auto bytes = static_cast<std::size_t>(element_bytes(values.dtype()));
  std::vector<Key> keys;
  std::vector<std::byte> chosen;
  const auto add = [&](std::int64_t place) {
    const std::byte* const value = values.raw() + static_cast<std::size_t>(place) * bytes;
    chosen.insert(chosen.end(), value, value + bytes);
  };
  for (const auto& [key, place] : sorted.rows) {
    keys.push_back(key);
    add(place);
  }
  add(others);
  add(sorted.nan < 0 ? others : sorted.nan);
  return {.num_keys = std::ssize(keys),
          .keys = upload(request, keys),
          .values = upload(request, chosen)};
}

KernelOffer offer_label_encoder(const KernelRequest& request) {
  const DataType from = request.inputs[0].dtype;
  const DataType to = request.outputs[0].dtype;
  if (!has_numbers(from) && from != DataType::kInt16) return decline_dtype(request, from);
  if (to == DataType::kString || size_bits(to) % 8 != 0 || element_bytes(to) > 8) {
    return decline_dtype(request, to);
  }
  const LabelTable table = read_label_table(request);
  if (table.keys.dtype() == DataType::kString) {
    return KernelOffer::decline("there are no keys of this type");
  }
  const bool has_integer_keys = !is_floating(from);
  const auto tables = std::make_shared<const Tables>(
      has_integer_keys ? tables_of(request, table.keys.to_int64s(), table.values)
                       : tables_of(request, table.keys.to_doubles(), table.values));
  const std::int64_t elements = request.inputs[0].dims.num_elements();
  return offer_of(
      text_kernel_over(request, elements, text_of(from, has_integer_keys, element_bytes(to)),
                       "og_label_encode",
                       {Word::argument(0), Word::argument(1), address(tables->keys),
                        address(tables->values), Word::of(elements), Word::of(tables->num_keys)}),
      tables);
}

KernelOffer offer_one_hot_encoder(const KernelRequest& request) {
  const DataType dtype = request.inputs[0].dtype;
  if (!has_numbers(dtype)) return decline_dtype(request, dtype);
  const std::vector<std::int64_t> categories = request.node.ints_attribute("cats_int64s");
  if (categories.empty()) return KernelOffer::decline("there are no categories of this type");
  if (request.node.int_attribute("zeros") == 0) {
    return KernelOffer::decline("other categories are refused");
  }
  std::vector<std::int64_t> keys, columns;
  for (const auto& [key, place] : SortedKeys<std::int64_t>(categories).rows) {
    keys.push_back(key);
    columns.push_back(place);
  }
  columns.push_back(-1);
  const auto tables = std::make_shared<const Tables>(Tables{.num_keys = std::ssize(keys),
                                                            .keys = upload(request, keys),
                                                            .values = upload(request, columns)});
  const std::int64_t width = std::ssize(categories);
  const std::int64_t elements = request.inputs[0].dims.num_elements() * width;
  return offer_of(text_kernel_over(request, elements, text_of(dtype, true, 8), "og_one_hot_encode",
                                   {Word::argument(0), Word::argument(1), address(tables->keys),
                                    address(tables->values), Word::of(elements), Word::of(width),
                                    Word::of(tables->num_keys)}),
                  tables);
}

}  // namespace

void register_encoder_cuda(opdef::KernelRegistry& registry) {
  registry.add("ai.onnx.ml", "LabelEncoder", 0, offer_label_encoder);
  registry.add("ai.onnx.ml", "OneHotEncoder", 0, offer_one_hot_encoder);
}

}  // namespace onnxgrad::ops::encoder_cuda
