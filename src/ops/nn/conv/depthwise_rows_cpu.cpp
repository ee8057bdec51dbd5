#include <algorithm>
#include <memory>

#include "device/cpu/threads.h"
#include "ops/kernel_support.h"
#include "ops/nn/conv/conv_units_cpu.h"
#include "ops/nn/conv/depthwise_rows_simd.h"

// Depthwise convolutions plane by plane (depthwise_rows_simd.h): y from x with strides 1 and 2, and
// x from y without strides.

namespace onnxgrad::ops::depth_rows {
namespace {

struct DepthRowsPlan {
  ConvTask task;
  int threads = 1;
  depth::PlaneShape shape = {};

  bool is_forward() const { return task.pass == ConvTask::Pass::kForward; }
  std::int64_t channels() const { return task.shape.groups; }
  std::int64_t planes() const { return task.shape.batch * task.shape.groups; }
};

/// Computes planes [first, last) of all images.
template <class T>
void run_planes(const DepthRowsPlan& plan, KernelArgs args, std::int64_t first, std::int64_t last) {
  const depth::PlaneShape& shape = plan.shape;
  const auto* from = args.at<T>(plan.is_forward() ? plan.task.x : plan.task.y);
  auto* to = args.at<T>(plan.is_forward() ? plan.task.y : plan.task.x);
  const auto* weights = args.at<T>(plan.task.w);
  const auto* bias = args.find<T>(plan.task.bias);
  const auto* residual = args.find<T>(plan.task.residual);
  while (first < last) {
    const std::int64_t channel = first % plan.channels();
    const std::int64_t results = first * shape.result_size();
    depth::Planes<T> planes{.from = from + first * shape.size(),
                            .weights = weights + channel * shape.kernel * shape.kernel,
                            .to = to + results,
                            .count = std::min(plan.channels() - channel, last - first)};
    if (bias != nullptr) planes.bias = bias + channel;
    if (residual != nullptr) planes.residual = residual + results;
    convolve_planes(plan.task.isa, shape, planes);
    first += planes.count;
  }
}

template <class T>
void run(const DepthRowsPlan& plan, KernelArgs args) {
  device::parallel_ranges(plan.threads, plan.planes(), [&](std::int64_t first, std::int64_t last) {
    run_planes<T>(plan, args, first, last);
  });
}

bool fits(const ConvTask& task) {
  const auto& [depth, height, width] = task.shape.axes;
  const std::int64_t most_strides = task.pass == ConvTask::Pass::kForward ? 2 : 1;
  return depth.kernel == 1 && depth.input == 1 && depth.output == 1 &&
         (width.kernel == 3 || width.kernel == 5) && height.kernel == width.kernel &&
         width.stride <= most_strides && height.stride == width.stride && width.dilation == 1 &&
         height.dilation == 1;
}

depth::PlaneShape shape_of(const ConvTask& task) {
  const auto& [depth, height, width] = task.shape.axes;
  const bool turned = task.pass == ConvTask::Pass::kBackwardData;
  depth::PlaneShape shape{.rows = height.input,
                          .columns = width.input,
                          .result_rows = height.output,
                          .result_columns = width.output,
                          .kernel = width.kernel,
                          .stride = width.stride,
                          .top = height.pad_begin,
                          .left = width.pad_begin,
                          .is_turned = turned,
                          .finishes = task.finishes(),
                          .low = task.low,
                          .high = task.high};
  if (turned) {
    std::swap(shape.rows, shape.result_rows);
    std::swap(shape.columns, shape.result_columns);
    shape.top = shape.kernel - 1 - shape.top;
    shape.left = shape.kernel - 1 - shape.left;
  }
  return shape;
}

}  // namespace
}  // namespace onnxgrad::ops::depth_rows

namespace onnxgrad::ops {

KernelOffer offer_depth_rows(const KernelRequest& request, const ConvTask& task) {
  const ConvShape& shape = task.shape;
  if (shape.groups == 1 || shape.in_channels != 1 || shape.out_channels != 1) {
    return KernelOffer::decline("channels chunk results");
  }
  if (shape.flops() == 0) return KernelOffer::decline("an empty tensor");
  if (task.pass == ConvTask::Pass::kBackwardWeight) {
    return KernelOffer::decline("sums for weights are taken by channels");
  }
  if (!depth_rows::fits(task) || !depth::has_plane_rows(task.isa)) {
    return KernelOffer::decline("neither 3 x 3 nor 5 x 5 with strides of at most 2");
  }
  if (shape.batch * shape.groups < request.threads) {
    return KernelOffer::decline("fewer planes than threads");
  }
  auto plan = std::make_shared<depth_rows::DepthRowsPlan>();
  plan->task = task;
  plan->threads = request.threads;
  plan->shape = depth_rows::shape_of(task);
  opdef::PreparedKernel kernel;
  kernel.fn = request.outputs[0].dtype == DataType::kFloat32 ? kKernel<depth_rows::run<float>>
                                                             : kKernel<depth_rows::run<double>>;
  kernel.label = "depthwise rows";
  kernel.flops = shape.flops();
  kernel.data = std::move(plan);
  return {.kernel = std::move(kernel), .declined = {}};
}

}  // namespace onnxgrad::ops
