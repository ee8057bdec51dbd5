#include <utility>

#include "ops/index_walk_cuda.h"

// One strided copy over [N, C, H, b, W, b].

namespace onnxgrad::ops::depth_to_space_cuda {
namespace {

KernelOffer offer_blocks(const KernelRequest& request) {
  const std::int64_t bytes = element_bytes(request.inputs[0].dtype);
  if (bytes == 0) return decline_dtype(request, request.inputs[0].dtype);
  const std::int64_t b = request.node.int_attribute("blocksize");
  const bool to_space = request.node.op_type == "DepthToSpace";
  const Dims& deep = to_space ? request.inputs[0].dims : request.outputs[0].dims;
  const Dims& x = request.inputs[0].dims;
  if (x.rank() != 4 || (to_space ? x[1] % (b * b) != 0 : x[2] % b != 0 || x[3] % b != 0)) {
    return KernelOffer::decline("a size that the blocks do not divide");
  }
  const std::int64_t plane = deep[2] * deep[3];
  const std::int64_t depth = deep[1] / (b * b);
  const bool is_crd = to_space && request.node.string_attribute("mode") == "CRD";
  const std::int64_t j = is_crd ? plane : depth * plane;
  CopyRequest copy{.element_bytes = bytes};
  copy.sizes = {deep[0], depth, deep[2], b, deep[3], b};
  copy.source_strides = {deep[1] * plane, is_crd ? b * b * plane : plane, deep[3], b * j, 1, j};
  copy.target_strides = dense_strides(copy.sizes);
  if (!to_space) std::swap(copy.source_strides, copy.target_strides);
  return offer_copy(request, copy, 1);
}

}  // namespace

void register_depth_to_space_cuda(opdef::KernelRegistry& registry) {
  registry.add("", "DepthToSpace", 0, offer_blocks);
  registry.add("", "SpaceToDepth", 0, offer_blocks);
}

}  // namespace onnxgrad::ops::depth_to_space_cuda
