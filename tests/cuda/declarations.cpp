// Compares device/cuda/api.h with NVIDIA's headers: every line is a static_assert.
//
//   g++ -std=c++20 -fsyntax-only -I src -I include -isystem <CUDA's include>
//   tests/cuda/declarations.cpp

#include <cublasLt.h>
#include <cuda.h>
#include <cudnn.h>
#include <nccl.h>
#include <nvrtc.h>

#include <type_traits>

#include "device/cuda/api.h"
#include "device/cuda/blas_lt_api.h"
#include "device/cuda/dnn_api.h"
#include "device/cuda/nccl_api.h"

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

#define CHECK_DNN(member, symbol, ...) \
  static_assert(SameAbi<decltype(own::Dnn::member), decltype(&::symbol)>::value, #symbol);
ONNXGRAD_CUDA_DNN(CHECK_DNN)
static_assert(SameAbi<decltype(own::Dnn::GetVersion), decltype(&cudnnGetVersion)>::value);
static_assert(SameAbi<decltype(own::Dnn::GetErrorString), decltype(&cudnnGetErrorString)>::value);

#define CHECK_NCCL(member, symbol, ...) \
  static_assert(SameAbi<decltype(own::Nccl::member), decltype(&::symbol)>::value, #symbol);
ONNXGRAD_CUDA_NCCL(CHECK_NCCL)
static_assert(SameAbi<decltype(own::Nccl::GetErrorString), decltype(&ncclGetErrorString)>::value);
static_assert(SameAbi<decltype(own::Nccl::GetLastError), decltype(&ncclGetLastError)>::value);
static_assert(sizeof(own::NcclUniqueId) == sizeof(ncclUniqueId));
static_assert(offsetof(own::NcclConfig, magic) == offsetof(ncclConfig_t, magic));
static_assert(offsetof(own::NcclConfig, version) == offsetof(ncclConfig_t, version));
static_assert(offsetof(own::NcclConfig, blocking) == offsetof(ncclConfig_t, blocking));
static_assert(offsetof(own::NcclConfig, net_name) == offsetof(ncclConfig_t, netName));
static_assert(offsetof(own::NcclConfig, split_share) == offsetof(ncclConfig_t, splitShare));
static_assert(own::NcclConfig::kUnset == NCCL_CONFIG_UNDEF_INT);

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

CHECK_VALUE(kNcclInProgress, ncclInProgress)
CHECK_VALUE(kNcclInt8, ncclInt8)
CHECK_VALUE(kNcclFloat32, ncclFloat32)
CHECK_VALUE(kNcclFloat64, ncclFloat64)
CHECK_VALUE(kNcclSum, ncclSum)
CHECK_VALUE(kReal32F, CUDA_R_32F)
CHECK_VALUE(kReal64F, CUDA_R_64F)
CHECK_VALUE(kReal16F, CUDA_R_16F)
CHECK_VALUE(kReal16BF, CUDA_R_16BF)
CHECK_VALUE(kCompute32F, CUBLAS_COMPUTE_32F)
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
CHECK_VALUE(dnn_api::kPointwise, CUDNN_BACKEND_POINTWISE_DESCRIPTOR)
CHECK_VALUE(dnn_api::kPointwiseOperation, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)
CHECK_VALUE(dnn_api::kMatmul, CUDNN_BACKEND_MATMUL_DESCRIPTOR)
CHECK_VALUE(dnn_api::kMatmulOperation, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR)
CHECK_VALUE(dnn_api::kReduction, CUDNN_BACKEND_REDUCTION_DESCRIPTOR)
CHECK_VALUE(dnn_api::kReductionOperation, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR)
CHECK_VALUE(dnn_api::kReshapeOperation, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR)
CHECK_VALUE(dnn_api::kResample, CUDNN_BACKEND_RESAMPLE_DESCRIPTOR)
CHECK_VALUE(dnn_api::kResampleForward, CUDNN_BACKEND_OPERATION_RESAMPLE_FWD_DESCRIPTOR)
CHECK_VALUE(dnn_api::kResampleBackward, CUDNN_BACKEND_OPERATION_RESAMPLE_BWD_DESCRIPTOR)
CHECK_VALUE(dnn_api::kTypeResampleMode, CUDNN_TYPE_RESAMPLE_MODE)
CHECK_VALUE(dnn_api::kTypePaddingMode, CUDNN_TYPE_PADDING_MODE)
CHECK_VALUE(dnn_api::kResampleMode, CUDNN_ATTR_RESAMPLE_MODE)
CHECK_VALUE(dnn_api::kResamplePrecision, CUDNN_ATTR_RESAMPLE_COMP_TYPE)
CHECK_VALUE(dnn_api::kResampleSpatialDims, CUDNN_ATTR_RESAMPLE_SPATIAL_DIMS)
CHECK_VALUE(dnn_api::kResamplePostPads, CUDNN_ATTR_RESAMPLE_POST_PADDINGS)
CHECK_VALUE(dnn_api::kResamplePrePads, CUDNN_ATTR_RESAMPLE_PRE_PADDINGS)
CHECK_VALUE(dnn_api::kResampleStrides, CUDNN_ATTR_RESAMPLE_STRIDES)
CHECK_VALUE(dnn_api::kResampleWindow, CUDNN_ATTR_RESAMPLE_WINDOW_DIMS)
CHECK_VALUE(dnn_api::kResampleNan, CUDNN_ATTR_RESAMPLE_NAN_PROPAGATION)
CHECK_VALUE(dnn_api::kResamplePadding, CUDNN_ATTR_RESAMPLE_PADDING_MODE)
CHECK_VALUE(dnn_api::kResampleForwardX, CUDNN_ATTR_OPERATION_RESAMPLE_FWD_XDESC)
CHECK_VALUE(dnn_api::kResampleForwardX + 1, CUDNN_ATTR_OPERATION_RESAMPLE_FWD_YDESC)
CHECK_VALUE(dnn_api::kResampleForwardDescriptor, CUDNN_ATTR_OPERATION_RESAMPLE_FWD_DESC)
CHECK_VALUE(dnn_api::kResampleBackwardX, CUDNN_ATTR_OPERATION_RESAMPLE_BWD_DXDESC)
CHECK_VALUE(dnn_api::kResampleBackwardX + 1, CUDNN_ATTR_OPERATION_RESAMPLE_BWD_DYDESC)
CHECK_VALUE(dnn_api::kResampleBackwardDescriptor, CUDNN_ATTR_OPERATION_RESAMPLE_BWD_DESC)
CHECK_VALUE(dnn_api::kAverageWithPads, CUDNN_RESAMPLE_AVGPOOL_INCLUDE_PADDING)
CHECK_VALUE(dnn_api::kMaximumPool, CUDNN_RESAMPLE_MAXPOOL)
CHECK_VALUE(dnn_api::kAverage, CUDNN_RESAMPLE_AVGPOOL_EXCLUDE_PADDING)
CHECK_VALUE(dnn_api::kZeros, CUDNN_ZERO_PAD)
CHECK_VALUE(dnn_api::kMinusInfinity, CUDNN_NEG_INF_PAD)
CHECK_VALUE(dnn_api::kDeviceProperties, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR)
CHECK_VALUE(dnn_api::kFailedInDriver, CUDNN_STATUS_EXECUTION_FAILED_CUDA_DRIVER)
CHECK_VALUE(dnn_api::kTypeBoolean, CUDNN_TYPE_BOOLEAN)
CHECK_VALUE(dnn_api::kTypeDouble, CUDNN_TYPE_DOUBLE)
CHECK_VALUE(dnn_api::kTypeNanPropagation, CUDNN_TYPE_NAN_PROPOGATION)
CHECK_VALUE(dnn_api::kTypePointwiseMode, CUDNN_TYPE_POINTWISE_MODE)
CHECK_VALUE(dnn_api::kTypeReduceOperator, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE)
CHECK_VALUE(dnn_api::kTypeChar, CUDNN_TYPE_CHAR)
CHECK_VALUE(dnn_api::kPointwiseMode, CUDNN_ATTR_POINTWISE_MODE)
CHECK_VALUE(dnn_api::kPointwisePrecision, CUDNN_ATTR_POINTWISE_MATH_PREC)
CHECK_VALUE(dnn_api::kPointwiseNan, CUDNN_ATTR_POINTWISE_NAN_PROPAGATION)
CHECK_VALUE(dnn_api::kPointwiseLow, CUDNN_ATTR_POINTWISE_RELU_LOWER_CLIP)
CHECK_VALUE(dnn_api::kPointwiseHigh, CUDNN_ATTR_POINTWISE_RELU_UPPER_CLIP)
CHECK_VALUE(dnn_api::kPointwiseAxis, CUDNN_ATTR_POINTWISE_AXIS)
CHECK_VALUE(dnn_api::kHeurDevice, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP)
CHECK_VALUE(dnn_api::kPlanDevice, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP)
CHECK_VALUE(dnn_api::kPointwiseDescriptor, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR)
CHECK_VALUE(dnn_api::kPointwiseDescriptor + 1, CUDNN_ATTR_OPERATION_POINTWISE_XDESC)
CHECK_VALUE(dnn_api::kPointwiseDescriptor + 2, CUDNN_ATTR_OPERATION_POINTWISE_BDESC)
CHECK_VALUE(dnn_api::kPointwiseDescriptor + 3, CUDNN_ATTR_OPERATION_POINTWISE_YDESC)
CHECK_VALUE(dnn_api::kPointwiseCondition, CUDNN_ATTR_OPERATION_POINTWISE_TDESC)
CHECK_VALUE(dnn_api::kTensorIsVirtual, CUDNN_ATTR_TENSOR_IS_VIRTUAL)
CHECK_VALUE(dnn_api::kTensorIsByValue, CUDNN_ATTR_TENSOR_IS_BY_VALUE)
CHECK_VALUE(dnn_api::kMatmulPrecision, CUDNN_ATTR_MATMUL_COMP_TYPE)
CHECK_VALUE(dnn_api::kMatmulA, CUDNN_ATTR_OPERATION_MATMUL_ADESC)
CHECK_VALUE(dnn_api::kMatmulA + 1, CUDNN_ATTR_OPERATION_MATMUL_BDESC)
CHECK_VALUE(dnn_api::kMatmulA + 2, CUDNN_ATTR_OPERATION_MATMUL_CDESC)
CHECK_VALUE(dnn_api::kMatmulA + 3, CUDNN_ATTR_OPERATION_MATMUL_DESC)
CHECK_VALUE(dnn_api::kReductionOperator, CUDNN_ATTR_REDUCTION_OPERATOR)
CHECK_VALUE(dnn_api::kReductionPrecision, CUDNN_ATTR_REDUCTION_COMP_TYPE)
CHECK_VALUE(dnn_api::kReductionX, CUDNN_ATTR_OPERATION_REDUCTION_XDESC)
CHECK_VALUE(dnn_api::kReductionX + 1, CUDNN_ATTR_OPERATION_REDUCTION_YDESC)
CHECK_VALUE(dnn_api::kReductionX + 2, CUDNN_ATTR_OPERATION_REDUCTION_DESC)
CHECK_VALUE(dnn_api::kReshapeX, CUDNN_ATTR_OPERATION_RESHAPE_XDESC)
CHECK_VALUE(dnn_api::kReshapeX + 1, CUDNN_ATTR_OPERATION_RESHAPE_YDESC)
CHECK_VALUE(dnn_api::kDeviceJson, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION)
CHECK_VALUE(dnn_api::kDataInt32, CUDNN_DATA_INT32)
CHECK_VALUE(dnn_api::kDataBoolean, CUDNN_DATA_BOOLEAN)
CHECK_VALUE(dnn_api::kPropagateNan, CUDNN_PROPAGATE_NAN)
CHECK_VALUE(dnn_api::kAdd, CUDNN_POINTWISE_ADD)
CHECK_VALUE(dnn_api::kMultiply, CUDNN_POINTWISE_MUL)
CHECK_VALUE(dnn_api::kDivide, CUDNN_POINTWISE_DIV)
CHECK_VALUE(dnn_api::kSubtract, CUDNN_POINTWISE_SUB)
CHECK_VALUE(dnn_api::kExp, CUDNN_POINTWISE_EXP)
CHECK_VALUE(dnn_api::kLog, CUDNN_POINTWISE_LOG)
CHECK_VALUE(dnn_api::kIdentity, CUDNN_POINTWISE_IDENTITY)
CHECK_VALUE(dnn_api::kReluForward, CUDNN_POINTWISE_RELU_FWD)
CHECK_VALUE(dnn_api::kGreaterEqual, CUDNN_POINTWISE_CMP_GE)
CHECK_VALUE(dnn_api::kIndexOf, CUDNN_POINTWISE_GEN_INDEX)
CHECK_VALUE(dnn_api::kSelect, CUDNN_POINTWISE_BINARY_SELECT)
CHECK_VALUE(dnn_api::kSum, CUDNN_REDUCE_TENSOR_ADD)
CHECK_VALUE(dnn_api::kMaximum, CUDNN_REDUCE_TENSOR_MAX)
CHECK_VALUE(dnn_api::kConvolution, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR)
CHECK_VALUE(dnn_api::kEngine, CUDNN_BACKEND_ENGINE_DESCRIPTOR)
CHECK_VALUE(dnn_api::kEngineConfig, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR)
CHECK_VALUE(dnn_api::kHeuristic, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR)
CHECK_VALUE(dnn_api::kPlan, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)
CHECK_VALUE(dnn_api::kForward, CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR)
CHECK_VALUE(dnn_api::kBackwardFilter,
            CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR)
CHECK_VALUE(dnn_api::kBackwardData, CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR)
CHECK_VALUE(dnn_api::kGraph, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR)
CHECK_VALUE(dnn_api::kVariantPack, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)
CHECK_VALUE(dnn_api::kTensor, CUDNN_BACKEND_TENSOR_DESCRIPTOR)
CHECK_VALUE(dnn_api::kTypeHandle, CUDNN_TYPE_HANDLE)
CHECK_VALUE(dnn_api::kTypeDataType, CUDNN_TYPE_DATA_TYPE)
CHECK_VALUE(dnn_api::kTypeInt64, CUDNN_TYPE_INT64)
CHECK_VALUE(dnn_api::kTypeFloat, CUDNN_TYPE_FLOAT)
CHECK_VALUE(dnn_api::kTypePointer, CUDNN_TYPE_VOID_PTR)
CHECK_VALUE(dnn_api::kTypeConvMode, CUDNN_TYPE_CONVOLUTION_MODE)
CHECK_VALUE(dnn_api::kTypeHeurMode, CUDNN_TYPE_HEUR_MODE)
CHECK_VALUE(dnn_api::kTypeNumericalNote, CUDNN_TYPE_NUMERICAL_NOTE)
CHECK_VALUE(dnn_api::kTypeDescriptor, CUDNN_TYPE_BACKEND_DESCRIPTOR)
CHECK_VALUE(dnn_api::kConvCompType, CUDNN_ATTR_CONVOLUTION_COMP_TYPE)
CHECK_VALUE(dnn_api::kConvMode, CUDNN_ATTR_CONVOLUTION_CONV_MODE)
CHECK_VALUE(dnn_api::kConvDilations, CUDNN_ATTR_CONVOLUTION_DILATIONS)
CHECK_VALUE(dnn_api::kConvStrides, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES)
CHECK_VALUE(dnn_api::kConvPostPads, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS)
CHECK_VALUE(dnn_api::kConvPrePads, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS)
CHECK_VALUE(dnn_api::kConvSpatialDims, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS)
CHECK_VALUE(dnn_api::kHeurMode, CUDNN_ATTR_ENGINEHEUR_MODE)
CHECK_VALUE(dnn_api::kHeurGraph, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH)
CHECK_VALUE(dnn_api::kHeurResults, CUDNN_ATTR_ENGINEHEUR_RESULTS)
CHECK_VALUE(dnn_api::kConfigEngine, CUDNN_ATTR_ENGINECFG_ENGINE)
CHECK_VALUE(dnn_api::kPlanHandle, CUDNN_ATTR_EXECUTION_PLAN_HANDLE)
CHECK_VALUE(dnn_api::kPlanConfig, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG)
CHECK_VALUE(dnn_api::kPlanWorkspace, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE)
CHECK_VALUE(dnn_api::kPlanJson, CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION)
CHECK_VALUE(dnn_api::kForwardAlpha, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA)
CHECK_VALUE(dnn_api::kForwardAlpha + 3, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W)
CHECK_VALUE(dnn_api::kForwardAlpha + 5, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y)
CHECK_VALUE(dnn_api::kBackwardDataAlpha, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA)
CHECK_VALUE(dnn_api::kBackwardDataAlpha + 3, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W)
CHECK_VALUE(dnn_api::kBackwardDataAlpha + 4, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX)
CHECK_VALUE(dnn_api::kBackwardFilterAlpha, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA)
CHECK_VALUE(dnn_api::kBackwardFilterAlpha + 3, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW)
CHECK_VALUE(dnn_api::kBackwardFilterAlpha + 4, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X)
CHECK_VALUE(dnn_api::kGraphHandle, CUDNN_ATTR_OPERATIONGRAPH_HANDLE)
CHECK_VALUE(dnn_api::kGraphOperations, CUDNN_ATTR_OPERATIONGRAPH_OPS)
CHECK_VALUE(dnn_api::kTensorAlignment, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT)
CHECK_VALUE(dnn_api::kTensorDataType, CUDNN_ATTR_TENSOR_DATA_TYPE)
CHECK_VALUE(dnn_api::kTensorDims, CUDNN_ATTR_TENSOR_DIMENSIONS)
CHECK_VALUE(dnn_api::kTensorStrides, CUDNN_ATTR_TENSOR_STRIDES)
CHECK_VALUE(dnn_api::kTensorUid, CUDNN_ATTR_TENSOR_UNIQUE_ID)
CHECK_VALUE(dnn_api::kPackUids, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS)
CHECK_VALUE(dnn_api::kPackPointers, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS)
CHECK_VALUE(dnn_api::kPackWorkspace, CUDNN_ATTR_VARIANT_PACK_WORKSPACE)
CHECK_VALUE(dnn_api::kEngineNotes, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE)
CHECK_VALUE(dnn_api::kDataFloat, CUDNN_DATA_FLOAT)
CHECK_VALUE(dnn_api::kDataDouble, CUDNN_DATA_DOUBLE)
CHECK_VALUE(dnn_api::kDataHalf, CUDNN_DATA_HALF)
CHECK_VALUE(dnn_api::kDataBfloat16, CUDNN_DATA_BFLOAT16)
CHECK_VALUE(dnn_api::kCrossCorrelation, CUDNN_CROSS_CORRELATION)
CHECK_VALUE(dnn_api::kModeFallback, CUDNN_HEUR_MODE_FALLBACK)
CHECK_VALUE(dnn_api::kModeA, CUDNN_HEUR_MODE_A)
CHECK_VALUE(dnn_api::kNoteTensorCore, CUDNN_NUMERICAL_NOTE_TENSOR_CORE)
CHECK_VALUE(dnn_api::kNoteDownConvert, CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS)
CHECK_VALUE(dnn_api::kNoteNondeterministic, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC)

}  // namespace
