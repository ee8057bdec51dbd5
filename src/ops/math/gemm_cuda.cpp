#include <cstdint>
#include <utility>

#include "ops/math/product_cuda.h"

namespace onnxgrad::ops::gemm_cuda {
namespace {

using opdef::ExprOp;

// alpha op(A) op(B) + beta C.
opdef::KernelOffer offer_gemm(const opdef::KernelRequest& request) {
  const ir::Node& node = request.node;
  auto task = product_task(request, 0, 1, node.int_attribute("transA") != 0,
                           node.int_attribute("transB") != 0);
  if (!task) return opdef::KernelOffer::decline("shapes do not match");
  const auto alpha = static_cast<double>(node.float_attribute("alpha"));
  const auto beta = static_cast<double>(node.float_attribute("beta"));
  const bool has_addend = request.has_input(2) && beta != 0;
  if (alpha == 1 && !has_addend) return offer_product(request, *task);
  opdef::ExprProgram epilogue{.num_inputs = has_addend ? 2 : 1};
  std::int32_t result = epilogue.input(0);
  if (alpha != 1) result = epilogue.emit(ExprOp::kMul, result, epilogue.constant(alpha));
  if (has_addend) {
    std::int32_t addend = epilogue.input(1);
    if (beta != 1) addend = epilogue.emit(ExprOp::kMul, addend, epilogue.constant(beta));
    result = epilogue.emit(ExprOp::kAdd, result, addend);
    task->epilogue_inputs = {2};
  }
  epilogue.results = {result};
  task->epilogue = std::move(epilogue);
  return offer_product(request, *task);
}

}  // namespace

void register_gemm_cuda(opdef::KernelRegistry& registry) {
  registry.add("", "Gemm", 0, offer_gemm);
}

}  // namespace onnxgrad::ops::gemm_cuda
