#ifndef ONNXGRAD_DEVICE_ISA_H_
#define ONNXGRAD_DEVICE_ISA_H_

#include <cstdint>
#include <span>

namespace onnxgrad::device {

/// An instruction set of this processor that kernels are compiled for. The value is its place in
/// the tables of cpu/dispatch.h.
enum class Isa : std::uint8_t {};

/// Returns all instruction sets, best first; there is at least one. The environment variable
/// ONNXGRAD_MAX_ISA names the best one that may be used. Thread-safe. Throws: DeviceError.
std::span<const Isa> available_isas();

inline Isa best_isa() { return available_isas().front(); }

/// Returns "AVX3" (AVX-512), "AVX2", "SSE4" or "NEON", as in labels of kernels.
const char* isa_name(Isa isa);

}  // namespace onnxgrad::device

#endif  // ONNXGRAD_DEVICE_ISA_H_
