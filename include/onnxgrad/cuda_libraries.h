#ifndef ONNXGRAD_CUDA_LIBRARIES_H_
#define ONNXGRAD_CUDA_LIBRARIES_H_

#include <string>
#include <vector>

namespace [[gnu::visibility("default")]] onnxgrad {

/// Adds folders of Python packages ("site-packages") whose nvidia/*/lib are searched for NVIDIA's
/// libraries when device "cuda" is first used, before those of VIRTUAL_ENV and of CUDA's toolkit.
/// The Python package adds its own. Thread-safe.
void add_cuda_wheels(const std::vector<std::string>& site_packages);

}  // namespace onnxgrad

#endif  // ONNXGRAD_CUDA_LIBRARIES_H_
