#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ops/block_text_cuda.h"
#include "ops/kernel_support.h"
#include "ops/kernel_support_cuda.h"
#include "ops/quantize/small_types.h"

// QuantizeLinear and DequantizeLinear between float32 and integers, which QuantizeLinear writes as
// whole bytes only. A tensor is [outer, size, inner] around the axis; scales are one, [size] or
// [outer, blocks, inner].

namespace onnxgrad::ops::linear_quantization_cuda {
namespace {

using device::cuda::Word;

// Words: x, scale, zero point, y; elements, size, inner, block (0: scales along the axis, -1: one);
// the least and the largest integer.
constexpr const char* kText = R"(
template <class W>
OG_FUNCTION og_i64 og_scale_of(const W& a, og_i64 i) {
  const og_i64 size = a.integer(5), inner = a.integer(6), block = a.integer(7);
  if (block < 0) return 0;
  const og_i64 place = i / inner % size;
  if (block == 0) return place;
  const og_i64 blocks = (size + block - 1) / block;
  return (i / inner / size * blocks + place / block) * inner + i % inner;
}

OG_KERNEL(og_quantize, 10) {
  const og_q* const zeros = a.pointer<og_q>(2);
  for (og_i64 i = og_first(); i < a.integer(4); i += og_stride()) {
    const og_i64 s = og_scale_of(a, i);
    const float zero = zeros == 0 ? 0.0f : og_number(zeros, s);
    float steps = rintf(a.pointer<float>(0)[i] / a.pointer<float>(1)[s]) + zero;
    const float low = (float)a.integer(8), high = (float)a.integer(9);
    steps = !(steps > low) ? low : steps > high ? high : steps;  // NaN: low
    a.pointer<og_q>(3)[i] = (og_q)steps;
  }
}

OG_KERNEL(og_dequantize, 10) {
  const og_q* const zeros = a.pointer<og_q>(2);
  for (og_i64 i = og_first(); i < a.integer(4); i += og_stride()) {
    const og_i64 s = og_scale_of(a, i);
    const float zero = zeros == 0 ? 0.0f : og_number(zeros, s);
    a.pointer<float>(3)[i] = (og_number(a.pointer<og_q>(0), i) - zero) * a.pointer<float>(1)[s];
  }
}
)";

// Integers of whole bytes, and packed ones, the first in the lowest bits of a byte.
constexpr const char* kWhole =
    "OG_FUNCTION float og_number(const og_q* from, og_i64 i) { return (float)from[i]; }\n";
constexpr const char* kPacked = R"(
OG_FUNCTION float og_number(const og_q* from, og_i64 i) {
  const int in_byte = 8 / OG_NUM_BITS;
  const int code = from[i / in_byte] >> (int)(i % in_byte) * OG_NUM_BITS & ((1 << OG_NUM_BITS) - 1);
  return (float)(code - ((code & OG_SIGN) << 1));
}
)";

// Text of the type that integers are stored as, and of the function that reads one.
std::string text_of_integers(DataType dtype) {
  const int bits = size_bits(dtype);
  if (bits >= 8) return typedefs({{"og_q", text_type(dtype)}}) + kWhole;
  const int sign = integer_range(dtype).low < 0 ? 1 << (bits - 1) : 0;
  return typedefs({{"og_q", text_type(DataType::kUint8)}}) + "#define OG_NUM_BITS " +
         std::to_string(bits) + "\n#define OG_SIGN " + std::to_string(sign) + kPacked;
}

struct Space {
  std::int64_t size = 1, inner = 1, block = -1;
};

std::optional<Space> space_of(const KernelRequest& request) {
  const Dims& x = request.inputs[0].dims;
  const Dims& scale = request.inputs[1].dims;
  if (scale.num_elements() == 1) return Space{};
  if (x.rank() == 0) return std::nullopt;
  const auto axis =
      static_cast<std::size_t>(normalize_axis(request.node.int_attribute("axis"), x.rank()));
  const Space space{.size = std::max<std::int64_t>(x[axis], 1),
                    .inner = std::max<std::int64_t>(x.product(axis + 1, x.rank()), 1),
                    .block = request.node.int_attribute("block_size")};
  if (space.block == 0) {
    return scale.rank() == 1 && scale[0] == x[axis] ? std::optional(space) : std::nullopt;
  }
  if (scale.rank() != x.rank()) return std::nullopt;
  for (std::size_t i = 0; i < x.rank(); ++i) {
    if (scale[i] != (i == axis ? ceil_div(x[i], space.block) : x[i])) return std::nullopt;
  }
  return space;
}

bool is_integer_of(DataType dtype, std::initializer_list<DataType> types) {
  return std::ranges::find(types, dtype) != types.end();
}

KernelOffer offer_kernel(const KernelRequest& request, const char* name, DataType integers,
                         DataType reals, bool is_read) {
  const bool is_known = is_integer_of(
      integers, {DataType::kInt8, DataType::kUint8, DataType::kInt16, DataType::kUint16});
  const bool is_only_read = is_integer_of(
      integers,
      {DataType::kInt2, DataType::kUint2, DataType::kInt4, DataType::kUint4, DataType::kInt32});
  if (!is_known && !(is_read && is_only_read)) return decline_dtype(request, integers);
  const IntegerRange range = integer_range(integers);
  if (reals != DataType::kFloat32) return decline_dtype(request, reals);
  if (request.inputs[1].dtype != DataType::kFloat32) {
    return decline_dtype(request, request.inputs[1].dtype);
  }
  const auto space = space_of(request);
  if (!space) return KernelOffer::decline("scales of another shape");
  const std::int64_t elements = request.inputs[0].dims.num_elements();
  const bool has_zeros = request.has_input(2);
  if (has_zeros &&
      (request.inputs[2].dtype != integers ||
       request.inputs[2].dims.num_elements() != request.inputs[1].dims.num_elements())) {
    return KernelOffer::decline("zero points that do not fit the scales");
  }
  std::vector<Word> words{Word::argument(0), Word::argument(1),
                          optional_argument(has_zeros ? 2 : -1),
                          Word::argument(static_cast<std::int64_t>(request.inputs.size()))};
  add_integers(words,
               {elements, space->size, space->inner, space->block,
                static_cast<std::int64_t>(range.low), static_cast<std::int64_t>(range.high)});
  KernelOffer offer;
  offer.kernel = prepared(text_kernel_over(request, elements, text_of_integers(integers) + kText,
                                           name, std::move(words)),
                          "element by element");
  return offer;
}

KernelOffer offer_quantize(const KernelRequest& request) {
  return offer_kernel(request, "og_quantize", request.outputs[0].dtype, request.inputs[0].dtype,
                      false);
}

KernelOffer offer_dequantize(const KernelRequest& request) {
  return offer_kernel(request, "og_dequantize", request.inputs[0].dtype, request.outputs[0].dtype,
                      true);
}

}  // namespace

void register_linear_quantization_cuda(opdef::KernelRegistry& registry) {
  registry.add("", "QuantizeLinear", 0, offer_quantize);
  registry.add("", "DequantizeLinear", 0, offer_dequantize);
}

}  // namespace onnxgrad::ops::linear_quantization_cuda
