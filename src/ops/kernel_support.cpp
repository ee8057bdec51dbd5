#include "ops/kernel_support.h"

#include <fmt/format.h>

namespace onnxgrad::ops {

std::int64_t element_bytes(DataType dtype) {
  const int bits = size_bits(dtype);
  return bits >= 8 ? bits / 8 : 0;
}

opdef::KernelOffer decline_dtype(const opdef::KernelRequest& request, DataType dtype) {
  return opdef::KernelOffer::decline(
      fmt::format("no kernel of {} for {}", request.node.op_type, dtype_name(dtype)));
}

std::optional<std::vector<std::int64_t>> planned_ints(const opdef::KernelRequest& request,
                                                      std::size_t input) {
  if (input >= request.constants.size() || request.constants[input] == nullptr) return std::nullopt;
  return request.constants[input]->to_int64s();
}

void note_index_check(const opdef::KernelRequest& request, opdef::KernelOffer& offer,
                      std::size_t input, const std::vector<std::int64_t>& sizes, bool from_zero) {
  if (const auto known = planned_ints(request, input)) {
    bool is_right = true;
    for (std::size_t i = 0; i < known->size(); ++i) {
      const std::int64_t size = sizes.empty() ? 0 : sizes[i % sizes.size()];
      is_right = is_right && (*known)[i] >= (from_zero ? 0 : -size) && (*known)[i] < size;
    }
    if (is_right) return;
  }
  offer.kernel.checks.push_back({.input = static_cast<int>(input), .bounds = sizes});
}

void throw_index_error(std::int64_t index, std::int64_t size, const std::string& node) {
  throw DataError({.what = fmt::format("index {} is out of range", index),
                   .where = {.node = node},
                   .detail = fmt::format("Expected an index in [{}, {}).", -size, size),
                   .hint = "Fix the indices, or the table that they index."});
}

}  // namespace onnxgrad::ops
