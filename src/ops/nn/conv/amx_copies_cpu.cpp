#include "ops/nn/conv/amx_copies_cpu.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "device/cpu/tap_gemms.h"
#include "device/cpu_options.h"
#include "ops/kernel_support.h"
#include "ops/nn/conv/winograd_cpu.h"

namespace onnxgrad::ops::conv_bf16 {
namespace {

std::int64_t floor_div(std::int64_t a, std::int64_t b) {
  return a >= 0 ? a / b : -((b - 1 - a) / b);
}

}  // namespace

CopiedAxis::CopiedAxis(std::int64_t given, const std::vector<AxisPhase>& phases)
    : size(given), step(phases.front().source_step) {
  const std::int64_t positions = count(0);
  high = positions;
  for (const AxisPhase& phase : phases) {
    for (const AxisTap& tap : phase.taps) {
      const std::int64_t first = floor_div(tap.offset, step);
      low = std::min(low, first);
      high = std::max(high, first + phase.count);
    }
  }
  pitch = positions + std::max(-low, high - positions);
}

Copies::Copies(const std::array<std::vector<AxisPhase>, 3>& phases,
               const std::array<std::int64_t, 3>& sizes) {
  for (std::size_t i = 0; i < 3; ++i) axes_.emplace_back(sizes[i], phases[i]);
  const auto reach = [&](std::int64_t d, std::int64_t h, std::int64_t w) {
    return d * depth_pitch() + h * row_pitch() + w;
  };
  const auto beyond = [&](std::size_t i) { return axes_[i].high - axes_[i].count(0); };
  before_ = reach(-axes_[0].low, -axes_[1].low, -axes_[2].low);
  after_ = reach(beyond(0), beyond(1), beyond(2)) + 2 * device::kTapRows;
  for (const AxisPhase& d : phases[0]) {
    for (const AxisPhase& h : phases[1]) {
      for (const AxisPhase& w : phases[2]) {
        for (const AxisTap& i : d.taps) {
          for (const AxisTap& j : h.taps) {
            for (const AxisTap& k : w.taps) {
              const auto remainder = remainder_of(i.offset, j.offset, k.offset);
              if (std::ranges::find(remainders_, remainder) == remainders_.end()) {
                remainders_.push_back(remainder);
              }
            }
          }
        }
      }
    }
  }
}

std::array<std::int64_t, 3> Copies::remainder_of(std::int64_t d, std::int64_t h,
                                                 std::int64_t w) const {
  const auto of_axis = [&](std::size_t i, std::int64_t offset) {
    return offset - floor_div(offset, axes_[i].step) * axes_[i].step;
  };
  return {of_axis(0, d), of_axis(1, h), of_axis(2, w)};
}

std::int64_t Copies::fixed() const { return before_ + after_; }

std::int64_t Copies::offset(std::int64_t d, std::int64_t h, std::int64_t w) const {
  const auto at = std::ranges::find(remainders_, remainder_of(d, h, w)) - remainders_.begin();
  return at * line_ + floor_div(d, axes_[0].step) * depth_pitch() +
         floor_div(h, axes_[1].step) * row_pitch() + floor_div(w, axes_[2].step);
}

std::int64_t Copies::span(const std::array<std::int64_t, 3>& counts, std::int64_t images) const {
  return (images - 1) * plane() + (counts[0] - 1) * depth_pitch() + (counts[1] - 1) * row_pitch() +
         counts[2];
}

bool has_types(const KernelRequest& request, const ConvTask& task) {
  const auto has = [&](int arg, DataType type) {
    return arg < 0 || operand(request, arg).dtype == type;
  };
  const auto has_either = [&](int arg) {
    return has(arg, DataType::kFloat32) || has(arg, DataType::kBfloat16);
  };
  const bool is_forward = task.pass == ConvTask::Pass::kForward;
  if (task.pass == ConvTask::Pass::kBackwardWeight) {
    return has(task.x, DataType::kBfloat16) && has(task.y, DataType::kBfloat16) &&
           has(task.w, DataType::kFloat32);
  }
  return has(is_forward ? task.x : task.y, DataType::kBfloat16) &&
         has(task.w, DataType::kBfloat16) && has(task.bias, DataType::kFloat32) &&
         has_either(is_forward ? task.y : task.x) && has_either(task.residual);
}

KernelOffer offer_of(opdef::KernelFn fn, std::shared_ptr<const void> plan, const ConvShape& shape,
                     std::int64_t images, std::int64_t scratch_bytes) {
  if (!winograd::is_affordable(scratch_bytes, shape)) {
    return KernelOffer::decline("takes too much memory");
  }
  opdef::PreparedKernel kernel;
  kernel.fn = fn;
  kernel.label = fmt::format("bfloat16 tiles AMX, {} images", images);
  kernel.flops = shape.flops();
  kernel.scratch_bytes = scratch_bytes;
  kernel.data = std::move(plan);
  return {.kernel = std::move(kernel), .declined = {}};
}

}  // namespace onnxgrad::ops::conv_bf16

namespace onnxgrad::ops {

KernelOffer offer_conv_bf16(const KernelRequest& request, const ConvTask& task) {
  if (device::cpu_options(request).amx == nullptr) return KernelOffer::decline("no AMX");
  if (!conv_bf16::has_types(request, task))
    return KernelOffer::decline("operands that are not bfloat16");
  if (task.shape.flops() == 0) return KernelOffer::decline("an empty tensor");
  if (task.shape.groups != 1) return KernelOffer::decline("several groups");
  return task.pass == ConvTask::Pass::kBackwardWeight ? conv_bf16::weight::offer(request, task)
                                                      : conv_bf16::result::offer(request, task);
}

}  // namespace onnxgrad::ops
