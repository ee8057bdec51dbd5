#ifndef ONNXGRAD_OPS_RECURRENT_CELL_CUDA_H_
#define ONNXGRAD_OPS_RECURRENT_CELL_CUDA_H_

#include "ops/kernel_support.h"
#include "ops/recurrent/cell_cpu.h"

namespace onnxgrad::ops::recurrent {

/// Offers for RNN, GRU and LSTM on a card, and their gradients (cell_text_cuda.h).
KernelOffer offer_cell_cuda(const KernelRequest& request, const CellSignature& signature);
KernelOffer offer_cell_gradient_cuda(const KernelRequest& request, const CellSignature& signature);

}  // namespace onnxgrad::ops::recurrent

#endif  // ONNXGRAD_OPS_RECURRENT_CELL_CUDA_H_
