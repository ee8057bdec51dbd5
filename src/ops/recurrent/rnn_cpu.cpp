#include "ops/kernel_support.h"
#include "ops/recurrent/cell_signatures.h"
#include "ops/recurrent/plain_cell_cpu.h"

// Kernels of RNN, of the functions of its gradient and of onnxgrad.fused.RNN, which is RNN with the
// result of RNNGates as an additional output.

namespace onnxgrad::ops::recurrent::rnn {

KernelOffer offer(const KernelRequest& request) {
  return offer_plain_cell(request, {Cell::kRnn, kInputs, kOutputs});
}
KernelOffer offer_gates(const KernelRequest& request) {
  return offer_plain_cell(request, {Cell::kRnn, kInputs, kGatesOutputs});
}
KernelOffer offer_gradient(const KernelRequest& request) {
  return offer_plain_cell_gradient(request, {Cell::kRnn, kGradientInputs, kGradientOutputs});
}

}  // namespace onnxgrad::ops::recurrent::rnn

namespace onnxgrad::ops::rnn_cpu {

void register_rnn_cpu(opdef::KernelRegistry& registry) {
  registry.add("", "RNN", 0, recurrent::rnn::offer);
  registry.add(ir::kFusedDomain, "RNN", 0, recurrent::rnn::offer);
  registry.add(ir::kFunctionDomain, "RNNGates", 0, recurrent::rnn::offer_gates);
  registry.add(ir::kFunctionDomain, "RNNGradient", 0, recurrent::rnn::offer_gradient);
}

}  // namespace onnxgrad::ops::rnn_cpu
