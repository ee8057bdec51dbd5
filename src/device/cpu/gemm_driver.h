#ifndef ONNXGRAD_DEVICE_CPU_GEMM_DRIVER_H_
#define ONNXGRAD_DEVICE_CPU_GEMM_DRIVER_H_

#include <cstdint>
#include <memory>

#include "device/cpu/gemm_kernel.h"

// The loop nest of GEMMs whose operands exceed the L1 cache, C[m, n] = op(A)[m, k] op(B)[k, n]:
//
//   for each block of columns, of k
//     pack B .................................................... L2
//     for each block of rows, and part of the columns: a chunk
//       pack A, or leave it in place ............................ L2
//       kernel: B panels, tiles ................................. L1, registers
//
// Sizes and the number of threads decide who packs (drive_gemm):
//
//   apart     A chunk has columns of its own and all rows. It packs what it reads into its thread's
//             scratch, and nobody waits. For one thread; for one block of rows, or enough columns,
//             if A is read in place or small, since each thread packs all of it.
//   together  Threads pack a block of B into common scratch; they meet before and after. If several
//             chunks read the same rows, A is packed so too, else each chunk packs its rows.
//   A once    For kernels whose packing takes long (GemmBlocking::packs_a_once): k is the outermost
//             loop, and all rows of A are packed together with the first block of columns.
//
// A B that was packed in advance, or that the kernel packs, needs no meeting: chunks are then
// blocks of rows by parts of the columns. With a consumer, the loop over k is inside a chunk: B,
// and A if it is packed together, are packed for all of k, and a block of C is completed before the
// next.
//
// Elements of C are sums over k in order, and sums of columns are added for kGemmSumRows rows at a
// time, then in float64: no bit depends on the number of threads.

namespace onnxgrad::device {

/// Plans a GEMM [m, n, k] on up to `threads` threads; sets all fields but the label.
PreparedGemm drive_gemm(std::int64_t m, std::int64_t n, std::int64_t k, int threads,
                        const GemmBlocking& blocking, std::unique_ptr<const GemmKernel> kernel);

}  // namespace onnxgrad::device

#endif  // ONNXGRAD_DEVICE_CPU_GEMM_DRIVER_H_
