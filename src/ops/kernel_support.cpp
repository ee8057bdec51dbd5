#include "ops/kernel_support.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ir/pattern.h"

namespace onnxgrad::ops {

std::int64_t element_bytes(DataType dtype) {
  const int bits = size_bits(dtype);
  return bits >= 8 ? bits / 8 : 0;
}

KernelOffer decline_dtype(const KernelRequest& request, DataType dtype) {
  return KernelOffer::decline(
      fmt::format("no kernel of {} for {}", request.node.op_type, dtype_name(dtype)));
}

std::optional<std::vector<std::int64_t>> planned_ints(const KernelRequest& request,
                                                      std::size_t input) {
  if (input >= request.constants.size() || request.constants[input] == nullptr) return std::nullopt;
  return request.constants[input]->to_int64s();
}

void note_index_check(const KernelRequest& request, KernelOffer& offer, std::size_t input,
                      const std::vector<std::int64_t>& sizes, bool from_zero) {
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

IndexSource index_source(const KernelRequest& request, std::size_t input) {
  const ir::Value* value = request.node.input(input);
  IndexSource source;
  source.node = request.node.describe();
  source.dims = request.inputs[input].dims;
  while (value->producer != nullptr &&
         ir::is_op(*value->producer, {"Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze"})) {
    value = value->producer->input(0);
  }
  source.value = value->name;
  const auto dims = value->type.static_dims();
  if (dims && dims->num_elements() == source.dims.num_elements()) source.dims = *dims;
  return source;
}

void throw_index_error(std::int64_t index, std::int64_t size, const IndexSource& source,
                       std::int64_t position) {
  std::vector<std::int64_t> place(source.dims.rank());
  for (std::size_t axis = place.size(); axis-- > 0;) {
    place[axis] = position % source.dims[axis];
    position /= source.dims[axis];
  }
  const std::string at = place.empty() ? "" : fmt::format(" at [{}]", fmt::join(place, ", "));
  throw DataError(
      {.what = fmt::format("index {} of '{}'{} is out of range", index, source.value, at),
       .where = {.node = source.node},
       .detail = fmt::format("Expected an index in [{}, {}).", -size, size),
       .hint = "Fix the indices, or the table that they index."});
}

}  // namespace onnxgrad::ops
