#include "ops/index_walk_cuda.h"

namespace onnxgrad::ops::transpose_cuda {
namespace {

KernelOffer offer_transpose(const KernelRequest& request) {
  const Dims& dims = request.inputs[0].dims;
  const std::int64_t bytes = element_bytes(request.inputs[0].dtype);
  if (bytes == 0) return decline_dtype(request, request.inputs[0].dtype);
  std::vector<std::int64_t> perm = request.node.ints_attribute("perm");
  if (perm.empty()) {
    for (std::size_t i = dims.rank(); i-- > 0;) perm.push_back(static_cast<std::int64_t>(i));
  }
  const std::vector<std::int64_t> strides = dense_strides(dims.values());
  CopyRequest copy{.element_bytes = bytes};
  for (const std::int64_t axis : perm) {
    copy.sizes.push_back(dims[static_cast<std::size_t>(axis)]);
    copy.source_strides.push_back(strides[static_cast<std::size_t>(axis)]);
  }
  copy.target_strides = dense_strides(copy.sizes);
  return offer_copy(request, copy, 1);
}

}  // namespace

void register_transpose_cuda(opdef::KernelRegistry& registry) {
  registry.add("", "Transpose", 0, offer_transpose);
}

}  // namespace onnxgrad::ops::transpose_cuda
