#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ops/index_walk_cuda.h"

// OneHotEncoder of numbers: a binary search among the sorted categories for each element of the
// result. Strings, and encoders that refuse other categories, stay on the CPU.

namespace onnxgrad::ops::encoder_cuda {
namespace {

using device::cuda::TextKernel;
using device::cuda::Word;

// Words: x, y, categories in ascending order, the place of each; elements of y, categories,
// categories that differ. Floats are truncated, as in onnxruntime.
constexpr const char* kText = R"(
OG_KERNEL(og_encode, 7) {
  const og_T* const x = a.pointer<const og_T>(0);
  float* const y = a.pointer<float>(1);
  const og_i64* const keys = a.pointer<const og_i64>(2);
  const og_i64* const places = a.pointer<const og_i64>(3);
  const og_i64 width = a.integer(5);
  for (og_i64 i = og_first(); i < a.integer(4); i += og_stride()) {
    const og_T value = x[i / width];
    const bool is_integer = value > -4611686018427387904.0 && value < 4611686018427387904.0;
    const og_i64 key = OG_IS_FLOAT && !is_integer ? 0 : (og_i64)value;
    og_i64 first = 0, end = a.integer(6);
    while (first < end) {
      const og_i64 middle = (first + end) / 2;
      if (keys[middle] < key) first = middle + 1;
      else end = middle;
    }
    const bool is_known = first < a.integer(6) && keys[first] == key && (!OG_IS_FLOAT || is_integer);
    y[i] = is_known && places[first] == i % width ? 1.0f : 0.0f;
  }
}
)";

device::Buffer upload(const KernelRequest& request, const std::vector<std::int64_t>& numbers) {
  const auto& card = card_of(request);
  device::Buffer buffer = card->allocate(std::ssize(numbers) * std::int64_t{8});
  card->upload(buffer, numbers.data());
  return buffer;
}

KernelOffer offer_one_hot_encoder(const KernelRequest& request) {
  const DataType dtype = request.inputs[0].dtype;
  const bool is_float = dtype == DataType::kFloat32 || dtype == DataType::kFloat64;
  if (!is_float && dtype != DataType::kInt64 && dtype != DataType::kInt32) {
    return decline_dtype(request, dtype);
  }
  const std::vector<std::int64_t> categories = request.node.ints_attribute("cats_int64s");
  if (categories.empty()) return KernelOffer::decline("there are no categories of this type");
  if (request.node.int_attribute("zeros") == 0) {
    return KernelOffer::decline("other categories are refused");
  }
  std::vector<std::pair<std::int64_t, std::int64_t>> rows;
  for (const std::int64_t category : categories) {
    rows.emplace_back(category, static_cast<std::int64_t>(rows.size()));
  }
  std::ranges::stable_sort(rows, {}, &std::pair<std::int64_t, std::int64_t>::first);
  std::vector<std::int64_t> keys, places;
  for (const auto& [key, place] : rows) {
    if (!keys.empty() && keys.back() == key) continue;  // the first of equal ones
    keys.push_back(key);
    places.push_back(place);
  }
  struct Kept {
    device::Buffer keys, places;
  };
  const auto width = static_cast<std::int64_t>(categories.size());
  const auto kept = std::make_shared<Kept>(
      Kept{.keys = upload(request, keys), .places = upload(request, places)});
  const std::int64_t elements = request.inputs[0].dims.num_elements() * width;
  const auto address = [](const device::Buffer& buffer) {
    return Word::of(static_cast<std::int64_t>(buffer.address));
  };
  std::vector<Word> words{Word::argument(0),
                          Word::argument(1),
                          address(kept->keys),
                          address(kept->places),
                          Word::of(elements),
                          Word::of(width),
                          Word::of(std::int64_t{std::ssize(keys)})};
  const std::string text = typed_text(walk_type(dtype)) +
                           "enum { OG_IS_FLOAT = " + (is_float ? "1" : "0") + " };\n" + kText;
  TextKernel kernel = text_kernel_over(request, elements, text, "og_encode", std::move(words));
  kernel.keeps = kept;
  KernelOffer offer;
  offer.kernel = prepared(std::move(kernel), "search in sorted keys");
  return offer;
}

}  // namespace

void register_encoder_cuda(opdef::KernelRegistry& registry) {
  registry.add("ai.onnx.ml", "OneHotEncoder", 0, offer_one_hot_encoder);
}

}  // namespace onnxgrad::ops::encoder_cuda
