#include <algorithm>
#include <cmath>
#include <cstring>

#include "opdef/kernel.h"
#include "ops/kernel_support.h"

namespace onnxgrad::ops::one_hot_cpu {
namespace {

// y [outer, depth, inner] is computed from indices [outer, inner].
struct OneHotData {
  std::int64_t outer = 0;
  std::int64_t depth = 0;
  std::int64_t inner = 0;
};

// Returns the position of an index in [0, depth), or -1 if it is out of range.
template <class Index>
std::int64_t hot_place(Index index, std::int64_t depth) {
  if constexpr (std::is_floating_point_v<Index>) {
    if (!(std::abs(index) <= static_cast<Index>(depth))) return -1;
  }
  if constexpr (std::is_same_v<Index, std::uint64_t>) {
    if (index >= static_cast<std::uint64_t>(depth)) return -1;
  }
  const auto place = static_cast<std::int64_t>(index);  // NOLINT(bugprone-signed-char-misuse)
  if (place < -depth || place >= depth) return -1;
  return place < 0 ? place + depth : place;
}

template <class Index, class T>
void run_one_hot(const OneHotData& hot, KernelArgs args) {
  const auto* indices = args.at<Index>(0);
  T values[2];
  std::memcpy(values, args[2], sizeof(values));
  auto* y = args.at<T>(3);
  std::fill_n(y, hot.outer * hot.depth * hot.inner, values[0]);
  for (std::int64_t o = 0; o < hot.outer; ++o) {
    for (std::int64_t i = 0; i < hot.inner; ++i) {
      const std::int64_t place = hot_place(*indices++, hot.depth);
      if (place >= 0) y[place * hot.inner + i] = values[1];
    }
    y += hot.depth * hot.inner;
  }
}

template <class Index>
opdef::KernelFn choose(std::int64_t bytes) {
  if (bytes == 1) return kKernel<run_one_hot<Index, std::uint8_t>>;
  if (bytes == 2) return kKernel<run_one_hot<Index, std::uint16_t>>;
  if (bytes == 4) return kKernel<run_one_hot<Index, std::uint32_t>>;
  if (bytes == 8) return kKernel<run_one_hot<Index, std::uint64_t>>;
  return nullptr;
}

opdef::KernelFn choose(DataType index, std::int64_t bytes) {
  if (index == DataType::kInt64) return choose<std::int64_t>(bytes);
  if (index == DataType::kInt32) return choose<std::int32_t>(bytes);
  if (index == DataType::kFloat32) return choose<float>(bytes);
  if (index == DataType::kFloat64) return choose<double>(bytes);
  if (index == DataType::kInt16) return choose<std::int16_t>(bytes);
  if (index == DataType::kInt8) return choose<std::int8_t>(bytes);
  if (index == DataType::kUint64) return choose<std::uint64_t>(bytes);
  if (index == DataType::kUint32) return choose<std::uint32_t>(bytes);
  if (index == DataType::kUint16) return choose<std::uint16_t>(bytes);
  if (index == DataType::kUint8) return choose<std::uint8_t>(bytes);
  return nullptr;
}

KernelOffer offer_one_hot(const KernelRequest& request) {
  const DataType index = request.inputs[0].dtype;
  const auto fn = choose(index, element_bytes(request.outputs[0].dtype));
  if (fn == nullptr) {
    return decline_dtype(request, index == DataType::kInt64 ? request.outputs[0].dtype : index);
  }
  const Dims& dims = request.outputs[0].dims;
  const auto axis =
      static_cast<std::size_t>(normalize_axis(request.node.int_attribute("axis"), dims.rank()));
  return prepared(fn,
                  OneHotData{.outer = dims.product(0, axis),
                             .depth = dims[axis],
                             .inner = dims.product(axis + 1, dims.rank())},
                  "plain one-hot");
}

}  // namespace

void register_one_hot_cpu(opdef::KernelRegistry& registry) {
  registry.add("", "OneHot", 0, offer_one_hot);
}

}  // namespace onnxgrad::ops::one_hot_cpu
