#include "ops/kernel_support.h"
#include "ops/recurrent/cell_signatures.h"
#include "ops/recurrent/plain_cell_cpu.h"

// Kernels of LSTM, of the functions of its gradient and of onnxgrad.fused.LSTM, which is LSTM with
// the results of LSTMGates as additional outputs. If both have gate_values = 1, its gates, which
// onnxgrad.fused.LSTMGradient reads, are i, o, u and n instead of pre-activations.

namespace onnxgrad::ops::recurrent::lstm {

KernelOffer offer(const KernelRequest& request) {
  return offer_plain_cell(request, {Cell::kLstm, kInputs, kOutputs});
}
KernelOffer offer_gates(const KernelRequest& request) {
  return offer_plain_cell(request, {Cell::kLstm, kInputs, kGatesOutputs});
}
KernelOffer offer_gradient(const KernelRequest& request) {
  return offer_plain_cell_gradient(request, {Cell::kLstm, kGradientInputs, kGradientOutputs});
}

}  // namespace onnxgrad::ops::recurrent::lstm

namespace onnxgrad::ops::lstm_cpu {

void register_lstm_cpu(opdef::KernelRegistry& registry) {
  registry.add("", "LSTM", 0, recurrent::lstm::offer);
  registry.add(ir::kFusedDomain, "LSTM", 0, recurrent::lstm::offer);
  registry.add(ir::kFunctionDomain, "LSTMGates", 0, recurrent::lstm::offer_gates);
  registry.add(ir::kFunctionDomain, "LSTMGradient", 0, recurrent::lstm::offer_gradient);
  registry.add(ir::kFusedDomain, "LSTMGradient", 0, recurrent::lstm::offer_gradient);
}

}  // namespace onnxgrad::ops::lstm_cpu
