#ifndef ONNXGRAD_DEVICE_CUDA_DNN_DESCRIPTOR_H_
#define ONNXGRAD_DEVICE_CUDA_DNN_DESCRIPTOR_H_

#include <cstdint>
#include <span>
#include <vector>

#include "device/cuda/context.h"
#include "device/cuda/dnn_api.h"
#include "device/cuda/libraries.h"

// Descriptors of cuDNN's backend API and their attributes. Whatever cuDNN refuses is a DeviceError.

namespace onnxgrad::device::cuda {

void check_dnn(int status, const char* call);

/// A descriptor of a type of dnn_api::Descriptor.
Owned dnn_descriptor(int type);

namespace dnn_api {

template <class T>
void set(Handle to, int attribute, int type, std::span<const T> values) {
  check_dnn(dnn().Set(to, attribute, type, static_cast<std::int64_t>(values.size()),
                      static_cast<const void*>(values.data())),
            "cudnnBackendSetAttribute");
}
template <class T>
void set(const Owned& to, int attribute, int type, const T& value) {
  set(to.get(), attribute, type, std::span<const T>(&value, 1));
}
inline void set_sizes(const Owned& to, int attribute, const std::vector<std::int64_t>& sizes) {
  set(to.get(), attribute, kTypeInt64, std::span<const std::int64_t>(sizes));
}
inline void link(const Owned& to, int attribute, Handle other) {
  set(to, attribute, kTypeDescriptor, other);
}
inline void finalize(const Owned& one) {
  check_dnn(dnn().Finalize(one.get()), "cudnnBackendFinalize");
}

}  // namespace dnn_api
}  // namespace onnxgrad::device::cuda

#endif  // ONNXGRAD_DEVICE_CUDA_DNN_DESCRIPTOR_H_
