#ifndef ONNXGRAD_OPDEF_GUARDED_UPDATE_H_
#define ONNXGRAD_OPDEF_GUARDED_UPDATE_H_

#include <string_view>

// Updates of weights that are done where a condition holds: what a loss scale makes of each.

namespace onnxgrad::opdef {

/// `GuardedWeightUpdate` of domain `onnxgrad.fused`, (operands of WeightUpdate..., is_done) -> (w',
/// m', v'): those of WeightUpdate where `is_done`, a bool of rank 0, else w, m and v. Attributes of
/// WeightUpdate.
inline constexpr std::string_view kGuardedWeightUpdate = "GuardedWeightUpdate";

}  // namespace onnxgrad::opdef

#endif  // ONNXGRAD_OPDEF_GUARDED_UPDATE_H_
