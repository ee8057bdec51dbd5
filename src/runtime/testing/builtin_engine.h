#ifndef ONNXGRAD_RUNTIME_TESTING_BUILTIN_ENGINE_H_
#define ONNXGRAD_RUNTIME_TESTING_BUILTIN_ENGINE_H_

#include "device/testing/simulated_device.h"
#include "onnx/inference.h"
#include "ops/builtin.h"
#include "runtime/engine.h"

namespace onnxgrad::runtime {

/// An engine with all operators and kernels of the CPU, for tests.
inline const Engine& builtin_engine() {
  struct Registries {
    opdef::OpRegistry ops;
    opdef::KernelRegistry kernels;
    Registries() {
      ops::register_builtin_ops(ops);
      ops::register_builtin_cpu_kernels(kernels);
    }
  };
  static const Registries registries;
  static const Engine instance{registries.ops, registries.kernels, onnx_io::make_type_inferer,
                               device::testing::test_device()};
  return instance;
}

}  // namespace onnxgrad::runtime

#endif  // ONNXGRAD_RUNTIME_TESTING_BUILTIN_ENGINE_H_
