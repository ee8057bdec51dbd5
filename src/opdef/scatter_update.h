#ifndef ONNXGRAD_OPDEF_SCATTER_UPDATE_H_
#define ONNXGRAD_OPDEF_SCATTER_UPDATE_H_

#include <string_view>

namespace onnxgrad::opdef {

// Updates of a weight whose gradient is that of a lookup of rows: zero, except for sums in the
// indexed rows. The gradient is never stored; results equal those of an update by the dense
// gradient.
//
// indices: int64 [..., 1]; rows: [..., columns of w]; gradient[indices[t], :] += rows[t, :], in the
// order of t.

/// `ScatterWeightUpdate` of domain `onnxgrad.fused`, (indices, rows, w, m, ...) -> (w', m', v'):
/// WeightUpdate with that gradient; its attributes.
inline constexpr std::string_view kScatterWeightUpdate = "ScatterWeightUpdate";

/// `ScatterDescent` of domain `onnxgrad.fused`, (indices, rows, w, rate) -> w' = w - rate *
/// gradient; rate has one element. Rows without an index are unchanged.
inline constexpr std::string_view kScatterDescent = "ScatterDescent";

}  // namespace onnxgrad::opdef

#endif  // ONNXGRAD_OPDEF_SCATTER_UPDATE_H_
