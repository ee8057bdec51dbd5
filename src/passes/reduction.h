#ifndef ONNXGRAD_PASSES_REDUCTION_H_
#define ONNXGRAD_PASSES_REDUCTION_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "opdef/fused.h"

namespace onnxgrad::passes {

/// A reduction that an onnxgrad.fused.Elementwise can end in. Pattern: ReduceSum, ReduceMean,
/// ReduceMax, ReduceMin of float32 or float64 over axes known when the plan is made.
struct Reduction {
  std::vector<std::int64_t> axes;  ///< sorted, of the input; only those longer than 1
  opdef::Fold fold = opdef::Fold::kSum;
  double factor = 1;  ///< applied to the result (1/n of a mean)
};

/// Matches a reduction; nullopt for other nodes, unknown shapes, empty tensors and no axes.
std::optional<Reduction> match_reduction(const ir::Node& node);

}  // namespace onnxgrad::passes

#endif  // ONNXGRAD_PASSES_REDUCTION_H_
