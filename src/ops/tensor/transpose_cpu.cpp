#include "opdef/kernel.h"
#include "ops/kernel_support.h"
#include "ops/tensor/moved_view.h"
#include "ops/tensor/strided_copy_cpu.h"

namespace onnxgrad::ops {

CopyRequest transposed_view(const opdef::KernelRequest& request) {
  const Dims& dims = request.inputs[0].dims;
  std::vector<std::int64_t> perm = request.node.ints_attribute("perm");
  if (perm.empty()) {
    for (std::size_t i = dims.rank(); i-- > 0;) perm.push_back(static_cast<std::int64_t>(i));
  }
  const std::vector<std::int64_t> strides = dense_strides(dims.values());
  CopyRequest copy{.element_bytes = element_bytes(request.inputs[0].dtype)};
  for (const std::int64_t axis : perm) {
    copy.sizes.push_back(dims[static_cast<std::size_t>(axis)]);
    copy.source_strides.push_back(strides[static_cast<std::size_t>(axis)]);
  }
  copy.target_strides = dense_strides(copy.sizes);
  return copy;
}

}  // namespace onnxgrad::ops

namespace onnxgrad::ops::transpose_cpu {
namespace {

KernelOffer offer_transpose(const KernelRequest& request) {
  return offer_view(request, transposed_view(request));
}

}  // namespace

void register_transpose_cpu(opdef::KernelRegistry& registry) {
  registry.add("", "Transpose", 0, offer_transpose);
}

}  // namespace onnxgrad::ops::transpose_cpu
