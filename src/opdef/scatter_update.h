#ifndef ONNXGRAD_OPDEF_SCATTER_UPDATE_H_
#define ONNXGRAD_OPDEF_SCATTER_UPDATE_H_

#include <string_view>

namespace onnxgrad::opdef {

// Updates of a weight whose gradient is that of a lookup of rows: zero, but for sums of rows that
// are named by indices. The gradient is never stored; every number is the one that the update of
// the dense gradient gives.
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
