#ifndef ONNXGRAD_DEVICE_CUDA_LIBRARIES_H_
#define ONNXGRAD_DEVICE_CUDA_LIBRARIES_H_

#include <string>
#include <vector>

#include "device/cuda/api.h"
#include "device/cuda/blas_lt_api.h"
#include "device/cuda/dnn_api.h"

// NVIDIA's libraries, found and loaded when they are first needed. They are searched for, in this
// order, in the wheels of NVIDIA that a Python environment has (nvidia/*/lib), by the dynamic
// linker (for the driver first), and in the folders of CUDA's toolkit. If the environment variable
// ONNXGRAD_CUDA_PATH lists folders, they come from these alone, but the driver from any. Libraries
// for a version of CUDA that is newer than the driver's are not taken.

namespace onnxgrad::device::cuda {

/// Throws: DeviceError (the library is absent, with the command that installs it, or too old).
const Driver& driver();
const Nvrtc& nvrtc();
const BlasLt& blas_lt();
const Dnn& dnn();

/// Why driver() throws; empty: it does not.
std::string driver_problem();
/// Why blas_lt() throws; empty: it does not. It is loaded for this.
std::string blas_lt_problem();
std::string dnn_problem();

}  // namespace onnxgrad::device::cuda

#endif  // ONNXGRAD_DEVICE_CUDA_LIBRARIES_H_
