#include <algorithm>
#include <memory>
#include <type_traits>

#include "device/cpu/gemm_tile.h"
#include "device/cpu_options.h"
#include "ops/fused/part_update_cpu.h"
#include "ops/kernel_support.h"
#include "ops/nn/conv/conv_task_cpu.h"
#include "ops/nn/conv/winograd_cpu.h"
#include "ops/nn/norm_channels_simd.h"

// Reference kernels of Conv, ConvTranspose, ConvInputGrad and ConvWeightGrad, and the list of
// offers. Start reading at visit_products: all three computations use it with a different
// assignment.

namespace onnxgrad::ops {

std::optional<ConvTask> ConvTask::of(const KernelRequest& request) {
  auto operands = ConvOperands::of(request);
  if (!operands) return std::nullopt;
  ConvTask task;
  static_cast<ConvOperands&>(task) = *operands;
  task.isa = device::isa_of(request);
  return task;
}

template <class T>
void finish_results(const ConvTask& task, KernelArgs args, std::int64_t first,
                    std::int64_t channels, std::int64_t plane, std::int64_t count) {
  if (!task.finishes() || count <= 0) return;
  if (plane == count) {  // planes are contiguous
    count *= channels;
    plane = count;
    channels = 1;
  }
  T* y = args.at<T>(task.y) + first;
  const T* residual = args.find<T>(task.residual);
  if (residual != nullptr) residual += first;
  if constexpr (std::is_same_v<T, float>) {
    channels::forward_functions<float>(task.isa).normalize(
        y, residual, {.segments = channels, .stride = plane, .length = count},
        {.low = task.low, .high = task.high}, y);
  } else {
    const auto low = static_cast<T>(task.low);
    const auto high = static_cast<T>(task.high);
    for (std::int64_t c = 0; c < channels; ++c) {
      for (std::int64_t i = c * plane; i < c * plane + count; ++i) {
        const T v = residual == nullptr ? y[i] : y[i] + residual[i];
        y[i] = v < low ? low : v > high ? high : v;  // NaN stays NaN
      }
    }
  }
}

template <class T>
void finish_weights(const ConvTask& task, KernelArgs args, const WeightBlock<T>& block, T* spare) {
  const auto transpose = device::gemm_target<T>(task.isa).transpose;
  const std::int64_t row = task.shape.in_channels * task.shape.kernel_size();
  const std::int64_t first = block.channel * row + block.column;
  if (task.update == nullptr) {
    transpose(block.from, block.from_row, args.at<T>(task.w) + first, row, block.columns,
              block.channels);
    return;
  }
  for (std::int64_t k = 0; k < block.columns; k += kConsumedColumns) {
    const std::int64_t columns = std::min(kConsumedColumns, block.columns - k);
    transpose(block.from + k * block.from_row, block.from_row, spare, kConsumedColumns, columns,
              block.channels);
    task.update->apply<T>(args, {.gradient = spare,
                                 .gradient_row = kConsumedColumns,
                                 .first = first + k,
                                 .rows = block.channels,
                                 .columns = columns,
                                 .row = row});
  }
}

template void finish_weights<float>(const ConvTask&, KernelArgs, const WeightBlock<float>&, float*);
template void finish_weights<double>(const ConvTask&, KernelArgs, const WeightBlock<double>&,
                                     double*);
template void finish_results<float>(const ConvTask&, KernelArgs, std::int64_t, std::int64_t,
                                    std::int64_t, std::int64_t);
template void finish_results<double>(const ConvTask&, KernelArgs, std::int64_t, std::int64_t,
                                     std::int64_t, std::int64_t);

}  // namespace onnxgrad::ops

namespace onnxgrad::ops::conv_cpu {
namespace {

// Calls f(o, j, i) for all windows o and taps j of one axis that read an input position i.
template <class F>
void visit_axis(const WindowAxis& axis, F&& f) {
  for (std::int64_t o = 0; o < axis.output; ++o) {
    visit_taps(axis, o, [&](std::int64_t j, std::int64_t i) { f(o, j, i); });
  }
}

// Calls f(x index, w index, y index) for every multiplication of the convolution.
template <class F>
void visit_products(const ConvShape& shape, F&& f) {
  const auto& [depth, height, width] = shape.axes;
  for (std::int64_t n = 0; n < shape.batch; ++n) {
    for (std::int64_t g = 0; g < shape.groups; ++g) {
      for (std::int64_t m = 0; m < shape.out_channels; ++m) {
        const std::int64_t out_channel = g * shape.out_channels + m;
        const std::int64_t y0 =
            (n * shape.groups * shape.out_channels + out_channel) * shape.output_size();
        for (std::int64_t c = 0; c < shape.in_channels; ++c) {
          const std::int64_t x0 =
              ((n * shape.groups + g) * shape.in_channels + c) * shape.input_size();
          const std::int64_t w0 = (out_channel * shape.in_channels + c) * shape.kernel_size();
          visit_axis(depth, [&](std::int64_t od, std::int64_t jd, std::int64_t id) {
            visit_axis(height, [&](std::int64_t oh, std::int64_t jh, std::int64_t ih) {
              const std::int64_t x1 = x0 + (id * height.input + ih) * width.input;
              const std::int64_t w1 = w0 + (jd * height.kernel + jh) * width.kernel;
              const std::int64_t y1 = y0 + (od * height.output + oh) * width.output;
              visit_axis(width, [&](std::int64_t ow, std::int64_t jw, std::int64_t iw) {
                f(x1 + iw, w1 + jw, y1 + ow);
              });
            });
          });
        }
      }
    }
  }
}

// Initializes result: [batch, channels, positions] = bias[channel], or zero without bias.
template <class T>
void fill_bias(T* result, const T* bias, std::int64_t batch, std::int64_t channels,
               std::int64_t positions) {
  for (std::int64_t n = 0; n < batch; ++n) {
    for (std::int64_t c = 0; c < channels; ++c, result += positions) {
      std::fill_n(result, positions, bias == nullptr ? T{0} : bias[c]);
    }
  }
}

template <class T>
void run_reference(const ConvTask& task, KernelArgs args) {
  const ConvShape& shape = task.shape;
  T* x = args.at<T>(task.x);
  T* w = args.at<T>(task.w);
  T* y = args.at<T>(task.y);
  const T* bias = args.find<T>(task.bias);
  switch (task.pass) {
    case ConvTask::Pass::kForward:
      fill_bias(y, bias, shape.batch, shape.groups * shape.out_channels, shape.output_size());
      visit_products(shape, [=](auto i, auto j, auto o) { y[o] += w[j] * x[i]; });
      finish_results<T>(task, args, 0, 1, 0,
                        shape.batch * shape.groups * shape.out_channels * shape.output_size());
      break;
    case ConvTask::Pass::kBackwardData:
      fill_bias(x, bias, shape.batch, shape.groups * shape.in_channels, shape.input_size());
      visit_products(shape, [=](auto i, auto j, auto o) { x[i] += w[j] * y[o]; });
      break;
    case ConvTask::Pass::kBackwardWeight:
      std::fill_n(w, shape.groups * shape.out_channels * shape.in_channels * shape.kernel_size(),
                  T{0});
      visit_products(shape, [=](auto i, auto j, auto o) { w[j] += y[o] * x[i]; });
      break;
  }
}

// Offer for float32 and float64, for a task that is already read.
using TaskOfferFn = KernelOffer (*)(const KernelRequest& request, const ConvTask& task);

KernelOffer offer_reference(const KernelRequest& request, const ConvTask& task) {
  opdef::PreparedKernel kernel;
  kernel.fn = request.outputs[0].dtype == DataType::kFloat32 ? kKernel<run_reference<float>>
                                                             : kKernel<run_reference<double>>;
  kernel.data = std::make_shared<ConvTask>(task);
  kernel.label = "reference";
  kernel.flops = task.shape.flops();
  return {.kernel = std::move(kernel), .declined = {}};
}

KernelOffer offer_tiles(const KernelRequest& request, const ConvTask& task) {
  if (task.shape.flops() == 0) return KernelOffer::decline("an empty tensor");
  return task.pass == ConvTask::Pass::kBackwardWeight ? offer_conv_weight(request, task)
                                                      : offer_conv_result(request, task);
}

KernelOffer offer_winograd(const KernelRequest& request, const ConvTask& task) {
  if (request.outputs[0].dtype != DataType::kFloat32) return KernelOffer::decline("float32 only");
  return task.pass == ConvTask::Pass::kBackwardWeight ? offer_winograd_weight(request, task)
                                                      : offer_winograd_result(request, task);
}

// Returns true if all operands of the task have this type.
bool has_type(const KernelRequest& request, const ConvTask& task, DataType dtype) {
  return std::ranges::all_of(
      std::array{task.x, task.w, task.y, task.bias, task.residual},
      [&](int arg) { return arg < 0 || operand(request, arg).dtype == dtype; });
}

bool is_wide(const KernelRequest& request, const ConvTask& task) {
  return has_type(request, task, DataType::kFloat32) || has_type(request, task, DataType::kFloat64);
}

template <TaskOfferFn kOffer>
KernelOffer offer_wide(const KernelRequest& request) {
  const auto task = ConvTask::of(request);
  if (!task) return KernelOffer::decline("more than three spatial axes");
  if (!is_wide(request, *task)) return KernelOffer::decline("supports only float32 and float64");
  return kOffer(request, *task);
}

template <TaskOfferFn kOffer>
KernelOffer offer_narrow(const KernelRequest& request) {
  const auto task = ConvTask::of(request);
  if (!task) return KernelOffer::decline("more than three spatial axes");
  if (is_wide(request, *task)) return KernelOffer::decline("no images of 16 bits");
  return kOffer(request, *task);
}

struct FloatOffer {
  int priority;
  TaskOfferFn of_task;
  KernelOffer (*of_request)(const KernelRequest& request);
};

template <TaskOfferFn kOffer>
constexpr FloatOffer float_offer(int priority) {
  return {.priority = priority, .of_task = kOffer, .of_request = offer_wide<kOffer>};
}

// Kernels in order of preference.
constexpr std::array kOffers = {float_offer<offer_depth_rows>(50), float_offer<offer_depthwise>(40),
                                float_offer<offer_winograd>(30), float_offer<offer_tiles>(20),
                                float_offer<offer_reference>(0)};

}  // namespace

void register_conv_cpu(opdef::KernelRegistry& registry) {
  for (const auto& [domain, op_type] :
       {std::pair{std::string_view(), "Conv"}, std::pair{ir::kFusedDomain, "Conv"},
        std::pair{std::string_view(), "ConvTranspose"},
        std::pair{ir::kFunctionDomain, "ConvInputGrad"},
        std::pair{ir::kFunctionDomain, "ConvWeightGrad"}}) {
    for (const FloatOffer& offer : kOffers) {
      registry.add(domain, op_type, offer.priority, offer.of_request);
    }
    registry.add(domain, op_type, 15, offer_narrow<offer_conv_bf16>);
    registry.add(domain, op_type, 10, offer_narrow<offer_conv_f16>);
  }
}

}  // namespace onnxgrad::ops::conv_cpu

namespace onnxgrad::ops {

KernelOffer offer_conv_float(const KernelRequest& request, const ConvTask& task) {
  KernelOffer offer;
  for (const conv_cpu::FloatOffer& best : conv_cpu::kOffers) {
    offer = best.of_task(request, task);
    if (offer.kernel.fn != nullptr) break;
  }
  return offer;
}

}  // namespace onnxgrad::ops
