#include "ir/builder.h"
#include "ops/recurrent/cell_cuda.h"
#include "ops/recurrent/cell_signatures.h"

namespace onnxgrad::ops::rnn_cuda {
namespace {

using recurrent::Cell;
using namespace recurrent::rnn;

KernelOffer offer(const KernelRequest& request) {
  return recurrent::offer_cell_cuda(request, {Cell::kRnn, kInputs, kOutputs});
}
KernelOffer offer_gates(const KernelRequest& request) {
  return recurrent::offer_cell_cuda(request, {Cell::kRnn, kInputs, kGatesOutputs});
}
KernelOffer offer_gradient(const KernelRequest& request) {
  return recurrent::offer_cell_gradient_cuda(request,
                                             {Cell::kRnn, kGradientInputs, kGradientOutputs});
}

}  // namespace

void register_rnn_cuda(opdef::KernelRegistry& registry) {
  registry.add("", "RNN", 0, offer);
  registry.add(ir::kFusedDomain, "RNN", 0, offer);
  registry.add(ir::kFunctionDomain, "RNNGates", 0, offer_gates);
  registry.add(ir::kFunctionDomain, "RNNGradient", 0, offer_gradient);
}

}  // namespace onnxgrad::ops::rnn_cuda
