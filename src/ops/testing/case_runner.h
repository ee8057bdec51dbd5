#ifndef ONNXGRAD_OPS_TESTING_CASE_RUNNER_H_
#define ONNXGRAD_OPS_TESTING_CASE_RUNNER_H_

#include <memory>
#include <string>
#include <vector>

#include "onnxgrad/tensor.h"
#include "opdef/registry.h"
#include "ops/testing/gradient_checker.h"
#include "ops/testing/op_case.h"
#include "runtime/executor.h"

// Runs an OpCase: text -> internal graph -> vector-Jacobian product -> engine.

namespace onnxgrad::ops_test {

/// Registries with all built-in operators and kernels.
const opdef::OpRegistry& builtin_ops();
const runtime::Engine& builtin_engine();

/// Graphs and inputs of a case in one variant.
struct BuiltCase {
  std::shared_ptr<const ir::Model> forward;
  std::vector<Tensor> inputs;  ///< inputs of forward
  /// Model with the outputs of forward, then the gradient of sum_i <seed_i, output_i> for each
  /// `wrt`; the seeds are inputs after those of forward. nullptr if the case has no gradient.
  std::shared_ptr<const ir::Model> gradient;
  std::vector<std::size_t> wrt;             ///< indices of the inputs
  std::vector<std::size_t> seeded_outputs;  ///< indices of the outputs
};

/// Builds a case. Throws the errors of loading, upgrading and differentiating.
BuiltCase build_case(const OpCase& op_case, const CaseVariant& variant,
                     const opdef::OpRegistry& ops = builtin_ops());

/// Results of a case.
struct CaseResult {
  std::vector<Tensor> outputs;
  std::vector<Tensor> seeds;      ///< uniform in [-1, 1), fixed by the case's name
  std::vector<Tensor> gradients;  ///< one per BuiltCase::wrt, same order
};

struct RunOptions {
  bool fuse = true;
  device::CpuOptions cpu = {};
};

CaseResult run_case(const OpCase& op_case, const BuiltCase& built, const RunOptions& options = {},
                    const runtime::Engine& engine = builtin_engine());

/// Compares the case's gradient in float64 with central differences; see CheckOptions.
std::vector<Difference> check_case_gradient(const OpCase& op_case,
                                            const opdef::OpRegistry& ops = builtin_ops(),
                                            bool only_where_smooth = false);

/// Returns "" if all elements agree to tolerance * max(1, largest magnitude of `expected`), NaN
/// with NaN, infinities and integers exactly; else the position and size of the difference. dtypes
/// may differ.
std::string compare(const Tensor& given, const Tensor& expected, double tolerance);

}  // namespace onnxgrad::ops_test

#endif  // ONNXGRAD_OPS_TESTING_CASE_RUNNER_H_
