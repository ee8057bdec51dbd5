#include <algorithm>
#include <numeric>

#include "ops/index_walk_cuda.h"

namespace onnxgrad::ops::slice_cuda {
namespace {

// The first element of a slice along an axis of `dim` elements, with ONNX's clamping.
std::int64_t first_element(std::int64_t start, std::int64_t step, std::int64_t dim) {
  const std::int64_t from_front = start < 0 ? start + dim : start;
  return step > 0 ? std::clamp<std::int64_t>(from_front, 0, dim)
                  : std::clamp<std::int64_t>(from_front, -1, dim - 1);
}

KernelOffer offer_slice(const KernelRequest& request) {
  const Dims& from = request.inputs[0].dims;
  const Dims& to = request.outputs[0].dims;
  const std::int64_t bytes = element_bytes(request.inputs[0].dtype);
  if (bytes == 0) return decline_dtype(request, request.inputs[0].dtype);
  const auto starts = planned_ints(request, 1);
  if (!starts) return KernelOffer::decline("the starts are not known before the step runs");
  std::vector<std::int64_t> axes(starts->size());
  std::iota(axes.begin(), axes.end(), 0);
  std::vector<std::int64_t> steps(starts->size(), 1);
  for (const auto& [input, target] : {std::pair{std::size_t{3}, &axes}, {std::size_t{4}, &steps}}) {
    if (!request.has_input(input)) continue;
    const auto planned = planned_ints(request, input);
    if (!planned) return KernelOffer::decline("the slice is not known before the step runs");
    *target = *planned;
  }
  if (axes.size() != starts->size() || steps.size() != starts->size()) {
    return KernelOffer::decline("lists of different lengths");
  }
  CopyRequest copy{.element_bytes = bytes,
                   .sizes = {to.begin(), to.end()},
                   .source_strides = dense_strides(from.values())};
  copy.target_strides = dense_strides(copy.sizes);
  for (std::size_t i = 0; i < axes.size() && to.num_elements() > 0; ++i) {
    const auto axis = static_cast<std::size_t>(normalize_axis(axes[i], from.rank()));
    const std::int64_t stride = copy.source_strides[axis];
    copy.source_offset += first_element((*starts)[i], steps[i], from[axis]) * stride;
    // A single element needs no stride; the product with a huge step could overflow.
    copy.source_strides[axis] = to[axis] == 1 ? 0 : stride * steps[i];
  }
  return offer_copy(request, copy, request.inputs.size());
}

}  // namespace

void register_slice_cuda(opdef::KernelRegistry& registry) {
  registry.add("", "Slice", 0, offer_slice);
}

}  // namespace onnxgrad::ops::slice_cuda
