#ifndef ONNXGRAD_DEVICE_CUDA_COMPILER_H_
#define ONNXGRAD_DEVICE_CUDA_COMPILER_H_

#include <future>
#include <string>

namespace onnxgrad::device::cuda {

/// The image of a text for cards of a compute capability (90: 9.0), compiled by NVRTC in a thread
/// of its own, beside others, or found in the cache on disk: machine code, or, for a card that is
/// newer than NVRTC, PTX for the newest that it knows, which the driver translates. Any thread.
/// Throws: DeviceError (NVRTC is absent); the future throws one if the text is wrong or no such
/// card known.
std::shared_future<std::string> compile_text(std::string source, int capability);

}  // namespace onnxgrad::device::cuda

#endif  // ONNXGRAD_DEVICE_CUDA_COMPILER_H_
