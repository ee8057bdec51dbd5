#ifndef ONNXGRAD_DEVICE_TESTING_SIMULATED_KERNELS_H_
#define ONNXGRAD_DEVICE_TESTING_SIMULATED_KERNELS_H_

#include <array>
#include <string_view>
#include <utility>

#include "ir/builder.h"
#include "opdef/collectives.h"
#include "opdef/kernel.h"

// Kernels of the simulated device: those of the CPU, but for operators that it leaves to the CPU,
// as other devices do.

namespace onnxgrad::device::testing {

/// Operators without a kernel on the simulated device, by domain and type: what only the host can
/// do, and others that models of the tests have in their forward pass, gradient and update.
inline constexpr std::array<std::pair<std::string_view, std::string_view>, 13> kLeftToTheCpu{{
    {ir::kFusedDomain, opdef::kStartExchange},
    {ir::kFusedDomain, opdef::kFinishExchange},
    {"ai.onnx.ml", "LabelEncoder"},
    {"ai.onnx.ml", "OneHotEncoder"},
    {"ai.onnx.ml", "TreeEnsemble"},
    {"", "CumSum"},
    {"", "Dropout"},
    {"", "GridSample"},
    {"", "Hardmax"},
    {"", "Multinomial"},
    {"", "Resize"},
    {"", "ScatterElements"},
    {"", "TopK"},
}};

inline void register_simulated_kernels(const opdef::KernelRegistry& cpu,
                                       opdef::KernelRegistry& own) {
  own = cpu;
  for (const auto& [domain, op_type] : kLeftToTheCpu) own.remove(domain, op_type);
}

}  // namespace onnxgrad::device::testing

#endif  // ONNXGRAD_DEVICE_TESTING_SIMULATED_KERNELS_H_
