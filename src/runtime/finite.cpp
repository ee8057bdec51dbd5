#include "runtime/finite.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace onnxgrad::runtime {
namespace {

// An exponent of ones marks infinities and NaN. No branch in the loop, and the pragma: it becomes
// vector code also where the compiler is careful.
template <class Bits>
Bits any_non_finite(const std::byte* data, std::size_t count, Bits exponent) {
  Bits found = 0;
#pragma omp simd reduction(| : found)
  for (std::size_t i = 0; i < count; ++i) {
    Bits bits = 0;
    std::memcpy(&bits, data + i * sizeof(Bits), sizeof(Bits));
    found = static_cast<Bits>(found | static_cast<Bits>((bits & exponent) == exponent));
  }
  return found;
}

// Line by line, as later lines are fetched: the processor's own fetching ends with a page of 4 KiB.
template <class Bits>
bool are_finite(const std::byte* data, std::size_t count, Bits exponent) {
  constexpr std::size_t kLine = 64 / sizeof(Bits);
  constexpr std::size_t kAhead = 64;  // lines
  Bits found = 0;
  std::size_t i = 0;
  for (; i + kLine <= count; i += kLine) {
    __builtin_prefetch(data + (i + kAhead * kLine) * sizeof(Bits));
    found |= any_non_finite(data + i * sizeof(Bits), kLine, exponent);
  }
  found |= any_non_finite(data + i * sizeof(Bits), count - i, exponent);
  return found == 0;
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
