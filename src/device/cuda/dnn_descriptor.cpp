#include "device/cuda/dnn_descriptor.h"

#include <fmt/format.h>

#include "device/cuda/libraries.h"
#include "onnxgrad/error.h"

namespace onnxgrad::device::cuda {

void check_dnn(int status, const char* call) {
  if (status == kSuccess) return;
  throw DeviceError({.what = fmt::format("{}: {}", call, dnn().GetErrorString(status)),
                     .hint = "Install the version of nvidia-cudnn that fits the driver."});
}

Owned dnn_descriptor(int type) {
  Handle made = nullptr;
  check_dnn(dnn().CreateDescriptor(type, &made), "cudnnBackendCreateDescriptor");
  return {made, dnn().DestroyDescriptor};
}

}  // namespace onnxgrad::device::cuda
