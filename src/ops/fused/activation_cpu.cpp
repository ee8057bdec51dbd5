#include <fmt/format.h>
#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "device/cpu/threads.h"
#include "device/cpu_options.h"
#include "ir/builder.h"
#include "opdef/activation.h"
#include "opdef/kernel.h"
#include "ops/f16_stream_cpu.h"
#include "ops/fused/activation_rows_simd.h"
#include "ops/kernel_support.h"

namespace onnxgrad::ops::activation_cpu {
namespace {

struct Task {
  device::Isa isa = {};
  opdef::ActivationFunction function = {};
  std::int64_t count = 0;
  int threads = 1;
};

constexpr std::int64_t kBlock = 64;  // threads get multiples of this many elements

template <class T>
void apply(const Task& task, KernelArgs args, std::int64_t first, std::int64_t last) {
  auto* slope = args.at<T>(2);
  activation_rows::apply(task.isa, task.function, args.at<T>(0) + first, args.at<T>(1) + first,
                         slope == nullptr ? nullptr : slope + first, last - first);
}

constexpr std::int64_t kPart = 512;  // elements converted at a time

// Fewer elements are faster in the groups of the element-wise nodes around them.
constexpr std::int64_t kFewestElements = 4096;

struct F16Task : Task {
  F16Stream x, dy, result, slope;
  bool has_gradient = false;
};

void apply_f16(const F16Task& task, KernelArgs args, std::int64_t first, std::int64_t last) {
  alignas(64) float x[kPart];
  alignas(64) float y[kPart];
  alignas(64) float slopes[kPart];
  for (std::int64_t at = first; at < last; at += kPart) {
    const std::int64_t count = std::min(kPart, last - at);
    const float* from = task.x.load(args, at, count, x);
    float* to = task.result.place(args, at, y);
    if (task.has_gradient) {
      const float* dy = task.dy.load(args, at, count, y);
      activation_rows::multiply_slopes(task.isa, task.function, from, dy, to, count);
    } else {
      float* slope = task.slope.is_absent(args) ? nullptr : task.slope.place(args, at, slopes);
      activation_rows::apply(task.isa, task.function, from, to, slope, count);
      if (slope != nullptr) task.slope.finish(args, at, count, slope);
    }
    task.result.finish(args, at, count, to);
  }
}

/// Returns the kernel whose elements kApply computes, alone or by blocks.
template <auto kApply, class AnyTask>
KernelOffer prepared_elements(const AnyTask& task, std::string label) {
  const auto run = [](const void* raw, KernelArgs args, const Launch& /*launch*/) {
    const auto& task = *static_cast<const AnyTask*>(raw);
    device::parallel_blocks(
        task.threads, task.count, kBlock,
        [&](std::int64_t first, std::int64_t last) { kApply(task, args, first, last); });
  };
  KernelOffer offer = prepared(run, task, std::move(label));
  offer.kernel.by_blocks.fn = [](const void* raw, KernelArgs args, const Launch& /*launch*/,
                                 const opdef::Block& block) {
    const auto& task = *static_cast<const AnyTask*>(raw);
    block.visit_ranges(
        [&](std::int64_t first, std::int64_t last) { kApply(task, args, first, last); });
  };
  offer.kernel.by_blocks.cut = opdef::BlockCut::kAny;
  offer.kernel.by_blocks.threads = task.threads;
  return offer;
}

constexpr const char* kNames[] = {"gelu", "tanh gelu", "silu"};

opdef::ActivationFunction function_of(const KernelRequest& request) {
  return static_cast<opdef::ActivationFunction>(request.node.int_attribute("function"));
}

int threads_for(const KernelRequest& request) {
  constexpr std::int64_t kParallelElements = 8192;  // minimum per thread
  return static_cast<int>(std::clamp<std::int64_t>(
      request.inputs[0].dims.num_elements() / kParallelElements, 1, request.threads));
}

/// Offers (x) -> (y, slope?) or (x, dy) -> (dx) for float32, f16 or bf16 operands.
KernelOffer offer_f16(const KernelRequest& request) {
  F16Task task;
  task.isa = device::isa_of(request);
  task.function = function_of(request);
  task.count = request.inputs[0].dims.num_elements();
  task.threads = threads_for(request);
  task.has_gradient = request.inputs.size() == 2;
  DataType half = DataType::kUndefined;
  for (const auto* list : {&request.inputs, &request.outputs}) {
    for (const TensorDesc& desc : *list) {
      if (!desc.is_present() || desc.dtype == DataType::kFloat32) continue;
      if (!is_f16(desc.dtype) || (half != DataType::kUndefined && half != desc.dtype)) {
        return decline_dtype(request, desc.dtype);
      }
      half = desc.dtype;
    }
  }
  const auto result = static_cast<int>(request.inputs.size());
  const bool has_slope = request.has_output(1);
  if (has_slope) task.slope = F16Stream::result(task.isa, result + 1, request.outputs[1].dtype);
  task.x = F16Stream::operand(task.isa, 0, request.inputs[0].dtype);
  if (task.has_gradient) task.dy = F16Stream::operand(task.isa, 1, request.inputs[1].dtype);
  task.result = F16Stream::result(task.isa, result, request.outputs[0].dtype);
  KernelOffer offer = prepared_elements<apply_f16>(
      task, fmt::format("{}{} by halves {}", kNames[static_cast<int>(task.function)],
                        task.has_gradient ? " gradient"
                        : has_slope       ? ", slope"
                                          : "",
                        request.inputs[0].dims.to_string()));
  // Each chunk is read before it is written; the planner compares the sizes.
  offer.kernel.by_blocks.inputs = {0};
  if (task.has_gradient) offer.kernel.by_blocks.inputs = {0, 1};
  offer.kernel.in_place = {{0, 0}};
  if (task.has_gradient) offer.kernel.in_place = {{1, 0}, {0, 0}};
  if (has_slope) offer.kernel.in_place.emplace_back(0, 1);
  return offer;
}

bool is_too_small(const KernelRequest& request) {
  return request.is_candidate && request.inputs[0].dims.num_elements() < kFewestElements;
}

KernelOffer decline_size() {
  return KernelOffer::decline(
      fmt::format("fewer than {} elements are faster in element-wise groups", kFewestElements));
}

KernelOffer offer_gradient(const KernelRequest& request) {
  return is_too_small(request) ? decline_size() : offer_f16(request);
}

KernelOffer offer_activation(const KernelRequest& request) {
  if (is_too_small(request)) return decline_size();
  const TensorDesc& x = request.inputs[0];
  const bool has_slope = request.has_output(1);
  if (is_f16(x.dtype) || is_f16(request.outputs[0].dtype) ||
      (has_slope && is_f16(request.outputs[1].dtype))) {
    return offer_f16(request);
  }
  const Task task{.isa = device::isa_of(request),
                  .function = function_of(request),
                  .count = x.dims.num_elements(),
                  .threads = threads_for(request)};
  KernelOffer offer = offer_for_types<float, double>(request, x.dtype, [&]<class T>(T) {
    return prepared_elements<apply<T>>(
        task, fmt::format("{}{} {}", kNames[static_cast<int>(task.function)],
                          has_slope ? ", slope" : "", x.dims.to_string()));
  });
  offer.kernel.by_blocks.inputs = {0};
  offer.kernel.in_place = {{0, 0}};
  if (has_slope) offer.kernel.in_place.emplace_back(0, 1);
  return offer;
}

}  // namespace

void register_activation_cpu(opdef::KernelRegistry& registry) {
  registry.add(ir::kFusedDomain, opdef::kActivation, 0, offer_activation);
  registry.add(ir::kFusedDomain, opdef::kActivationGradient, 0, offer_gradient);
}

}  // namespace onnxgrad::ops::activation_cpu
