#include <utility>

#include "ir/builder.h"
#include "opdef/fused.h"
#include "ops/math/product_cuda.h"

namespace onnxgrad::ops::fused_gemm_cuda {
namespace {

opdef::KernelOffer decline_shapes() { return opdef::KernelOffer::decline("shapes do not match"); }

opdef::KernelOffer offer_gemm(const opdef::KernelRequest& request) {
  auto op = opdef::Gemm::read(request.node);
  auto task = product_task(request, 0, 1, op.transpose_a, op.transpose_b);
  if (!task) return decline_shapes();
  task->sums_columns = op.sums_columns;
  if (op.epilogue) {
    task->epilogue = std::move(op.epilogue);
    for (std::size_t i = 2; i < request.inputs.size(); ++i) {
      task->epilogue_inputs.push_back(static_cast<int>(i));
    }
  }
  return offer_product(request, *task);
}

opdef::KernelOffer offer_gemm_update(const opdef::KernelRequest& request) {
  const auto op = opdef::GemmUpdate::read(request.node);
  auto task = product_task(request, 1, 2, op.transpose_a, op.transpose_b);
  if (!task || request.inputs[0].dims != Dims{task->m, task->n}) return decline_shapes();
  const bool has_rate = request.has_input(3);
  if (has_rate && request.inputs[3].dims.num_elements() != 1) return decline_shapes();
  task->epilogue = op.program(has_rate);
  task->epilogue_inputs = {0};
  if (has_rate) task->epilogue_inputs.push_back(3);
  task->in_place = {{0, 0}};
  return offer_product(request, *task);
}

opdef::KernelOffer offer_gemm_weight_update(const opdef::KernelRequest& request) {
  const auto op = opdef::GemmWeightUpdate::read(request.node);
  auto task = product_task(request, 0, 1, op.transpose_a, op.transpose_b);
  if (!task || request.outputs[0].dims != Dims{task->m, task->n}) return decline_shapes();
  task->epilogue = op.update.program();
  task->flushes_denormals = true;
  for (std::size_t i = 2; i < request.inputs.size(); ++i) {
    task->epilogue_inputs.push_back(static_cast<int>(i));
  }
  for (int i = 0; i < static_cast<int>(op.update.num_outputs()); ++i) {
    task->in_place.emplace_back(2 + i, i);
  }
  return offer_product(request, *task);
}

}  // namespace

void register_fused_gemm_cuda(opdef::KernelRegistry& registry) {
  registry.add(ir::kFusedDomain, opdef::kGemm, 0, offer_gemm);
  registry.add(ir::kFusedDomain, opdef::kGemmUpdate, 0, offer_gemm_update);
  registry.add(ir::kFusedDomain, opdef::kGemmWeightUpdate, 0, offer_gemm_weight_update);
}

}  // namespace onnxgrad::ops::fused_gemm_cuda
