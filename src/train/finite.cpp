#include "train/finite.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace onnxgrad::train {
namespace {

// An exponent of ones marks infinities and what is no number. No branch in the loop: it becomes
// vector code.
template <class Bits>
bool are_finite(const Tensor& tensor, Bits exponent) {
  const std::byte* data = tensor.raw();
  const auto count = static_cast<std::size_t>(tensor.num_elements());
  Bits found = 0;
  for (std::size_t i = 0; i < count; ++i) {
    Bits bits = 0;
    std::memcpy(&bits, data + i * sizeof(Bits), sizeof(Bits));
    found = static_cast<Bits>(found | static_cast<Bits>((bits & exponent) == exponent));
  }
  return found == 0;
}

bool is_finite(const Tensor& tensor) {
  switch (tensor.dtype()) {
    case DataType::kFloat64:
      return are_finite<std::uint64_t>(tensor, 0x7FF0'0000'0000'0000);
    case DataType::kFloat32:
      return are_finite<std::uint32_t>(tensor, 0x7F80'0000);
    case DataType::kFloat16:
      return are_finite<std::uint16_t>(tensor, 0x7C00);
    case DataType::kBfloat16:
      return are_finite<std::uint16_t>(tensor, 0x7F80);
    default:
      return true;
  }
}

}  // namespace

bool all_finite(std::span<const Tensor> tensors) { return std::ranges::all_of(tensors, is_finite); }

}  // namespace onnxgrad::train
