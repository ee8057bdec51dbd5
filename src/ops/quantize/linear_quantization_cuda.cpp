#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/visit_types.h"
#include "ops/block_text_cuda.h"
#include "ops/kernel_support.h"
#include "ops/kernel_support_cuda.h"

// QuantizeLinear and DequantizeLinear between float32 and integers of whole bytes. A tensor is
// [outer, size, inner] around the axis; scales are one, [size] or [outer, blocks, inner].

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
    const float zero = zeros == 0 ? 0.0f : (float)zeros[s];
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
    const float zero = zeros == 0 ? 0.0f : (float)zeros[s];
    a.pointer<float>(3)[i] = ((float)a.pointer<og_q>(0)[i] - zero) * a.pointer<float>(1)[s];
  }
}
)";

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

KernelOffer offer_kernel(const KernelRequest& request, const char* name, DataType integers,
                         DataType reals, bool has_32_bits) {
  std::int64_t least = 0;
  std::int64_t largest = 0;
  base::visit_types<std::int8_t, std::uint8_t, std::int16_t, std::uint16_t>(
      integers, [&]<class T>(T) {
        least = std::int64_t{std::numeric_limits<T>::lowest()};
        largest = std::int64_t{std::numeric_limits<T>::max()};
      });
  if (largest == 0 && !(has_32_bits && integers == DataType::kInt32)) {
    return decline_dtype(request, integers);
  }
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
  add_integers(words, {elements, space->size, space->inner, space->block, least, largest});
  KernelOffer offer;
  offer.kernel = prepared(
      text_kernel_over(request, elements, typedefs({{"og_q", text_type(integers)}}) + kText, name,
                       std::move(words)),
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
