#ifndef ONNXGRAD_DEVICE_CUDA_NCCL_API_H_
#define ONNXGRAD_DEVICE_CUDA_NCCL_API_H_

#include <array>
#include <climits>
#include <cstddef>
#include <cstdint>

#include "device/cuda/api.h"

// NCCL (libnccl.so.2), declared as the driver is in api.h.

namespace onnxgrad::device::cuda {

/// ncclUniqueId, by which the ranks of a communicator find each other.
struct NcclUniqueId {
  std::array<char, 128> bytes{};
};

/// The beginning of ncclConfig_t, as in version 2.18; later libraries take shorter ones.
struct NcclConfig {
  static constexpr int kUnset = INT_MIN;
  std::size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = 21800;
  int blocking = 0;  ///< calls return before they are done, so that a lost rank does not hold them
  int cga_cluster_size = kUnset;
  int min_ctas = kUnset;
  int max_ctas = kUnset;
  const char* net_name = nullptr;
  int split_share = kUnset;
};

#define ONNXGRAD_CUDA_NCCL(X)                                                                 \
  X(GetVersion, ncclGetVersion, int*)                                                         \
  X(GetUniqueId, ncclGetUniqueId, NcclUniqueId*)                                              \
  X(CommInitRankConfig, ncclCommInitRankConfig, Handle*, int, NcclUniqueId, int, NcclConfig*) \
  X(CommFinalize, ncclCommFinalize, Handle)                                                   \
  X(CommDestroy, ncclCommDestroy, Handle)                                                     \
  X(CommAbort, ncclCommAbort, Handle)                                                         \
  X(CommGetAsyncError, ncclCommGetAsyncError, Handle, int*)                                   \
  X(GroupStart, ncclGroupStart)                                                               \
  X(GroupEnd, ncclGroupEnd)                                                                   \
  X(AllReduce, ncclAllReduce, const void*, void*, std::size_t, int, int, Handle, Handle)      \
  X(Reduce, ncclReduce, const void*, void*, std::size_t, int, int, int, Handle, Handle)       \
  X(Broadcast, ncclBroadcast, const void*, void*, std::size_t, int, int, Handle, Handle)      \
  X(Send, ncclSend, const void*, std::size_t, int, int, Handle, Handle)                       \
  X(Recv, ncclRecv, void*, std::size_t, int, int, Handle, Handle)

/// ncclResult_t, ncclDataType_t and ncclRedOp_t, by their names there.
enum NcclConstant : int {
  kNcclInProgress = 7,
  kNcclInt8 = 0,
  kNcclFloat32 = 7,
  kNcclFloat64 = 8,
  kNcclSum = 0,
};

#define ONNXGRAD_CUDA_MEMBER(member, symbol, ...) int (*member)(__VA_ARGS__) = nullptr;
struct Nccl {
  ONNXGRAD_CUDA_NCCL(ONNXGRAD_CUDA_MEMBER)
  const char* (*GetErrorString)(int) = nullptr;
  const char* (*GetLastError)(Handle) = nullptr;
};
#undef ONNXGRAD_CUDA_MEMBER

}  // namespace onnxgrad::device::cuda

#endif  // ONNXGRAD_DEVICE_CUDA_NCCL_API_H_
