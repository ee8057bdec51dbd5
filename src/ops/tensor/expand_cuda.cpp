#include "ops/index_walk_cuda.h"

// Expand and Tile: copies from a view with stride zero along repeated axes.

namespace onnxgrad::ops::expand_cuda {
namespace {

KernelOffer offer_expand(const KernelRequest& request) {
  const std::int64_t bytes = element_bytes(request.inputs[0].dtype);
  if (bytes == 0) return decline_dtype(request, request.inputs[0].dtype);
  const Dims& from = request.inputs[0].dims;
  const Dims& to = request.outputs[0].dims;
  const std::vector<std::int64_t> strides = dense_strides(from.values());
  const std::size_t lead = to.rank() - from.rank();
  CopyRequest copy{.element_bytes = bytes, .sizes = {to.begin(), to.end()}};
  copy.target_strides = dense_strides(copy.sizes);
  for (std::size_t i = 0; i < to.rank(); ++i) {
    const bool is_repeated = i < lead || from[i - lead] == 1;
    copy.source_strides.push_back(is_repeated ? 0 : strides[i - lead]);
  }
  return offer_copy(request, copy, request.inputs.size());
}

// Axis a of the output is viewed as [repeats_a, dim_a].
KernelOffer offer_tile(const KernelRequest& request) {
  const std::int64_t bytes = element_bytes(request.inputs[0].dtype);
  if (bytes == 0) return decline_dtype(request, request.inputs[0].dtype);
  const Dims& from = request.inputs[0].dims;
  const Dims& to = request.outputs[0].dims;
  const std::vector<std::int64_t> from_strides = dense_strides(from.values());
  const std::vector<std::int64_t> to_strides = dense_strides(to.values());
  CopyRequest copy{.element_bytes = bytes};
  for (std::size_t i = 0; i < from.rank(); ++i) {
    const std::int64_t repeats = from[i] == 0 ? 0 : to[i] / from[i];
    copy.sizes.insert(copy.sizes.end(), {repeats, from[i]});
    copy.source_strides.insert(copy.source_strides.end(), {0, from_strides[i]});
    copy.target_strides.insert(copy.target_strides.end(), {from[i] * to_strides[i], to_strides[i]});
  }
  return offer_copy(request, copy, request.inputs.size());
}

}  // namespace

void register_expand_cuda(opdef::KernelRegistry& registry) {
  registry.add("", "Expand", 0, offer_expand);
  registry.add("", "Tile", 0, offer_tile);
}

}  // namespace onnxgrad::ops::expand_cuda
