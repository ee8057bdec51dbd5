#ifndef ONNXGRAD_DEVICE_CUDA_IMAGE_CACHE_H_
#define ONNXGRAD_DEVICE_CUDA_IMAGE_CACHE_H_

#include <optional>
#include <string>

namespace onnxgrad::device::cuda {

// Compiled kernels on disk, in $ONNXGRAD_CUDA_CACHE, $XDG_CACHE_HOME/onnxgrad/cuda or
// ~/.cache/onnxgrad/cuda; an empty ONNXGRAD_CUDA_CACHE turns it off. A file has the name of what it
// was compiled from, and a checksum, so that a damaged one is compiled again. Nothing here throws.

/// The image kept under this key (text, architecture, options, version of the compiler).
std::optional<std::string> find_image(const std::string& key);
void keep_image(const std::string& key, const std::string& image);

}  // namespace onnxgrad::device::cuda

#endif  // ONNXGRAD_DEVICE_CUDA_IMAGE_CACHE_H_
