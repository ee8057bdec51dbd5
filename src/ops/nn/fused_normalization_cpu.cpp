#include <cmath>
#include <cstddef>
#include <initializer_list>

#include "device/cpu/threads.h"
#include "device/cpu_options.h"
#include "ir/builder.h"
#include "opdef/fused_normalization.h"
#include "ops/kernel_support.h"
#include "ops/nn/norm_channels_simd.h"

// BatchNormalization and its gradient fused with their neighbours; see opdef/fused_normalization.h.
// Channels are independent: each is read from memory once, and then from the cache for the second
// pass, which needs the sums of the first. Images may be f16 or bf16: all of them or, for the
// gradient, only those of the forward pass.

namespace onnxgrad::ops::fused_normalization_cpu {
namespace {

using opdef::FusedNormalization;

// Minimum number of elements for a second thread.
constexpr std::int64_t kParallelElements = 1 << 13;  // per thread

struct Task {
  FusedNormalization op = {};
  channels::Stretches stretches = {};
  std::int64_t channels = 0;
  int outputs = 0;  ///< argument of the first output
  int threads = 1;
  device::Isa isa = {};
  bool has_residual = false;  ///< gradient: has a second cotangent
  bool has_result = false;
  bool stores = false;  ///< the masked cotangent is an output
};

template <class F>
void visit_channels(const Task& task, F&& f) {
  device::parallel_for(device::useful_threads(task.channels * task.stretches.count(),
                                              kParallelElements, task.threads),
                       task.channels, f);
}

// Returns the map of both directions, so that a mask recomputes exactly the forward values.
channels::Affine affine_of(const FusedNormalization& op, float mean, float inverse, float scale,
                           float shift) {
  return {.mean = mean, .slope = scale * inverse, .shift = shift, .low = op.low, .high = op.high};
}

// args, with images of type E: x, scale, bias, mean, variance[, residual], y, running mean, running
// variance, saved mean, saved inverse.
template <class E>
void run_forward(const Task& task, KernelArgs args) {
  const auto functions = channels::forward_functions<E>(task.isa);
  const auto* x = args.at<E>(0);
  const auto* scale = args.at<float>(1);
  const auto* shift = args.at<float>(2);
  const auto* residual = task.has_residual ? args.at<E>(5) : nullptr;
  auto* y = args.at<E>(task.outputs);
  const auto momentum = static_cast<double>(task.op.momentum);
  visit_channels(task, [&](std::int64_t c) {
    const std::int64_t first = c * task.stretches.length;
    const channels::Moments moments = functions.moments(x + first, task.stretches);
    for (int i = 0; i < 2; ++i) {
      auto* running = args.at<float>(task.outputs + 1 + i);
      if (running == nullptr) continue;
      const auto old = static_cast<double>(args.at<float>(3 + i)[c]);
      const double current = i == 0 ? moments.mean : moments.variance;
      running[c] = static_cast<float>(old * momentum + current * (1 - momentum));
    }
    const auto mean = static_cast<float>(moments.mean);
    const auto inverse =
        static_cast<float>(1 / std::sqrt(moments.variance + static_cast<double>(task.op.epsilon)));
    if (auto* saved = args.at<float>(task.outputs + 3)) saved[c] = mean;
    if (auto* saved = args.at<float>(task.outputs + 4)) saved[c] = inverse;
    if (y == nullptr) return;
    functions.normalize(x + first, residual == nullptr ? nullptr : residual + first, task.stretches,
                        affine_of(task.op, mean, inverse, scale[c], shift[c]), y + first);
  });
}

// args, with cotangents of type G and x and result of type X: dy, x, scale, bias, saved mean, saved
// inverse, more, result, dx, dscale, dbias, g. dx = scale * inverse * (g - mean(g) - h * mean(g *
// h)), h = (x - mean) * inverse.
template <class G, class X>
void run_grad(const Task& task, KernelArgs args) {
  const auto at = [](auto* tensor, std::int64_t first) {
    return tensor == nullptr ? nullptr : tensor + first;
  };
  const auto* scale = args.at<float>(2);
  const auto* shift = args.at<float>(3);
  const auto functions = channels::grad_functions<G, X>(task.isa);
  const auto* more = task.has_residual ? args.at<G>(6) : nullptr;
  const auto* result = task.has_result ? args.at<X>(7) : nullptr;
  auto* dx = args.at<G>(task.outputs);
  auto* dscale = args.at<float>(task.outputs + 1);
  auto* dbias = args.at<float>(task.outputs + 2);
  auto* stored = task.stores ? args.at<G>(task.outputs + 3) : nullptr;
  const auto count = static_cast<double>(task.stretches.count());
  visit_channels(task, [&](std::int64_t c) {
    const std::int64_t first = c * task.stretches.length;
    const float mean = args.at<float>(4)[c];
    const float saved = args.at<float>(5)[c];
    channels::Cotangent<G, X> cotangent{
        .dy = args.at<const G>(0) + first,
        .more = at(more, first),
        .x = args.at<const X>(1) + first,
        .result = at(result, first),
        .mask = static_cast<channels::Mask>(task.op.mask),
        .affine = affine_of(task.op, mean, saved, scale[c], shift[c])};
    const channels::GradSums sums = functions.sums(cotangent, task.stretches, at(stored, first));
    const auto inverse = static_cast<double>(saved);
    const double dot = sums.dot * inverse;
    if (dscale != nullptr) dscale[c] = static_cast<float>(dot);
    if (dbias != nullptr) dbias[c] = static_cast<float>(sums.g);
    if (dx == nullptr) return;
    if (stored != nullptr) {
      cotangent.dy = stored + first;
      cotangent.more = nullptr;
      cotangent.mask = channels::Mask::kNone;
    }
    const double a = static_cast<double>(scale[c]) * inverse;
    functions.normalize(cotangent, task.stretches, static_cast<float>(a),
                        static_cast<float>(-a * inverse * dot / count),
                        static_cast<float>(-a * sums.g / count), dx + first);
  });
}

Task task_of(const KernelRequest& request, std::size_t x_input) {
  const Dims& x = request.inputs[x_input].dims;
  const std::int64_t length = x.product(2, x.rank());
  return {.op = FusedNormalization::read(request.node),
          .stretches = {.segments = x[0], .stride = x[1] * length, .length = length},
          .channels = x[1],
          .outputs = static_cast<int>(request.inputs.size()),
          .threads = request.threads,
          .isa = device::isa_of(request)};
}

/// Returns the common type of these operands, if present; kUndefined if they differ. Outputs are
/// numbered after the inputs.
DataType common_type(const KernelRequest& request, std::initializer_list<std::size_t> operands) {
  const std::size_t count = request.inputs.size();
  DataType common = DataType::kUndefined;
  for (const std::size_t i : operands) {
    const auto& list = i < count ? request.inputs : request.outputs;
    const std::size_t at = i < count ? i : i - count;
    if (at >= list.size() || !list[at].is_present() || list[at].dtype == common) continue;
    if (common != DataType::kUndefined) return DataType::kUndefined;
    common = list[at].dtype;
  }
  return common;
}

std::string label_of(DataType images, DataType cotangents) {
  if (images == DataType::kFloat32) return "simd";
  const std::string type(dtype_name(images));
  return cotangents == images ? "simd, " + type : "simd, of " + type;
}

KernelOffer offer_forward(const KernelRequest& request) {
  const std::size_t first = request.inputs.size();
  const DataType type =
      first > 5 ? common_type(request, {0, 5, first}) : common_type(request, {0, first});
  opdef::KernelFn run = nullptr;
  if (type == DataType::kFloat32) run = kKernel<run_forward<float>>;
  if (type == DataType::kFloat16) run = kKernel<run_forward<base::Float16>>;
  if (type == DataType::kBfloat16) run = kKernel<run_forward<base::Bfloat16>>;
  const DataType numbers =
      common_type(request, {1, 2, 3, 4, first + 1, first + 2, first + 3, first + 4});
  if (run == nullptr || numbers != DataType::kFloat32) {
    return KernelOffer::decline("images of float32 or of one type of 16 bits only");
  }
  Task task = task_of(request, 0);
  task.has_residual = request.has_input(5);
  KernelOffer offer =
      prepared(run, task, label_of(type, type) + (task.has_residual ? ", residual" : ""));
  offer.kernel.in_place = {{0, 0}};
  if (task.has_residual) offer.kernel.in_place.emplace_back(5, 0);
  return offer;
}

opdef::KernelFn grad_kernel(DataType cotangents, DataType images) {
  using base::Bfloat16;
  using base::Float16;
  const bool is_same = cotangents == images;
  if (!is_same && cotangents != DataType::kFloat32) return nullptr;
  switch (images) {
    case DataType::kFloat32:
      return kKernel<run_grad<float, float>>;
    case DataType::kFloat16:
      return is_same ? kKernel<run_grad<Float16, Float16>> : kKernel<run_grad<float, Float16>>;
    case DataType::kBfloat16:
      return is_same ? kKernel<run_grad<Bfloat16, Bfloat16>> : kKernel<run_grad<float, Bfloat16>>;
    default:
      return nullptr;
  }
}

KernelOffer offer_grad(const KernelRequest& request) {
  Task task = task_of(request, 1);
  task.has_residual = request.has_input(6);
  task.has_result = request.has_input(7);
  task.stores = request.has_output(3);
  const std::size_t first = request.inputs.size();
  const DataType cotangents = task.has_residual ? common_type(request, {0, 6, first, first + 3})
                                                : common_type(request, {0, first, first + 3});
  const DataType images = task.has_result ? common_type(request, {1, 7}) : request.inputs[1].dtype;
  const opdef::KernelFn run = grad_kernel(cotangents, images);
  const DataType numbers = common_type(request, {2, 3, 4, 5, first + 1, first + 2});
  if (run == nullptr || numbers != DataType::kFloat32) {
    return KernelOffer::decline("images of float32 or of one type of 16 bits only");
  }
  KernelOffer offer = prepared(run, task, label_of(images, cotangents));
  const int summed = task.stores ? 3 : 0;
  offer.kernel.in_place = {{0, summed}, {1, 0}};
  if (task.has_residual) offer.kernel.in_place.emplace_back(6, summed);
  return offer;
}

}  // namespace

void register_fused_normalization_cpu(opdef::KernelRegistry& registry) {
  registry.add(ir::kFusedDomain, opdef::kFusedNormalization, 0, offer_forward);
  registry.add(ir::kFusedDomain, opdef::kFusedNormalizationGrad, 0, offer_grad);
}

}  // namespace onnxgrad::ops::fused_normalization_cpu
