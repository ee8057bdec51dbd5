#ifndef ONNXGRAD_OPDEF_GUARDED_UPDATE_H_
#define ONNXGRAD_OPDEF_GUARDED_UPDATE_H_

#include <string_view>

// Updates of weights that are done where a condition holds: what a loss scale makes of each.

namespace onnxgrad::opdef {

/// `GuardedWeightUpdate` of domain `onnxgrad.fused`, (operands of WeightUpdate..., is_done) -> (w',
/// m', v'): those of WeightUpdate where `is_done`, a bool of rank 0, else w, m and v. Attributes of
/// WeightUpdate.
inline constexpr std::string_view kGuardedWeightUpdate = "GuardedWeightUpdate";

/// `GuardedGemmWeightUpdate` of domain `onnxgrad.fused`, (A, B, w, m, ..., factor, is_done): the
/// same with factor * op(A) op(B), of halves, as the gradient. Attributes of GemmWeightUpdate.
inline constexpr std::string_view kGuardedGemmWeightUpdate = "GuardedGemmWeightUpdate";

/// `GuardedGemmUpdate` of domain `onnxgrad.fused`, (W, A, B, factor, is_done): GemmUpdate of halves
/// where `is_done`, else W. Attributes of GemmUpdate.
inline constexpr std::string_view kGuardedGemmUpdate = "GuardedGemmUpdate";

/// `FaultSum` of domain `onnxgrad`: the sum of x * 0, float32 of rank 0. 0 if all elements of x are
/// finite, else NaN.
inline constexpr std::string_view kFaultSum = "FaultSum";

}  // namespace onnxgrad::opdef

#endif  // ONNXGRAD_OPDEF_GUARDED_UPDATE_H_
