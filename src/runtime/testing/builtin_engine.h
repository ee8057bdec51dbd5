#ifndef ONNXGRAD_RUNTIME_TESTING_BUILTIN_ENGINE_H_
#define ONNXGRAD_RUNTIME_TESTING_BUILTIN_ENGINE_H_

#include "device/testing/simulated_device.h"
#include "onnx/inference.h"
#include "ops/builtin.h"
#include "runtime/engine.h"

namespace onnxgrad::runtime {

/// An engine with all operators and the kernels of the device that tests run on.
inline const Engine& builtin_engine() {
  struct Registries {
    opdef::OpRegistry ops;
    opdef::KernelRegistry cpu;
    opdef::KernelRegistry simulated;
    Registries() {
      ops::register_builtin_ops(ops);
      ops::register_builtin_cpu_kernels(cpu);
      device::testing::simulated_plugin().register_kernels(cpu, simulated);
    }
  };
  static const Registries registries;
  device::Device& device = device::testing::test_device();
  static const Engine instance{.ops = registries.ops,
                               .kernels = device.is_host() ? registries.cpu : registries.simulated,
                               .make_inferer = onnx_io::make_type_inferer,
                               .device = device,
                               .host_kernels = &registries.cpu};
  return instance;
}

}  // namespace onnxgrad::runtime

#endif  // ONNXGRAD_RUNTIME_TESTING_BUILTIN_ENGINE_H_
