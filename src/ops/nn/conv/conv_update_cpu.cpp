#include "opdef/conv_update.h"

#include <fmt/format.h>

#include <memory>

#include "ops/fused/part_update_cpu.h"
#include "ops/kernel_support.h"
#include "ops/nn/conv/conv_units_cpu.h"
#include "ops/nn/conv/winograd_cpu.h"

// onnxgrad.fused.ConvWeightUpdate and ConvDescent: the kernels of ConvWeightGrad, which pass each
// block of the weight gradient to the update instead of storing it (finish_weights).

namespace onnxgrad::ops::conv_update_cpu {
namespace {

using opdef::WeightUpdate;

// Returns true if dy, x and w have one type.
bool have_one_type(const KernelRequest& request) {
  const DataType dtype = request.outputs[0].dtype;
  return (dtype == DataType::kFloat32 || dtype == DataType::kFloat64) &&
         request.inputs[0].dtype == dtype && request.inputs[1].dtype == dtype;
}

KernelOffer offer_update(const KernelRequest& request, const WeightUpdate* update) {
  auto task = ConvTask::of(request);
  if (!task) return KernelOffer::decline("more than three spatial axes");
  if (task->shape.flops() == 0) return KernelOffer::decline("an empty tensor");
  const bool is_wide = have_one_type(request);
  if (is_wide && offer_depthwise(request, *task).kernel.fn != nullptr) {
    return KernelOffer::decline("a depthwise convolution has few weights");
  }
  const auto parts = std::make_shared<PartUpdate>(PartUpdate::of(update, request, 2));
  task->update = parts;
  KernelOffer offer = offer_conv_bf16(request, *task);
  if (is_wide && request.outputs[0].dtype == DataType::kFloat32) {
    offer = offer_winograd_weight(request, *task);
  }
  if (is_wide && offer.kernel.fn == nullptr) offer = offer_conv_weight(request, *task);
  if (offer.kernel.fn == nullptr) return offer;
  offer.kernel.label +=
      fmt::format(", {}", update == nullptr ? "descent" : opdef::update_rule_name(update->rule));
  offer.kernel.in_place = parts->at.in_place();
  return offer;
}

KernelOffer offer_weight_update(const KernelRequest& request) {
  const WeightUpdate update = WeightUpdate::read(request.node);
  return offer_update(request, &update);
}

KernelOffer offer_descent(const KernelRequest& request) { return offer_update(request, nullptr); }

}  // namespace

void register_conv_update_cpu(opdef::KernelRegistry& registry) {
  registry.add(ir::kFusedDomain, opdef::kConvWeightUpdate, 1, offer_weight_update);
  registry.add(ir::kFusedDomain, opdef::kConvDescent, 1, offer_descent);
}

}  // namespace onnxgrad::ops::conv_update_cpu
