#include "device/cuda/cuda_device.h"

#include <fmt/format.h>

#include "device/cuda/libraries.h"
#include "device/cuda/step_kernels.h"
#include "device/cuda/stream.h"
#include "device/cuda_plugin.h"

namespace onnxgrad::device::cuda {

CudaDevice::CudaDevice(int index) : context_(Context::open(index)) {
  prepare_step_kernels(context_);
}

std::string CudaDevice::name() const { return fmt::format("cuda:{}", context_->index()); }

std::unique_ptr<Stream> CudaDevice::make_stream() { return std::make_unique<CudaStream>(context_); }

int CudaDevice::num_compute_streams() const { return kComputeStreams; }

DevicePlugin cuda_plugin(void (*register_kernels)(const opdef::KernelRegistry& cpu,
                                                  opdef::KernelRegistry& own)) {
  return {.lock = nullptr,  // of the library itself
          .name = "cuda",
          .count = num_cards,
          .why_none = driver_problem,
          .make_device = [](int index) -> std::unique_ptr<Device> {
            return std::make_unique<CudaDevice>(index);
          },
          .register_kernels = register_kernels};
}

const StepKernels& CudaDevice::step_kernels() const { return cuda_step_kernels(); }

}  // namespace onnxgrad::device::cuda
