#include <algorithm>
#include <cmath>

#include "device/cpu/threads.h"
#include "ir/builder.h"
#include "opdef/fused_normalization.h"
#include "ops/kernel_support.h"
#include "ops/nn/norm_channels.h"

// BatchNormalization and its gradient with what surrounds them; see opdef/fused_normalization.h.
// Channels are independent of each other: each is read from memory once, and then from the cache
// for the second pass that needs the sums of the first.

namespace onnxgrad::ops::fused_normalization_cpu {
namespace {

using opdef::FusedNormalization;
using opdef::KernelOffer;
using opdef::KernelRequest;
using opdef::Launch;

// Below this many elements a second thread costs more than it saves.
constexpr std::int64_t kParallelElements = 1 << 16;

struct Task {
  FusedNormalization op = {};
  channels::Stretches stretches = {};
  std::int64_t channels = 0;
  int outputs = 0;  ///< argument of the first output
  int threads = 1;
  bool has_residual = false;  ///< of the gradient: has a second cotangent
  bool has_result = false;
  bool stores = false;  ///< the cotangent behind the mask is an output
};

template <class F>
void visit_channels(const Task& task, F&& f) {
  device::share_parts(task.channels * task.stretches.count() < kParallelElements ? 1 : task.threads,
                      task.channels, f);
}

template <class T>
T* argument(std::byte* const* args, int index) {
  return reinterpret_cast<T*>(args[index]);
}

// The same in both directions, so that a mask is that of the values.
channels::Affine affine_of(const FusedNormalization& op, float mean, float inverse, float scale,
                           float shift) {
  return {.mean = mean, .slope = scale * inverse, .shift = shift, .low = op.low, .high = op.high};
}

// args: x, scale, bias, mean, variance[, residual], y, running mean, running variance, saved mean,
// saved inverse.
void run_forward(const void* data, std::byte* const* args, const Launch& /*launch*/) {
  const auto& task = *static_cast<const Task*>(data);
  const auto* x = argument<const float>(args, 0);
  const auto* scale = argument<const float>(args, 1);
  const auto* shift = argument<const float>(args, 2);
  const auto* residual = task.has_residual ? argument<const float>(args, 5) : nullptr;
  auto* y = argument<float>(args, task.outputs);
  const auto momentum = static_cast<double>(task.op.momentum);
  visit_channels(task, [&](std::int64_t c) {
    const std::int64_t first = c * task.stretches.length;
    const channels::Moments moments = channels::moments(x + first, task.stretches);
    for (int i = 0; i < 2; ++i) {
      auto* running = argument<float>(args, task.outputs + 1 + i);
      if (running == nullptr) continue;
      const auto old = static_cast<double>(argument<const float>(args, 3 + i)[c]);
      const double current = i == 0 ? moments.mean : moments.variance;
      running[c] = static_cast<float>(old * momentum + current * (1 - momentum));
    }
    const auto mean = static_cast<float>(moments.mean);
    const auto inverse =
        static_cast<float>(1 / std::sqrt(moments.variance + static_cast<double>(task.op.epsilon)));
    if (auto* saved = argument<float>(args, task.outputs + 3)) saved[c] = mean;
    if (auto* saved = argument<float>(args, task.outputs + 4)) saved[c] = inverse;
    if (y == nullptr) return;
    channels::normalize(x + first, residual == nullptr ? nullptr : residual + first, task.stretches,
                        affine_of(task.op, mean, inverse, scale[c], shift[c]), y + first);
  });
}

// args: dy, x, scale, bias, saved mean, saved inverse, more, result, dx, dscale, dbias, g.
// dx = scale * inverse * (g - mean(g) - h * mean(g * h)), h = (x - mean) * inverse.
void run_grad(const void* data, std::byte* const* args, const Launch& /*launch*/) {
  const auto& task = *static_cast<const Task*>(data);
  const auto at = [](auto* tensor, std::int64_t first) {
    return tensor == nullptr ? nullptr : tensor + first;
  };
  const auto* scale = argument<const float>(args, 2);
  const auto* shift = argument<const float>(args, 3);
  const auto* more = task.has_residual ? argument<const float>(args, 6) : nullptr;
  const auto* result = task.has_result ? argument<const float>(args, 7) : nullptr;
  auto* dx = argument<float>(args, task.outputs);
  auto* dscale = argument<float>(args, task.outputs + 1);
  auto* dbias = argument<float>(args, task.outputs + 2);
  auto* stored = task.stores ? argument<float>(args, task.outputs + 3) : nullptr;
  const auto count = static_cast<double>(task.stretches.count());
  visit_channels(task, [&](std::int64_t c) {
    const std::int64_t first = c * task.stretches.length;
    const float mean = argument<const float>(args, 4)[c];
    const float saved = argument<const float>(args, 5)[c];
    channels::Cotangent cotangent{.dy = argument<const float>(args, 0) + first,
                                  .more = at(more, first),
                                  .x = argument<const float>(args, 1) + first,
                                  .result = at(result, first),
                                  .mask = static_cast<channels::Mask>(task.op.mask),
                                  .affine = affine_of(task.op, mean, saved, scale[c], shift[c])};
    const channels::GradSums sums =
        channels::grad_sums(cotangent, task.stretches, at(stored, first));
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
    channels::normalize_grad(cotangent, task.stretches, static_cast<float>(a),
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
          .threads = request.threads};
}

bool is_float32(const KernelRequest& request) {
  return std::ranges::all_of(request.inputs, [](const opdef::TensorDesc& input) {
    return !input.is_present() || input.dtype == DataType::kFloat32;
  });
}

bool has_input(const KernelRequest& request, std::size_t i) {
  return i < request.inputs.size() && request.inputs[i].is_present();
}

KernelOffer offer_forward(const KernelRequest& request) {
  if (!is_float32(request)) return KernelOffer::decline("float32 only");
  Task task = task_of(request, 0);
  task.has_residual = has_input(request, 5);
  KernelOffer offer = prepared(run_forward, task, task.has_residual ? "simd, residual" : "simd");
  offer.kernel.in_place = {{0, 0}};
  if (task.has_residual) offer.kernel.in_place.emplace_back(5, 0);
  return offer;
}

KernelOffer offer_grad(const KernelRequest& request) {
  if (!is_float32(request)) return KernelOffer::decline("float32 only");
  Task task = task_of(request, 1);
  task.has_residual = has_input(request, 6);
  task.has_result = has_input(request, 7);
  task.stores = request.outputs.size() > 3 && request.outputs[3].is_present();
  KernelOffer offer = prepared(run_grad, task, "simd");
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
