#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "opdef/kernel.h"
#include "ops/kernel_support.h"
#include "ops/tensor/moved_view.h"
#include "ops/tensor/strided_copy_cpu.h"

namespace onnxgrad::ops {
namespace slice_cpu {
namespace {

// Returns the first element of a slice along an axis of `dim` elements, with ONNX's clamping.
// Nothing overflows: dim + start and dim - 1 stay in range for every start.
std::int64_t first_element(std::int64_t start, std::int64_t step, std::int64_t dim) {
  const std::int64_t from_front = start < 0 ? start + dim : start;
  return step > 0 ? std::clamp<std::int64_t>(from_front, 0, dim)
                  : std::clamp<std::int64_t>(from_front, -1, dim - 1);
}

}  // namespace
}  // namespace slice_cpu

std::optional<CopyRequest> sliced_view(const opdef::KernelRequest& request, std::string& declined) {
  const Dims& from = request.inputs[0].dims;
  const Dims& to = request.outputs[0].dims;
  const auto starts = planned_ints(request, 1);
  declined = "the slice is not known before the step runs";
  if (!starts) return std::nullopt;
  std::vector<std::int64_t> axes;
  for (std::size_t i = 0; i < starts->size(); ++i) axes.push_back(static_cast<std::int64_t>(i));
  std::vector<std::int64_t> steps(starts->size(), 1);
  for (const auto& [input, target] : {std::pair{std::size_t{3}, &axes}, {std::size_t{4}, &steps}}) {
    if (request.inputs.size() <= input || !request.inputs[input].is_present()) continue;
    const auto planned = planned_ints(request, input);
    if (!planned) return std::nullopt;
    *target = *planned;
  }
  if (axes.size() != starts->size() || steps.size() != starts->size()) {
    throw ShapeError({.what = "starts, axes and steps have different lengths",
                      .where = {.node = request.node.name, .op_type = request.node.op_type},
                      .hint = "Give one start, end, axis and step for each axis to cut."});
  }
  CopyRequest copy{.element_bytes = element_bytes(request.inputs[0].dtype),
                   .sizes = {to.begin(), to.end()},
                   .source_strides = dense_strides(from.values())};
  copy.target_strides = dense_strides(copy.sizes);
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const auto axis = static_cast<std::size_t>(normalize_axis(axes[i], from.rank()));
    if (to[axis] == 0) continue;
    const std::int64_t stride = copy.source_strides[axis];
    copy.source_offset += slice_cpu::first_element((*starts)[i], steps[i], from[axis]) * stride;
    // A single element needs no stride; the product with a huge step could overflow.
    copy.source_strides[axis] = to[axis] == 1 ? 0 : stride * steps[i];
  }
  return copy;
}

}  // namespace onnxgrad::ops

namespace onnxgrad::ops::slice_cpu {
namespace {

KernelOffer offer_slice(const KernelRequest& request) {
  std::string declined;
  const auto copy = sliced_view(request, declined);
  if (!copy) return KernelOffer::decline(declined);
  return offer_view(request, *copy);
}

}  // namespace

void register_slice_cpu(opdef::KernelRegistry& registry) {
  registry.add("", "Slice", 0, offer_slice);
}

}  // namespace onnxgrad::ops::slice_cpu
