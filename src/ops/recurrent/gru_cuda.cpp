#include "ir/builder.h"
#include "ops/recurrent/cell_cuda.h"
#include "ops/recurrent/cell_signatures.h"

namespace onnxgrad::ops::gru_cuda {
namespace {

using recurrent::Cell;
using namespace recurrent::gru;

KernelOffer offer(const KernelRequest& request) {
  return recurrent::offer_cell_cuda(request, {Cell::kGru, kInputs, kOutputs});
}
KernelOffer offer_gates(const KernelRequest& request) {
  return recurrent::offer_cell_cuda(request, {Cell::kGru, kInputs, kGatesOutputs});
}
KernelOffer offer_gradient(const KernelRequest& request) {
  return recurrent::offer_cell_gradient_cuda(request,
                                             {Cell::kGru, kGradientInputs, kGradientOutputs});
}

}  // namespace

void register_gru_cuda(opdef::KernelRegistry& registry) {
  registry.add("", "GRU", 0, offer);
  registry.add(ir::kFusedDomain, "GRU", 0, offer);
  registry.add(ir::kFunctionDomain, "GRUGates", 0, offer_gates);
  registry.add(ir::kFunctionDomain, "GRUGradient", 0, offer_gradient);
}

}  // namespace onnxgrad::ops::gru_cuda
