#ifndef ONNXGRAD_OPS_RECURRENT_PLAIN_CELL_CPU_H_
#define ONNXGRAD_OPS_RECURRENT_PLAIN_CELL_CPU_H_

#include "ops/kernel_support.h"
#include "ops/recurrent/cell_cpu.h"

namespace onnxgrad::ops::recurrent {

/// Offers the forward and backward kernels of RNN and LSTM, whose gates are all x W^T + y' R^T + b.
KernelOffer offer_plain_cell(const KernelRequest& request, const CellSignature& signature);
KernelOffer offer_plain_cell_gradient(const KernelRequest& request, const CellSignature& signature);

}  // namespace onnxgrad::ops::recurrent

#endif  // ONNXGRAD_OPS_RECURRENT_PLAIN_CELL_CPU_H_
