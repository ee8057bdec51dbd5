#include "runtime/finite.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace onnxgrad::runtime {
namespace {

// Returns a number whose highest bit is set if one of `count` elements is infinite or NaN: these
// have an exponent of ones, which overflows into the place of the sign when its lowest bit is
// added. Two operations and no branch, so that the loop becomes vector code.
template <class Bits>
Bits exponent_overflows(const std::byte* data, std::size_t count, Bits exponent) {
  const auto lowest = static_cast<Bits>(exponent & -exponent);
  Bits found = 0;
  for (std::size_t i = 0; i < count; ++i) {
    Bits bits = 0;
    std::memcpy(&bits, data + i * sizeof(Bits), sizeof(Bits));
    found = static_cast<Bits>(found | static_cast<Bits>((bits & exponent) + lowest));
  }
  return found;
}

// Reads line by line and prefetches later lines: the processor's own prefetching ends with a page.
template <class Bits>
bool are_finite(const std::byte* data, std::size_t count, Bits exponent) {
  constexpr std::size_t kLine = 64 / sizeof(Bits);
  constexpr std::size_t kPrefetchDistance = 64;  // lines
  Bits found = 0;
  std::size_t i = 0;
  for (; i + kLine <= count; i += kLine) {
    __builtin_prefetch(data + (i + kPrefetchDistance * kLine) * sizeof(Bits));
    found |= exponent_overflows(data + i * sizeof(Bits), kLine, exponent);
  }
  found |= exponent_overflows(data + i * sizeof(Bits), count - i, exponent);
  return (found >> (8 * sizeof(Bits) - 1)) == 0;
}

}  // namespace

bool all_finite(DataType dtype, const std::byte* data, std::int64_t count) {
  const auto size = static_cast<std::size_t>(count);
  switch (dtype) {
    case DataType::kFloat64:
      return are_finite<std::uint64_t>(data, size, 0x7FF0'0000'0000'0000);
    case DataType::kFloat32:
      return are_finite<std::uint32_t>(data, size, 0x7F80'0000);
    case DataType::kFloat16:
      return are_finite<std::uint16_t>(data, size, 0x7C00);
    case DataType::kBfloat16:
      return are_finite<std::uint16_t>(data, size, 0x7F80);
    default:
      return true;
  }
}

bool all_finite(std::span<const Tensor> tensors) {
  return std::ranges::all_of(tensors, [](const Tensor& tensor) {
    return all_finite(tensor.dtype(), tensor.raw(), tensor.num_elements());
  });
}

}  // namespace onnxgrad::runtime
