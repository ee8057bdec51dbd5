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
  kConvolution = 1,
  kEngine = 2,
  kEngineConfig = 3,
  kHeuristic = 4,
  kPlan = 5,
  kForward = 10,
  kBackwardFilter = 11,
  kBackwardData = 12,
  kGraph = 15,
  kVariantPack = 16,
  kTensor = 17,
};
enum Type : int {
  kTypeHandle = 0,
  kTypeDataType = 1,
  kTypeInt64 = 3,
  kTypeFloat = 4,
  kTypePointer = 6,
  kTypeConvMode = 7,
  kTypeHeurMode = 8,
  kTypeNumericalNote = 11,
  kTypeDescriptor = 15,
};
enum Attribute : int {
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
  kConfigEngine = 300,
  kPlanHandle = 400,
  kPlanConfig = 401,
  kPlanWorkspace = 402,
  kForwardAlpha = 700,         ///< then beta, convolution, w, x, y
  kBackwardDataAlpha = 706,    ///< then beta, convolution, w, dx, dy
  kBackwardFilterAlpha = 712,  ///< then beta, convolution, dw, x, dy
  kGraphHandle = 800,
  kGraphOperations = 801,
  kTensorAlignment = 900,
  kTensorDataType = 901,
  kTensorDims = 902,
  kTensorStrides = 903,
  kTensorUid = 906,
  kPackUids = 1000,
  kPackPointers = 1001,
  kPackWorkspace = 1003,
  kEngineNotes = 1303,
};
enum Value : int {
  kDataFloat = 0,
  kDataDouble = 1,
  kDataHalf = 2,
  kDataBfloat16 = 9,
  kCrossCorrelation = 1,
  kModeFallback = 2,
  kModeA = 3,
  kNoteTensorCore = 0,
  kNoteDownConvert = 1,
  kNoteNondeterministic = 4,
};
}  // namespace dnn_api

}  // namespace onnxgrad::device::cuda

#endif  // ONNXGRAD_DEVICE_CUDA_DNN_API_H_
