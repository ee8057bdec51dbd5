#ifndef ONNXGRAD_DEVICE_CPU_GEMM_DRIVER_H_
#define ONNXGRAD_DEVICE_CPU_GEMM_DRIVER_H_

#include <cstdint>
#include <memory>

#include "device/cpu/gemm_kernel.h"

// The loop nest of GEMMs whose operands exceed the L1 cache.
//
//   for each block of columns, of k                          C[m, n] = op(A)[m, k] op(B)[k, n]
//     pack B: threads share its panels ......................... L2 of each core that reads them
//     for each block of rows, part of the columns: a chunk for some thread
//       pack A, or leave it in place ............................ L2
//       kernel: B panels, tiles ................................. L1, registers
//
// A row block is cut by sizes alone, and sums run over k in order, so results do not depend on the
// number of threads. Each element of B is packed once, and each of A once per block of columns, by
// whichever thread; threads meet before and after that. If there is one block of rows only, each
// chunk packs the columns of B that it alone reads, and nobody waits. With a consumer, the loop
// over k is inside a chunk: B is packed for all of k, and a block of C is completed before the
// next.

namespace onnxgrad::device {

/// Plans a GEMM [m, n, k] on up to `threads` threads; sets all fields but the label.
PreparedGemm drive_gemm(std::int64_t m, std::int64_t n, std::int64_t k, int threads,
                        const GemmBlocking& blocking, std::unique_ptr<const GemmKernel> kernel);

}  // namespace onnxgrad::device

#endif  // ONNXGRAD_DEVICE_CPU_GEMM_DRIVER_H_
