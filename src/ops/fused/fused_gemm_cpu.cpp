#include "ir/builder.h"
#include "opdef/kernel.h"
#include "ops/fused/product_cpu.h"

// onnxgrad.fused.Gemm (A, B, epilogue operands...): epilogue(op(A) op(B)). Attributes transA,
// transB, `epilogue` (ExprProgram::to_ints; operand 0 is the product). Leading axes of A collapse.
// onnxgrad.fused.GemmUpdate (W, A, B, alpha?): W + scale * alpha * op(A) op(B), in place if wanted.
// Attributes transA, transB, `scale`.

namespace onnxgrad::ops {
namespace {

opdef::KernelOffer decline_shapes(const opdef::KernelRequest& request) {
  return opdef::KernelOffer::decline(request.node.describe() + ": shapes do not fit");
}

opdef::KernelOffer offer_gemm(const opdef::KernelRequest& request) {
  const ir::Node& node = request.node;
  const auto gemm = product_shape(request, 0, 1, node.int_attribute("transA", 0) != 0,
                                  node.int_attribute("transB", 0) != 0);
  if (!gemm) return decline_shapes(request);
  ProductSpec spec{.gemm = *gemm};
  if (const auto ints = node.ints_attribute("epilogue"); !ints.empty()) {
    spec.epilogue = opdef::ExprProgram::from_ints(ints);
    for (std::size_t i = 2; i < request.inputs.size(); ++i) {
      spec.epilogue_inputs.push_back(static_cast<int>(i));
    }
  }
  return offer_product(request, std::move(spec));
}

opdef::KernelOffer offer_gemm_update(const opdef::KernelRequest& request) {
  const ir::Node& node = request.node;
  const auto gemm = product_shape(request, 1, 2, node.int_attribute("transA", 0) != 0,
                                  node.int_attribute("transB", 0) != 0);
  if (!gemm || request.inputs[0].dims != Dims{gemm->m, gemm->n}) return decline_shapes(request);
  ProductSpec spec{.gemm = *gemm, .a = 1, .b = 2, .start = 0};
  spec.gemm.start = device::GemmStart::kMatrix;
  spec.gemm.alpha = static_cast<double>(node.float_attribute("scale", 1));
  if (request.inputs.size() > 3 && request.inputs[3].is_present()) {
    if (request.inputs[3].dtype != gemm->dtype || request.inputs[3].dims.num_elements() != 1) {
      return decline_shapes(request);
    }
    spec.factor = 3;
  }
  return offer_product(request, std::move(spec));
}

}  // namespace

void register_fused_gemm_cpu(opdef::KernelRegistry& registry) {
  registry.add(ir::kFusedDomain, "Gemm", 1, offer_gemm);
  registry.add(ir::kFusedDomain, "GemmUpdate", 1, offer_gemm_update);
}

}  // namespace onnxgrad::ops
