#ifndef ONNXGRAD_OPS_TESTING_KERNEL_RUN_H_
#define ONNXGRAD_OPS_TESTING_KERNEL_RUN_H_

#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"
#include "onnxgrad/tensor.h"
#include "opdef/kernel.h"

// Runs the kernels of one node directly, each offer separately, to compare fast kernels with the
// reference on more shapes than whole models would cover.

namespace onnxgrad::ops_test {

struct KernelCall {
  std::string_view op_type;
  std::vector<ir::Attribute> attributes = {};
  std::vector<Tensor> inputs = {};              ///< undefined: absent
  std::vector<opdef::TensorDesc> outputs = {};  ///< kUndefined: absent
  std::string_view domain = "";
  std::vector<std::size_t> constants = {};  ///< inputs that are constant at plan time
  int threads = 1;
  opdef::StepCells cells = {};
  const device::CpuOptions* cpu = nullptr;  ///< see opdef::KernelRequest::cpu
};

struct KernelRun {
  int rank = 0;
  std::string label;
  std::vector<Tensor> outputs;  ///< undefined if absent
};

/// Runs each offer that accepts the call, best first; outputs and scratch are filled with NaN-like
/// bytes before. A kernel that writes outside an output or its scratch fails the test.
std::vector<KernelRun> run_offers(const KernelCall& call);

/// Returns the outputs of the reference kernel (rank 0). Fails the test if it declines.
std::vector<Tensor> run_plain(const KernelCall& call);

/// Checks that every faster offer agrees with the reference, to `tolerance` in units of the largest
/// magnitude of each output (at least 1). Returns how many faster offers accepted the call.
std::size_t compare_offers(const KernelCall& call, double tolerance);

/// Returns uniform random elements in [low, high), determined by the seed.
Tensor random_tensor(DataType dtype, Dims dims, std::uint64_t seed, double low = -1,
                     double high = 1);

}  // namespace onnxgrad::ops_test

#endif  // ONNXGRAD_OPS_TESTING_KERNEL_RUN_H_
