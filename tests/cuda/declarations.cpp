// Compares device/cuda/api.h with NVIDIA's headers: every line is a static_assert.
//
//   g++ -std=c++20 -fsyntax-only -I src -I include -isystem <CUDA's include>
//   tests/cuda/declarations.cpp

#include <cublasLt.h>
#include <cuda.h>
#include <nvrtc.h>

#include <type_traits>

#include "device/cuda/api.h"
#include "device/cuda/blas_lt_api.h"

namespace {

namespace own = onnxgrad::device::cuda;

// As many parameters, each passed in the same way.
template <class A, class B>
constexpr bool kPassedAlike =
    sizeof(A) == sizeof(B) && std::is_pointer_v<A> == std::is_pointer_v<B> &&
    std::is_floating_point_v<A> == std::is_floating_point_v<B>;
template <class Ours, class Theirs>
struct SameAbi : std::false_type {};
template <class R, class... A, class Q, class... B>
  requires(sizeof...(A) == sizeof...(B))
struct SameAbi<R (*)(A...), Q (*)(B...)>
    : std::bool_constant<(kPassedAlike<A, B> && ...) && kPassedAlike<R, Q>> {};

#define CHECK_DRIVER(member, symbol, ...) \
  static_assert(SameAbi<decltype(own::Driver::member), decltype(&::symbol)>::value, #symbol);
#define CHECK_NVRTC(member, symbol, ...) \
  static_assert(SameAbi<decltype(own::Nvrtc::member), decltype(&::symbol)>::value, #symbol);
ONNXGRAD_CUDA_DRIVER(CHECK_DRIVER)
ONNXGRAD_CUDA_NVRTC(CHECK_NVRTC)
static_assert(SameAbi<decltype(own::Nvrtc::GetErrorString), decltype(&nvrtcGetErrorString)>::value);

#define CHECK_BLAS_LT(member, symbol, ...) \
  static_assert(SameAbi<decltype(own::BlasLt::member), decltype(&::symbol)>::value, #symbol);
ONNXGRAD_CUDA_BLAS_LT(CHECK_BLAS_LT)
static_assert(SameAbi<decltype(own::BlasLt::GetVersion), decltype(&cublasLtGetVersion)>::value);
static_assert(
    SameAbi<decltype(own::BlasLt::GetStatusName), decltype(&cublasLtGetStatusName)>::value);
static_assert(sizeof(own::BlasLtAlgo) == sizeof(cublasLtMatmulAlgo_t));
static_assert(sizeof(own::BlasLtHeuristicResult) == sizeof(cublasLtMatmulHeuristicResult_t));
static_assert(offsetof(own::BlasLtHeuristicResult, workspace_bytes) ==
              offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize));
static_assert(offsetof(own::BlasLtHeuristicResult, status) ==
              offsetof(cublasLtMatmulHeuristicResult_t, state));

static_assert(sizeof(own::DevicePointer) == sizeof(CUdeviceptr));
#define CHECK_VALUE(ours, theirs) \
  static_assert(static_cast<int>(own::ours) == static_cast<int>(theirs), #theirs);
CHECK_VALUE(kSuccess, CUDA_SUCCESS)
CHECK_VALUE(kInvalidValue, CUDA_ERROR_INVALID_VALUE)
CHECK_VALUE(kOutOfMemory, CUDA_ERROR_OUT_OF_MEMORY)
CHECK_VALUE(kNoDevice, CUDA_ERROR_NO_DEVICE)
CHECK_VALUE(kNotReady, CUDA_ERROR_NOT_READY)
CHECK_VALUE(kIllegalAddress, CUDA_ERROR_ILLEGAL_ADDRESS)
CHECK_VALUE(kMultiprocessorCount, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
CHECK_VALUE(kL2CacheSize, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)
CHECK_VALUE(kComputeCapabilityMajor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)
CHECK_VALUE(kComputeCapabilityMinor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
CHECK_VALUE(kMaxSharedMemoryPerBlockOptin, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)
CHECK_VALUE(kMemoryPoolsSupported, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED)
CHECK_VALUE(kMaxDynamicSharedSizeBytes, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)
CHECK_VALUE(kReleaseThreshold, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
CHECK_VALUE(kNonBlocking, CU_STREAM_NON_BLOCKING)
CHECK_VALUE(kDisableTiming, CU_EVENT_DISABLE_TIMING)
CHECK_VALUE(kCaptureThreadLocal, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)

CHECK_VALUE(kReal32F, CUDA_R_32F)
CHECK_VALUE(kReal64F, CUDA_R_64F)
CHECK_VALUE(kReal16F, CUDA_R_16F)
CHECK_VALUE(kReal16BF, CUDA_R_16BF)
CHECK_VALUE(kCompute32F, CUBLAS_COMPUTE_32F)
CHECK_VALUE(kCompute32FPedantic, CUBLAS_COMPUTE_32F_PEDANTIC)
CHECK_VALUE(kCompute64F, CUBLAS_COMPUTE_64F)
CHECK_VALUE(kCompute32FTf32, CUBLAS_COMPUTE_32F_FAST_TF32)
CHECK_VALUE(kTransposed, CUBLAS_OP_T)
CHECK_VALUE(kDescTransA, CUBLASLT_MATMUL_DESC_TRANSA)
CHECK_VALUE(kDescTransB, CUBLASLT_MATMUL_DESC_TRANSB)
CHECK_VALUE(kDescEpilogue, CUBLASLT_MATMUL_DESC_EPILOGUE)
CHECK_VALUE(kDescBias, CUBLASLT_MATMUL_DESC_BIAS_POINTER)
CHECK_VALUE(kLayoutBatchCount, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT)
CHECK_VALUE(kLayoutBatchStride, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET)
CHECK_VALUE(kPreferenceWorkspace, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)
CHECK_VALUE(kEpilogueBias, CUBLASLT_EPILOGUE_BIAS)
CHECK_VALUE(kEpilogueReluBias, CUBLASLT_EPILOGUE_RELU_BIAS)

}  // namespace
