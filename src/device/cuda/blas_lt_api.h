#ifndef ONNXGRAD_DEVICE_CUDA_BLAS_LT_API_H_
#define ONNXGRAD_DEVICE_CUDA_BLAS_LT_API_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "device/cuda/api.h"

// cuBLASLt (libcublasLt.so.13 or .12), declared as the driver is in api.h.

namespace onnxgrad::device::cuda {

struct BlasLtAlgo {
  std::array<std::uint64_t, 8> data{};
};
struct BlasLtHeuristicResult {
  BlasLtAlgo algo;
  std::size_t workspace_bytes = 0;
  int status = 0;
  float waves = 0;
  std::array<int, 4> reserved{};
};

#define ONNXGRAD_CUDA_BLAS_LT(X)                                                                   \
  X(Create, cublasLtCreate, Handle*)                                                               \
  X(DescCreate, cublasLtMatmulDescCreate, Handle*, int, int)                                       \
  X(DescDestroy, cublasLtMatmulDescDestroy, Handle)                                                \
  X(DescSet, cublasLtMatmulDescSetAttribute, Handle, int, const void*, std::size_t)                \
  X(LayoutCreate, cublasLtMatrixLayoutCreate, Handle*, int, std::uint64_t, std::uint64_t,          \
    std::int64_t)                                                                                  \
  X(LayoutDestroy, cublasLtMatrixLayoutDestroy, Handle)                                            \
  X(LayoutSet, cublasLtMatrixLayoutSetAttribute, Handle, int, const void*, std::size_t)            \
  X(PreferenceCreate, cublasLtMatmulPreferenceCreate, Handle*)                                     \
  X(PreferenceDestroy, cublasLtMatmulPreferenceDestroy, Handle)                                    \
  X(PreferenceSet, cublasLtMatmulPreferenceSetAttribute, Handle, int, const void*, std::size_t)    \
  X(Heuristic, cublasLtMatmulAlgoGetHeuristic, Handle, Handle, Handle, Handle, Handle, Handle,     \
    Handle, int, BlasLtHeuristicResult*, int*)                                                     \
  X(Matmul, cublasLtMatmul, Handle, Handle, const void*, const void*, Handle, const void*, Handle, \
    const void*, const void*, Handle, void*, Handle, const BlasLtAlgo*, void*, std::size_t,        \
    Handle)

/// cublasComputeType_t, cudaDataType_t, cublasOperation_t and the attributes, by their names there.
enum BlasLtConstant : int {
  kReal32F = 0,
  kReal64F = 1,
  kReal16F = 2,
  kReal16BF = 14,
  kCompute32F = 68,
  kCompute64F = 70,
  kCompute32FTf32 = 77,
  kTransposed = 1,
  kDescTransA = 3,
  kDescTransB = 4,
  kDescEpilogue = 7,
  kDescBias = 8,
  kLayoutBatchCount = 5,
  kLayoutBatchStride = 6,
  kPreferenceWorkspace = 1,
  kEpilogueBias = 4,
  kEpilogueReluBias = 6,
};

#define ONNXGRAD_CUDA_MEMBER(member, symbol, ...) int (*member)(__VA_ARGS__) = nullptr;
struct BlasLt {
  ONNXGRAD_CUDA_BLAS_LT(ONNXGRAD_CUDA_MEMBER)
  std::size_t (*GetVersion)() = nullptr;
  const char* (*GetStatusName)(int) = nullptr;
};
#undef ONNXGRAD_CUDA_MEMBER

}  // namespace onnxgrad::device::cuda

#endif  // ONNXGRAD_DEVICE_CUDA_BLAS_LT_API_H_
