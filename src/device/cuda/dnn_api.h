#ifndef ONNXGRAD_DEVICE_CUDA_DNN_API_H_
#define ONNXGRAD_DEVICE_CUDA_DNN_API_H_

#include <cstddef>
#include <cstdint>

#include "device/cuda/api.h"

// cuDNN's backend API (libcudnn.so.9), declared as the driver is in api.h.

namespace onnxgrad::device::cuda {

#define ONNXGRAD_CUDA_DNN(X)                                                             \
  X(Create, cudnnCreate, Handle*)                                                        \
  X(SetStream, cudnnSetStream, Handle, Handle)                                           \
  X(CreateDescriptor, cudnnBackendCreateDescriptor, int, Handle*)                        \
  X(DestroyDescriptor, cudnnBackendDestroyDescriptor, Handle)                            \
  X(Finalize, cudnnBackendFinalize, Handle)                                              \
  X(Set, cudnnBackendSetAttribute, Handle, int, int, std::int64_t, const void*)          \
  X(Get, cudnnBackendGetAttribute, Handle, int, int, std::int64_t, std::int64_t*, void*) \
  X(Execute, cudnnBackendExecute, Handle, Handle, Handle)

#define ONNXGRAD_CUDA_MEMBER(member, symbol, ...) int (*member)(__VA_ARGS__) = nullptr;
struct Dnn {
  ONNXGRAD_CUDA_DNN(ONNXGRAD_CUDA_MEMBER)
  std::size_t (*GetVersion)() = nullptr;
  const char* (*GetErrorString)(int) = nullptr;
};
#undef ONNXGRAD_CUDA_MEMBER

/// cudnnBackendDescriptorType_t, cudnnBackendAttributeType_t, cudnnBackendAttributeName_t and the
/// values of attributes, by their names there.
namespace dnn_api {
enum Descriptor : int {
  kPointwise = 0,
  kConvolution = 1,
  kEngine = 2,
  kEngineConfig = 3,
  kHeuristic = 4,
  kPlan = 5,
  kForward = 10,
  kBackwardFilter = 11,
  kBackwardData = 12,
  kPointwiseOperation = 13,
  kGraph = 15,
  kVariantPack = 16,
  kTensor = 17,
  kMatmul = 18,
  kMatmulOperation = 19,
  kReduction = 21,
  kReductionOperation = 22,
  kResample = 24,
  kResampleForward = 25,
  kResampleBackward = 26,
  kReshapeOperation = 31,
  kDeviceProperties = 38,
};
enum Type : int {
  kTypeHandle = 0,
  kTypeDataType = 1,
  kTypeBoolean = 2,
  kTypeInt64 = 3,
  kTypeFloat = 4,
  kTypeDouble = 5,
  kTypePointer = 6,
  kTypeConvMode = 7,
  kTypeHeurMode = 8,
  kTypeNanPropagation = 10,
  kTypeNumericalNote = 11,
  kTypePointwiseMode = 14,
  kTypeDescriptor = 15,
  kTypeReduceOperator = 18,
  kTypeResampleMode = 21,
  kTypePaddingMode = 22,
  kTypeChar = 24,
};
enum Attribute : int {
  kPointwiseMode = 0,
  kPointwisePrecision = 1,
  kPointwiseNan = 2,
  kPointwiseLow = 3,
  kPointwiseHigh = 4,
  kPointwiseAxis = 9,
  kConvCompType = 100,
  kConvMode = 101,
  kConvDilations = 102,
  kConvStrides = 103,
  kConvPostPads = 104,
  kConvPrePads = 105,
  kConvSpatialDims = 106,
  kHeurMode = 200,
  kHeurGraph = 201,
  kHeurResults = 202,
  kHeurDevice = 204,
  kConfigEngine = 300,
  kPlanHandle = 400,
  kPlanConfig = 401,
  kPlanWorkspace = 402,
  kPlanJson = 405,
  kPlanDevice = 407,
  kForwardAlpha = 700,         ///< then beta, convolution, w, x, y
  kBackwardDataAlpha = 706,    ///< then beta, convolution, w, dx, dy
  kBackwardFilterAlpha = 712,  ///< then beta, convolution, dw, x, dy
  kPointwiseDescriptor = 750,  ///< then x, b, y
  kPointwiseCondition = 758,
  kGraphHandle = 800,
  kGraphOperations = 801,
  kTensorAlignment = 900,
  kTensorDataType = 901,
  kTensorDims = 902,
  kTensorStrides = 903,
  kTensorUid = 906,
  kTensorIsVirtual = 907,
  kTensorIsByValue = 908,
  kPackUids = 1000,
  kPackPointers = 1001,
  kPackWorkspace = 1003,
  kEngineNotes = 1303,
  kMatmulPrecision = 1500,
  kMatmulA = 1520,  ///< then b, c, descriptor
  kReductionOperator = 1600,
  kReductionPrecision = 1601,
  kReductionX = 1610,  ///< then y, descriptor
  kResampleMode = 1700,
  kResamplePrecision = 1701,
  kResampleSpatialDims = 1702,
  kResamplePostPads = 1703,
  kResamplePrePads = 1704,
  kResampleStrides = 1705,
  kResampleWindow = 1706,
  kResampleNan = 1707,
  kResamplePadding = 1708,
  kResampleForwardX = 1710,  ///< then y
  kResampleForwardDescriptor = 1716,
  kResampleBackwardX = 1720,  ///< dx, then dy
  kResampleBackwardDescriptor = 1725,
  kReshapeX = 2200,  ///< then y
  kDeviceJson = 2702,
};
/// cudnnStatus_t: a kernel was compiled, but the driver did not load it.
inline constexpr int kFailedInDriver = 5001;
enum Value : int {
  kDataFloat = 0,
  kDataDouble = 1,
  kDataHalf = 2,
  kDataInt32 = 4,
  kDataBfloat16 = 9,
  kDataBoolean = 11,
  kCrossCorrelation = 1,
  kModeFallback = 2,
  kModeA = 3,
  kNoteTensorCore = 0,
  kNoteDownConvert = 1,
  kNoteNondeterministic = 4,
  kPropagateNan = 1,
};
enum Pointwise : int {
  kAdd = 0,
  kMultiply = 1,
  kDivide = 6,
  kSubtract = 9,
  kExp = 13,
  kLog = 15,
  kIdentity = 21,
  kReluForward = 100,
  kGreaterEqual = 303,
  kIndexOf = 501,
  kSelect = 601,
};
enum Resample : int { kAverageWithPads = 2, kMaximumPool = 3, kAverage = 4 };
enum Padding : int { kZeros = 0, kMinusInfinity = 1 };
enum Reduction : int { kSum = 0, kMaximum = 3 };
}  // namespace dnn_api

}  // namespace onnxgrad::device::cuda

#endif  // ONNXGRAD_DEVICE_CUDA_DNN_API_H_
