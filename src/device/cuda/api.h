#ifndef ONNXGRAD_DEVICE_CUDA_API_H_
#define ONNXGRAD_DEVICE_CUDA_API_H_

#include <cstddef>
#include <cstdint>

// The functions of NVIDIA's libraries that are called, and the constants and structs that they
// take: declared here, and loaded by dlopen, so that neither headers nor libraries of theirs are
// needed to build. Each row of a list is X(member, symbol, parameter types...). Symbols of the
// driver carry their version (cuMemAlloc_v2), to which a header maps the plain name by a macro.
// tests/cuda/declarations.cpp compares rows, constants and structs with NVIDIA's headers.

namespace onnxgrad::device::cuda {

using DevicePointer = unsigned long long;
using Handle = void*;  ///< a context, stream, event, module, function, graph, node, memory pool

// Driver (libcuda.so.1), from CUDA 12.4 on.

#define ONNXGRAD_CUDA_DRIVER(X)                                                                    \
  X(Init, cuInit, unsigned)                                                                        \
  X(DriverGetVersion, cuDriverGetVersion, int*)                                                    \
  X(GetErrorName, cuGetErrorName, int, const char**)                                               \
  X(GetErrorString, cuGetErrorString, int, const char**)                                           \
  X(DeviceGetCount, cuDeviceGetCount, int*)                                                        \
  X(DeviceGet, cuDeviceGet, int*, int)                                                             \
  X(DeviceGetName, cuDeviceGetName, char*, int, int)                                               \
  X(DeviceGetAttribute, cuDeviceGetAttribute, int*, int, int)                                      \
  X(DeviceTotalMem, cuDeviceTotalMem_v2, std::size_t*, int)                                        \
  X(PrimaryCtxRetain, cuDevicePrimaryCtxRetain, Handle*, int)                                      \
  X(CtxSetCurrent, cuCtxSetCurrent, Handle)                                                        \
  X(StreamCreate, cuStreamCreate, Handle*, unsigned)                                               \
  X(StreamDestroy, cuStreamDestroy_v2, Handle)                                                     \
  X(StreamSynchronize, cuStreamSynchronize, Handle)                                                \
  X(StreamWaitEvent, cuStreamWaitEvent, Handle, Handle, unsigned)                                  \
  X(EventCreate, cuEventCreate, Handle*, unsigned)                                                 \
  X(EventRecord, cuEventRecord, Handle, Handle)                                                    \
  X(EventSynchronize, cuEventSynchronize, Handle)                                                  \
  X(EventQuery, cuEventQuery, Handle)                                                              \
  X(EventElapsedTime, cuEventElapsedTime, float*, Handle, Handle)                                  \
  X(EventDestroy, cuEventDestroy_v2, Handle)                                                       \
  X(MemAllocAsync, cuMemAllocAsync, DevicePointer*, std::size_t, Handle)                           \
  X(MemFreeAsync, cuMemFreeAsync, DevicePointer, Handle)                                           \
  X(MemGetInfo, cuMemGetInfo_v2, std::size_t*, std::size_t*)                                       \
  X(DeviceGetDefaultMemPool, cuDeviceGetDefaultMemPool, Handle*, int)                              \
  X(MemPoolSetAttribute, cuMemPoolSetAttribute, Handle, int, void*)                                \
  X(MemPoolTrimTo, cuMemPoolTrimTo, Handle, std::size_t)                                           \
  X(MemHostAlloc, cuMemHostAlloc, void**, std::size_t, unsigned)                                   \
  X(MemFreeHost, cuMemFreeHost, void*)                                                             \
  X(MemcpyHtoDAsync, cuMemcpyHtoDAsync_v2, DevicePointer, const void*, std::size_t, Handle)        \
  X(MemcpyDtoHAsync, cuMemcpyDtoHAsync_v2, void*, DevicePointer, std::size_t, Handle)              \
  X(MemcpyDtoDAsync, cuMemcpyDtoDAsync_v2, DevicePointer, DevicePointer, std::size_t, Handle)      \
  X(MemsetD8Async, cuMemsetD8Async, DevicePointer, unsigned char, std::size_t, Handle)             \
  X(ModuleLoadData, cuModuleLoadData, Handle*, const void*)                                        \
  X(ModuleUnload, cuModuleUnload, Handle)                                                          \
  X(ModuleGetFunction, cuModuleGetFunction, Handle*, Handle, const char*)                          \
  X(FuncSetAttribute, cuFuncSetAttribute, Handle, int, int)                                        \
  X(FuncGetAttribute, cuFuncGetAttribute, int*, int, Handle)                                       \
  X(LaunchKernel, cuLaunchKernel, Handle, unsigned, unsigned, unsigned, unsigned, unsigned,        \
    unsigned, unsigned, Handle, void**, void**)                                                    \
  X(StreamBeginCapture, cuStreamBeginCapture_v2, Handle, int)                                      \
  X(StreamEndCapture, cuStreamEndCapture, Handle, Handle*)                                         \
  X(GraphCreate, cuGraphCreate, Handle*, unsigned)                                                 \
  X(GraphDestroy, cuGraphDestroy, Handle)                                                          \
  X(GraphAddChildGraphNode, cuGraphAddChildGraphNode, Handle*, Handle, const Handle*, std::size_t, \
    Handle)                                                                                        \
  X(GraphInstantiate, cuGraphInstantiateWithFlags, Handle*, Handle, unsigned long long)            \
  X(GraphUpload, cuGraphUpload, Handle, Handle)                                                    \
  X(GraphLaunch, cuGraphLaunch, Handle, Handle)                                                    \
  X(GraphExecDestroy, cuGraphExecDestroy, Handle)

/// Results of the driver that are looked at by value.
enum DriverResult : int {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNoDevice = 100,
  kNotReady = 600,
  kIllegalAddress = 700,
};

/// CUdevice_attribute, by its names there.
enum DeviceAttribute : int {
  kMultiprocessorCount = 16,
  kL2CacheSize = 38,
  kComputeCapabilityMajor = 75,
  kComputeCapabilityMinor = 76,
  kMaxSharedMemoryPerBlockOptin = 97,
  kMemoryPoolsSupported = 115,
};

/// CUfunction_attribute.
enum FunctionAttribute : int { kMaxDynamicSharedSizeBytes = 8 };

/// CUmemPool_attribute.
enum PoolAttribute : int { kReleaseThreshold = 4 };

/// Flags of cuStreamCreate, cuEventCreate and cuStreamBeginCapture.
enum Flag : int { kNonBlocking = 1, kDisableTiming = 2, kCaptureThreadLocal = 1 };

// NVRTC (libnvrtc.so.13 or .12).

#define ONNXGRAD_CUDA_NVRTC(X)                                                                     \
  X(Version, nvrtcVersion, int*, int*)                                                             \
  X(CreateProgram, nvrtcCreateProgram, Handle*, const char*, const char*, int, const char* const*, \
    const char* const*)                                                                            \
  X(CompileProgram, nvrtcCompileProgram, Handle, int, const char* const*)                          \
  X(GetCubinSize, nvrtcGetCUBINSize, Handle, std::size_t*)                                         \
  X(GetCubin, nvrtcGetCUBIN, Handle, char*)                                                        \
  X(GetPtxSize, nvrtcGetPTXSize, Handle, std::size_t*)                                             \
  X(GetPtx, nvrtcGetPTX, Handle, char*)                                                            \
  X(GetNumSupportedArchs, nvrtcGetNumSupportedArchs, int*)                                         \
  X(GetSupportedArchs, nvrtcGetSupportedArchs, int*)                                               \
  X(GetLogSize, nvrtcGetProgramLogSize, Handle, std::size_t*)                                      \
  X(GetLog, nvrtcGetProgramLog, Handle, char*)                                                     \
  X(DestroyProgram, nvrtcDestroyProgram, Handle*)

/// The functions of a library, loaded.
#define ONNXGRAD_CUDA_MEMBER(member, symbol, ...) int (*member)(__VA_ARGS__) = nullptr;
struct Driver {
  ONNXGRAD_CUDA_DRIVER(ONNXGRAD_CUDA_MEMBER)
  int cuda_version = 0;  ///< as DriverGetVersion returns it: 12040 for 12.4
};
struct Nvrtc {
  ONNXGRAD_CUDA_NVRTC(ONNXGRAD_CUDA_MEMBER)
  const char* (*GetErrorString)(int) = nullptr;
};
#undef ONNXGRAD_CUDA_MEMBER

}  // namespace onnxgrad::device::cuda

#endif  // ONNXGRAD_DEVICE_CUDA_API_H_
