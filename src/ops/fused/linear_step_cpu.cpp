#include <fmt/format.h>

#include <cstdint>
#include <memory>

#include "device/cpu_options.h"
#include "ir/builder.h"
#include "opdef/fused.h"
#include "ops/fused/linear_step_simd.h"
#include "ops/kernel_support.h"

// onnxgrad.fused.LinearStep: a whole training step of a linear model in one call, since for ten
// rows of two columns the cost of a kernel is mostly the call.

namespace onnxgrad::ops::linear_step_cpu {
namespace {

constexpr int kInputs = 5;

// Larger steps are better off with the separate kernels and their sums in double.
constexpr std::int64_t kMostRows = 128;
constexpr std::int64_t kMostFeatures = 1024;

template <class T>
struct StepData {
  LinearStepFn<T> step = nullptr;
  std::int64_t rows = 0, features = 0;
  bool has_bias = false, has_rate = false, has_new_bias = false;
  int scratch_at = 0;
  T bias, target, shift, loss_scale;
  double weight_step, bias_step;
};

template <class T>
void run_step(const StepData<T>& data, KernelArgs args) {
  const double rate = data.has_rate ? static_cast<double>(*args.at<T>(4)) : 1;
  const T bias = data.has_bias ? *args.at<T>(2) : T(0);
  const auto sums = data.step({.x = args.at<T>(0),
                               .weight = args.at<T>(1),
                               .target = args.at<T>(3),
                               .new_weight = args.at<T>(kInputs + 1),
                               .sums = args.at<T>(data.scratch_at),
                               .rows = data.rows,
                               .features = data.features,
                               .offset = data.bias * bias + data.shift,
                               .target_factor = data.target,
                               .weight_step = static_cast<T>(data.weight_step * rate)});
  *args.at<T>(kInputs) = data.loss_scale * sums.squares;
  if (data.has_new_bias) {
    *args.at<T>(kInputs + 2) = bias + static_cast<T>(data.bias_step * rate) * sums.values;
  }
}

template <class T>
opdef::PreparedKernel prepare(const KernelRequest& request, LinearStepFn<T> step, std::int64_t rows,
                              std::int64_t features) {
  const auto op = opdef::LinearStep::read(request.node);
  opdef::PreparedKernel kernel;
  kernel.fn = kKernel<run_step<T>>;
  kernel.data = std::make_shared<const StepData<T>>(
      StepData<T>{.step = step,
                  .rows = rows,
                  .features = features,
                  .has_bias = request.inputs[2].is_present(),
                  .has_rate = request.inputs[4].is_present(),
                  .has_new_bias = request.has_output(2),
                  .scratch_at = kInputs + static_cast<int>(request.outputs.size()),
                  .bias = static_cast<T>(op.bias),
                  .target = static_cast<T>(op.target),
                  .shift = static_cast<T>(op.shift),
                  .loss_scale = static_cast<T>(op.loss_scale),
                  .weight_step = op.weight_step,
                  .bias_step = op.bias_step});
  kernel.scratch_bytes = features * static_cast<std::int64_t>(sizeof(T));
  kernel.in_place = {{1, 1}, {2, 2}};
  kernel.label = fmt::format("rows of {}", features);
  kernel.flops = 4.0 * static_cast<double>(rows * features);
  return kernel;
}

KernelOffer offer_step(const KernelRequest& request) {
  if (request.inputs.size() != kInputs || request.outputs.size() < 2) {
    return KernelOffer::decline(request.node.describe() + ": operands are missing");
  }
  const TensorDesc& x = request.inputs[0];
  const TensorDesc& weight = request.inputs[1];
  const TensorDesc& target = request.inputs[3];
  const bool is_double = x.dtype == DataType::kFloat64;
  if (!is_double && x.dtype != DataType::kFloat32) {
    return KernelOffer::decline("float32 and float64 only");
  }
  const std::int64_t rows = target.dims.num_elements();
  const std::int64_t features = weight.dims.num_elements();
  if (x.dims.num_elements() != rows * features) {
    return KernelOffer::decline(request.node.describe() + ": shapes do not match");
  }
  if (request.is_candidate && (rows > kMostRows || features > kMostFeatures)) {
    return KernelOffer::decline(
        fmt::format("a step of more than {} rows or {} features is better made of its parts",
                    kMostRows, kMostFeatures));
  }
  return {.kernel = is_double
                        ? prepare(request, linear_step_double(device::isa_of(request), features),
                                  rows, features)
                        : prepare(request, linear_step_float(device::isa_of(request), features),
                                  rows, features),
          .declined = {}};
}

}  // namespace

void register_linear_step_cpu(opdef::KernelRegistry& registry) {
  registry.add(ir::kFusedDomain, opdef::kLinearStep, 1, offer_step);
}

}  // namespace onnxgrad::ops::linear_step_cpu
