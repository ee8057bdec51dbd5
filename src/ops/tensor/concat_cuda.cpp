#include <algorithm>

#include "ops/index_walk_cuda.h"

// Concat and Split: one strided copy per part. The whole is [outer, length, inner].

namespace onnxgrad::ops::concat_cuda {
namespace {

KernelOffer offer_parts(const KernelRequest& request, const TensorDesc& whole,
                        const std::vector<std::int64_t>& lengths, bool into_whole) {
  const std::int64_t bytes = element_bytes(whole.dtype);
  if (bytes == 0) return decline_dtype(request, whole.dtype);
  const auto axis = static_cast<std::size_t>(
      normalize_axis(request.node.int_attribute("axis"), whole.dims.rank()));
  const std::int64_t outer = whole.dims.product(0, axis);
  const std::int64_t inner = whole.dims.product(axis + 1, whole.dims.rank());
  const auto num_inputs = static_cast<std::int64_t>(request.inputs.size());
  std::vector<device::cuda::TextKernel> copies;
  std::int64_t start = 0;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    const std::int64_t at = std::exchange(start, start + lengths[i]) * inner;
    const bool is_read = into_whole ? request.has_input(i) : request.has_output(i);
    if (!is_read || outer * lengths[i] * inner == 0) continue;
    const std::vector<std::int64_t> whole_strides{whole.dims[axis] * inner, 1};
    const std::vector<std::int64_t> part_strides{lengths[i] * inner, 1};
    CopyRequest copy{.element_bytes = bytes,
                     .sizes = {outer, lengths[i] * inner},
                     .source_strides = into_whole ? part_strides : whole_strides,
                     .target_strides = into_whole ? whole_strides : part_strides};
    (into_whole ? copy.target_offset : copy.source_offset) = at;
    const auto part = static_cast<std::int64_t>(i);
    copies.push_back(into_whole ? *copy_kernel(request, copy, part, num_inputs)
                                : *copy_kernel(request, copy, 0, num_inputs + part));
  }
  KernelOffer offer;
  offer.kernel = prepared(std::move(copies), "strided copies");
  return offer;
}

KernelOffer offer_concat(const KernelRequest& request) {
  const TensorDesc& whole = request.outputs[0];
  const auto axis = static_cast<std::size_t>(
      normalize_axis(request.node.int_attribute("axis"), whole.dims.rank()));
  std::vector<std::int64_t> lengths;
  for (const TensorDesc& part : request.inputs) lengths.push_back(part.dims[axis]);
  return offer_parts(request, whole, lengths, /*into_whole=*/true);
}

KernelOffer offer_split(const KernelRequest& request) {
  const TensorDesc& whole = request.inputs[0];
  const auto axis = static_cast<std::size_t>(
      normalize_axis(request.node.int_attribute("axis"), whole.dims.rank()));
  const auto count = static_cast<std::int64_t>(request.outputs.size());
  std::vector<std::int64_t> lengths;
  if (request.has_input(1)) {
    const auto planned = planned_ints(request, 1);
    if (!planned) return KernelOffer::decline("the sizes are not known before the step runs");
    lengths = *planned;
  } else {
    const std::int64_t length = ceil_div(whole.dims[axis], count);
    for (std::int64_t i = 0; i < count; ++i) {
      lengths.push_back(std::clamp<std::int64_t>(whole.dims[axis] - i * length, 0, length));
    }
  }
  std::int64_t left = whole.dims[axis];
  for (const std::int64_t length : lengths) {
    if (length < 0 || length > left) return KernelOffer::decline("sizes that do not fit");
    left -= length;
  }
  if (left != 0 || lengths.size() != request.outputs.size()) {
    return KernelOffer::decline("sizes that do not fit");
  }
  return offer_parts(request, whole, lengths, /*into_whole=*/false);
}

}  // namespace

void register_concat_cuda(opdef::KernelRegistry& registry) {
  registry.add("", "Concat", 0, offer_concat);
  registry.add("", "Split", 0, offer_split);
}

}  // namespace onnxgrad::ops::concat_cuda
