#ifndef ONNXGRAD_DEVICE_MACHINE_H_
#define ONNXGRAD_DEVICE_MACHINE_H_

#include <cstdint>

namespace onnxgrad::device {

/// Properties of a processor core by which kernels choose implementations and sizes of blocks.
struct Machine {
  std::int64_t l1_bytes = std::int64_t{32} << 10;  ///< data cache
  std::int64_t l2_bytes = std::int64_t{1} << 20;
  int vector_bits = 128;
  int fma_ports = 1;     ///< that multiply vectors of 512 bits, each with loads of its own; 1 or 2
  bool has_amx = false;  ///< for float32 GEMMs (cpu/gemm_split.h)
};

struct CpuOptions;  // cpu_options.h

/// Returns the caches and ports of this machine, which the processor and the system are asked for
/// once. Thread-safe.
const Machine& this_machine();

/// Returns the machine of a request: `cpu.machine` with the vectors and the AMX that it may use.
Machine machine_of(const CpuOptions& cpu);

}  // namespace onnxgrad::device

#endif  // ONNXGRAD_DEVICE_MACHINE_H_
