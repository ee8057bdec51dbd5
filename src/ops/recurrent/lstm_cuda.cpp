#include "ir/builder.h"
#include "ops/recurrent/cell_cuda.h"
#include "ops/recurrent/cell_signatures.h"

namespace onnxgrad::ops::lstm_cuda {
namespace {

using recurrent::Cell;
using namespace recurrent::lstm;

KernelOffer offer(const KernelRequest& request) {
  return recurrent::offer_cell_cuda(request, {Cell::kLstm, kInputs, kOutputs});
}
KernelOffer offer_gates(const KernelRequest& request) {
  return recurrent::offer_cell_cuda(request, {Cell::kLstm, kInputs, kGatesOutputs});
}
KernelOffer offer_gradient(const KernelRequest& request) {
  return recurrent::offer_cell_gradient_cuda(request,
                                             {Cell::kLstm, kGradientInputs, kGradientOutputs});
}

}  // namespace

void register_lstm_cuda(opdef::KernelRegistry& registry) {
  registry.add("", "LSTM", 0, offer);
  registry.add(ir::kFusedDomain, "LSTM", 0, offer);
  registry.add(ir::kFunctionDomain, "LSTMGates", 0, offer_gates);
  registry.add(ir::kFunctionDomain, "LSTMGradient", 0, offer_gradient);
}

}  // namespace onnxgrad::ops::lstm_cuda
