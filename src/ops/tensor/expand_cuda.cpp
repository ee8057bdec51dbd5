#include "ops/index_walk_cuda.h"
#include "ops/tensor/repeated_view.h"

namespace onnxgrad::ops::expand_cuda {
namespace {

KernelOffer offer(const KernelRequest& request, const CopyRequest& copy) {
  if (copy.element_bytes == 0) return decline_dtype(request, request.inputs[0].dtype);
  return offer_copy(request, copy, request.inputs.size());
}

KernelOffer offer_expand(const KernelRequest& request) {
  return offer(request, expanded_view(request));
}
KernelOffer offer_tile(const KernelRequest& request) { return offer(request, tiled_view(request)); }

}  // namespace

void register_expand_cuda(opdef::KernelRegistry& registry) {
  registry.add("", "Expand", 0, offer_expand);
  registry.add("", "Tile", 0, offer_tile);
}

}  // namespace onnxgrad::ops::expand_cuda
