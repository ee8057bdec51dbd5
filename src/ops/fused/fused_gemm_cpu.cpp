#include <utility>

#include "ir/builder.h"
#include "opdef/fused.h"
#include "opdef/kernel.h"
#include "ops/fused/matmul_offer_cpu.h"
#include "ops/kernel_support.h"

namespace onnxgrad::ops::fused_gemm_cpu {
namespace {

KernelOffer decline_shapes(const KernelRequest& request) {
  return KernelOffer::decline(request.node.describe() + ": shapes do not match");
}

KernelOffer offer_gemm(const KernelRequest& request) {
  auto op = opdef::Gemm::read(request.node);
  const auto gemm = matmul_shape(request, 0, 1, op.transpose_a, op.transpose_b);
  if (!gemm) return decline_shapes(request);
  MatmulSpec spec{.gemm = *gemm, .sums_columns = op.sums_columns};
  if (op.epilogue) {
    spec.epilogue = std::move(op.epilogue);
    for (std::size_t i = 2; i < request.inputs.size(); ++i) {
      spec.epilogue_inputs.push_back(static_cast<int>(i));
    }
  }
  return offer_matmul(request, std::move(spec));
}

KernelOffer offer_gemm_update(const KernelRequest& request) {
  const auto op = opdef::GemmUpdate::read(request.node);
  const auto gemm = matmul_shape(request, 1, 2, op.transpose_a, op.transpose_b);
  if (!gemm || request.inputs[0].dims != Dims{gemm->m, gemm->n}) return decline_shapes(request);
  MatmulSpec spec{.gemm = *gemm, .a = 1, .b = 2, .start = 0};
  spec.gemm.start = device::GemmStart::kMatrix;
  spec.gemm.alpha = op.scale;
  if (request.has_input(3)) {
    const DataType wanted = is_f16(gemm->dtype) ? DataType::kFloat32 : gemm->dtype;
    if (request.inputs[3].dtype != wanted || request.inputs[3].dims.num_elements() != 1) {
      return decline_shapes(request);
    }
    spec.factor = 3;
  }
  return offer_matmul(request, std::move(spec));
}

}  // namespace

void register_fused_gemm_cpu(opdef::KernelRegistry& registry) {
  registry.add(ir::kFusedDomain, opdef::kGemm, 1, offer_gemm);
  registry.add(ir::kFusedDomain, opdef::kGemmUpdate, 1, offer_gemm_update);
}

}  // namespace onnxgrad::ops::fused_gemm_cpu
