#include "ir/static_size.h"

#include <algorithm>

namespace onnxgrad::ir {

std::optional<std::int64_t> static_elements(const Value& value) {
  if (!value.type.shape) return std::nullopt;
  bool is_empty = false;
  bool overflows = false;
  std::int64_t count = 1;
  for (const Dim& dim : *value.type.shape) {
    if (!dim.is_static()) return std::nullopt;
    is_empty = is_empty || dim.value() == 0;
    overflows =
        overflows || __builtin_mul_overflow(count, std::max<std::int64_t>(dim.value(), 1), &count);
  }
  if (overflows) return value.type.fixed_dims().num_elements();  // refuses it
  return is_empty ? 0 : count;
}

std::optional<std::int64_t> static_bytes(const Value& value) {
  const std::optional<std::int64_t> count = static_elements(value);
  if (!count) return std::nullopt;
  constexpr std::int64_t kNoOverflow = std::int64_t{1} << 55;
  const int bits = value.dtype() == DataType::kString ? 0 : size_bits(value.dtype());
  if (bits < 8 || *count > kNoOverflow) {
    return value.type.fixed_dims().size_bytes(value.dtype());
  }
  return *count * (bits / 8);
}

}  // namespace onnxgrad::ir
