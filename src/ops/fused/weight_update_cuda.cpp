#include <fmt/format.h>

#include <utility>

#include "ir/builder.h"
#include "opdef/fused.h"
#include "ops/fused/elementwise_launch_cuda.h"

// onnxgrad.WeightUpdate: the formulas of opdef/fused.h as an element-wise text.

namespace onnxgrad::ops::weight_update_cuda {
namespace {

opdef::KernelOffer offer_update(const opdef::KernelRequest& request) {
  if (request.outputs[0].dims.rank() == 0) {
    return opdef::KernelOffer::decline("the weight has rank 0");  // joins its neighbours
  }
  const auto update = opdef::WeightUpdate::read(request.node);
  opdef::KernelOffer offer =
      elementwise_launch(request, {.program = update.program(),
                                   .compute = request.outputs[0].dtype,
                                   .stored = static_cast<std::int64_t>(request.outputs.size()),
                                   .flush_denormals = true});
  offer.kernel.label = fmt::format("{} {}", opdef::update_rule_name(update.rule),
                                   request.outputs[0].dims.to_string());
  return offer;
}

}  // namespace

void register_weight_update_cuda(opdef::KernelRegistry& registry) {
  registry.add(ir::kFunctionDomain, opdef::kWeightUpdate, 0, offer_update);
}

}  // namespace onnxgrad::ops::weight_update_cuda
