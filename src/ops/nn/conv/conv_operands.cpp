#include "ops/nn/conv/conv_operands.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "ir/builder.h"
#include "onnxgrad/error.h"
#include "opdef/registry.h"

namespace onnxgrad::ops::conv_operands {
namespace {

std::vector<std::int64_t> spatial(const ConvShape& shape, std::int64_t WindowAxis::* size) {
  std::vector<std::int64_t> sizes;
  for (std::size_t i = 3 - shape.spatial_rank; i < 3; ++i) sizes.push_back(shape.axes[i].*size);
  return sizes;
}

// Checks that the task's tensors have exactly the shapes that the kernels will index.
void check_operands(const ConvOperands& task, const opdef::KernelRequest& request) {
  const ConvShape& shape = task.shape;
  const auto check = [&](int arg, std::int64_t first, std::int64_t second,
                         const std::vector<std::int64_t>& sizes) {
    std::vector<std::int64_t> expected{first, second};
    expected.insert(expected.end(), sizes.begin(), sizes.end());
    const Dims& given = operand(request, arg).dims;
    if (std::ranges::equal(given, expected)) return;
    throw ShapeError(problem_at(request.node,
                                fmt::format("operand {} has shape {}, expected {}", arg,
                                            given.to_string(), Dims(expected).to_string()),
                                {}, "Give it the shape required by the other operands."));
  };
  check(task.x, shape.batch, shape.groups * shape.in_channels, spatial(shape, &WindowAxis::input));
  check(task.y, shape.batch, shape.groups * shape.out_channels,
        spatial(shape, &WindowAxis::output));
  check(task.w, shape.groups * shape.out_channels, shape.in_channels,
        spatial(shape, &WindowAxis::kernel));
  if (task.residual >= 0) {
    check(task.residual, shape.batch, shape.groups * shape.out_channels,
          spatial(shape, &WindowAxis::output));
  }
  if (task.bias < 0) return;
  const std::int64_t channels =
      shape.groups *
      (task.pass == ConvOperands::Pass::kForward ? shape.out_channels : shape.in_channels);
  const Dims& given = request.inputs[static_cast<std::size_t>(task.bias)].dims;
  if (given == Dims{channels}) return;
  throw ShapeError(problem_at(
      request.node, fmt::format("bias B has shape {}, expected [{}]", given.to_string(), channels),
      {}, "Give one number for each channel of the result."));
}

}  // namespace
}  // namespace onnxgrad::ops::conv_operands

namespace onnxgrad::ops {

std::optional<ConvOperands> ConvOperands::of(const opdef::KernelRequest& request) {
  const ir::Node& node = request.node;
  const std::string_view op_type = opdef::base_name(node.domain, node.op_type);
  const auto& in = request.inputs;
  const int result = static_cast<int>(in.size());
  ConvOperands task;
  task.scratch = result + static_cast<int>(request.outputs.size());
  if (op_type == "Conv") {
    task.pass = Pass::kForward;
    task.shape = conv_shape(node, in[0].dims, in[1].dims);
    task.x = 0;
    task.w = 1;
    task.y = result;
  } else if (op_type == "ConvTranspose") {
    task.pass = Pass::kBackwardData;
    task.shape = conv_transpose_shape(node, in[0].dims, in[1].dims);
    task.y = 0;
    task.w = 1;
    task.x = result;
  } else if (op_type == "ConvInputGrad") {
    task.pass = Pass::kBackwardData;
    task.shape = conv_shape(node, in[2].dims, in[1].dims);
    task.y = 0;
    task.w = 1;
    task.x = result;
  } else {
    task.pass = Pass::kBackwardWeight;
    task.shape = conv_shape(node, in[1].dims, request.outputs[0].dims);
    task.y = 0;
    task.x = 1;
    task.w = result;
  }
  if (task.shape.spatial_rank > 3) return std::nullopt;
  if (task.pass == Pass::kBackwardWeight && in[0].dims.rank() == task.shape.spatial_rank + 2) {
    // dy may have fewer windows than fit: the transposed convolution of a longer output.
    for (std::size_t i = 0; i < task.shape.spatial_rank; ++i) {
      std::int64_t& output = task.shape.axes[3 - task.shape.spatial_rank + i].output;
      output = std::min(output, in[0].dims[i + 2]);
    }
  }
  const bool takes_bias = op_type == "Conv" || op_type == "ConvTranspose";
  if (takes_bias && in.size() > 2 && in[2].is_present()) task.bias = 2;
  if (node.domain == ir::kFusedDomain && op_type == "Conv") {
    if (in.size() > 3 && in[3].is_present()) task.residual = 3;
    task.low = node.float_attribute("low");
    task.high = node.float_attribute("high");
  }
  conv_operands::check_operands(task, request);
  return task;
}

const opdef::TensorDesc& operand(const opdef::KernelRequest& request, int arg) {
  const auto index = static_cast<std::size_t>(arg);
  const std::size_t count = request.inputs.size();
  return index < count ? request.inputs[index] : request.outputs[index - count];
}

bool ConvOperands::finishes() const {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  return residual >= 0 || low > -kInfinity || high < kInfinity;
}

}  // namespace onnxgrad::ops
