#include "opdef/kernel.h"
#include "ops/kernel_support.h"
#include "ops/tensor/repeated_view.h"
#include "ops/tensor/strided_copy_cpu.h"

// Expand and Tile: copies from a view with stride zero along repeated axes.

namespace onnxgrad::ops {

CopyRequest expanded_view(const opdef::KernelRequest& request) {
  const Dims& from = request.inputs[0].dims;
  const Dims& to = request.outputs[0].dims;
  const std::vector<std::int64_t> strides = dense_strides(from.values());
  const std::size_t lead = to.rank() - from.rank();
  CopyRequest copy{.element_bytes = element_bytes(request.inputs[0].dtype),
                   .sizes = {to.begin(), to.end()}};
  copy.target_strides = dense_strides(copy.sizes);
  for (std::size_t i = 0; i < to.rank(); ++i) {
    const bool is_repeated = i < lead || from[i - lead] == 1;
    copy.source_strides.push_back(is_repeated ? 0 : strides[i - lead]);
  }
  return copy;
}

CopyRequest tiled_view(const opdef::KernelRequest& request) {
  const Dims& from = request.inputs[0].dims;
  const Dims& to = request.outputs[0].dims;
  const std::vector<std::int64_t> from_strides = dense_strides(from.values());
  const std::vector<std::int64_t> to_strides = dense_strides(to.values());
  CopyRequest copy{.element_bytes = element_bytes(request.inputs[0].dtype)};
  for (std::size_t i = 0; i < from.rank(); ++i) {
    const std::int64_t repeats = from[i] == 0 ? 0 : to[i] / from[i];
    copy.sizes.insert(copy.sizes.end(), {repeats, from[i]});
    copy.source_strides.insert(copy.source_strides.end(), {0, from_strides[i]});
    copy.target_strides.insert(copy.target_strides.end(), {from[i] * to_strides[i], to_strides[i]});
  }
  return copy;
}

}  // namespace onnxgrad::ops

namespace onnxgrad::ops::expand_cpu {
namespace {

KernelOffer offer_expand(const KernelRequest& request) {
  return offer_view(request, expanded_view(request));
}
KernelOffer offer_tile(const KernelRequest& request) {
  return offer_view(request, tiled_view(request));
}

}  // namespace

void register_expand_cpu(opdef::KernelRegistry& registry) {
  registry.add("", "Expand", 0, offer_expand);
  registry.add("", "Tile", 0, offer_tile);
}

}  // namespace onnxgrad::ops::expand_cpu
