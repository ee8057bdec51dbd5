#ifndef ONNXGRAD_OPS_TESTING_CARD_ENGINE_H_
#define ONNXGRAD_OPS_TESTING_CARD_ENGINE_H_

#include <memory>

#include "device/cuda/cuda_device.h"
#include "ops/builtin.h"
#include "ops/testing/case_runner.h"

namespace onnxgrad::ops_test {

/// The engine of the first card, whose other operators run on the CPU. There is a card.
inline const runtime::Engine& card_engine() {
  static device::cuda::CudaDevice device(0);
  static const auto kernels = [] {
    auto made = std::make_unique<opdef::KernelRegistry>();
    ops::register_builtin_cuda_kernels(*made);
    return made;
  }();
  static const runtime::Engine engine{.ops = builtin_ops(),
                                      .kernels = *kernels,
                                      .make_inferer = builtin_engine().make_inferer,
                                      .device = device,
                                      .host_kernels = &builtin_engine().kernels};
  return engine;
}

}  // namespace onnxgrad::ops_test

#endif  // ONNXGRAD_OPS_TESTING_CARD_ENGINE_H_
