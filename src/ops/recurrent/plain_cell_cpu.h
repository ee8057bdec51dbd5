#ifndef ONNXGRAD_OPS_RECURRENT_PLAIN_CELL_CPU_H_
#define ONNXGRAD_OPS_RECURRENT_PLAIN_CELL_CPU_H_

#include "opdef/kernel.h"
#include "ops/recurrent/cell_cpu.h"

namespace onnxgrad::ops::recurrent {

/// Offers the forward and backward kernels of RNN and LSTM, whose gates are all x W^T + y' R^T + b.
opdef::KernelOffer offer_plain_cell(const opdef::KernelRequest& request,
                                    const CellSignature& signature);
opdef::KernelOffer offer_plain_cell_gradient(const opdef::KernelRequest& request,
                                             const CellSignature& signature);

}  // namespace onnxgrad::ops::recurrent

#endif  // ONNXGRAD_OPS_RECURRENT_PLAIN_CELL_CPU_H_
