#include <fmt/format.h>

#include "onnxgrad/error.h"
#include "opdef/kernel.h"
#include "ops/kernel_support.h"
#include "ops/tensor/moved_view.h"
#include "ops/tensor/strided_copy_cpu.h"

// DepthToSpace and SpaceToDepth move bytes: one strided copy over [N, C, H, b, W, b].

namespace onnxgrad::ops {
namespace depth_to_space_cpu {
namespace {

void check_divides(const KernelRequest& request, bool divides) {
  if (divides) return;
  throw ShapeError(
      {.what = fmt::format("input {} does not fit blocksize {}", request.inputs[0].dims.to_string(),
                           request.node.int_attribute("blocksize")),
       .where = {.node = request.node.name, .op_type = request.node.op_type},
       .hint = request.node.op_type == "DepthToSpace"
                   ? "Give [N, C, H, W] with a number of channels divisible by blocksize^2."
                   : "Give [N, C, H, W] with a height and a width divisible by blocksize."});
}

// Returns the strides of the deep tensor [N, channels, H, W], in the order N, C, H, i, W, j.
std::vector<std::int64_t> deep_strides(std::int64_t channels, std::int64_t height,
                                       std::int64_t width, std::int64_t b, bool is_crd) {
  const std::int64_t plane = height * width;
  const std::int64_t depth = channels / (b * b);
  const std::int64_t j = is_crd ? plane : depth * plane;
  return {channels * plane, is_crd ? b * b * plane : plane, width, b * j, 1, j};
}

}  // namespace
}  // namespace depth_to_space_cpu

CopyRequest blocks_view(const opdef::KernelRequest& request) {
  using namespace depth_to_space_cpu;  // NOLINT(google-build-using-namespace)
  const std::int64_t b = request.node.int_attribute("blocksize");
  const bool to_space = request.node.op_type == "DepthToSpace";
  const Dims& deep = to_space ? request.inputs[0].dims : request.outputs[0].dims;
  check_divides(request, request.inputs[0].dims.rank() == 4);
  const Dims& x = request.inputs[0].dims;
  check_divides(request, to_space ? x[1] % (b * b) == 0 : x[2] % b == 0 && x[3] % b == 0);
  const bool is_crd = to_space && request.node.string_attribute("mode") == "CRD";
  CopyRequest copy{.element_bytes = element_bytes(request.inputs[0].dtype)};
  copy.sizes = {deep[0], deep[1] / (b * b), deep[2], b, deep[3], b};
  copy.source_strides = deep_strides(deep[1], deep[2], deep[3], b, is_crd);
  copy.target_strides = dense_strides(copy.sizes);
  if (!to_space) std::swap(copy.source_strides, copy.target_strides);
  return copy;
}

}  // namespace onnxgrad::ops

namespace onnxgrad::ops::depth_to_space_cpu {
namespace {

KernelOffer offer_blocks(const KernelRequest& request) {
  return offer_view(request, blocks_view(request));
}

}  // namespace

void register_depth_to_space_cpu(opdef::KernelRegistry& registry) {
  registry.add("", "DepthToSpace", 0, offer_blocks);
  registry.add("", "SpaceToDepth", 0, offer_blocks);
}

}  // namespace onnxgrad::ops::depth_to_space_cpu
