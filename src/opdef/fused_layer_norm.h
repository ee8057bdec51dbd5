#ifndef ONNXGRAD_OPDEF_FUSED_LAYER_NORM_H_
#define ONNXGRAD_OPDEF_FUSED_LAYER_NORM_H_

#include <string_view>

namespace onnxgrad::opdef {

// LayerNormalization and its gradient with the element-wise work around them in one pass each:
// operators of domain `onnxgrad.fused` that the pass fuse_layer_norms makes, for float32.

/// `LayerNormalization`: (X, residual, scale, B?, ratio?, training_mode?) -> (Y, S, mask?)
///   S = Dropout(X, ratio, training_mode) + residual,  Y = LayerNormalization(S, scale, B)
/// Attributes: those of LayerNormalization; `drops` is 1 if there is a Dropout, which draws from
/// the node's random stream. Without it S = X + residual.
inline constexpr std::string_view kFusedLayerNorm = "LayerNormalization";

/// `LayerNormalizationGrad`: (dY, S, scale, more?, mask?, factor?) ->
///   (dS?, dscale, dB, dX?, sums?)
///   dS = gradient by S + more,  dX = dS where `mask`, times `factor` (one element), else 0 times
///   it
/// and `sums`, of scale's shape, is dX, or dS if there is no mask, summed over the rows.
/// Attributes: those of the function onnxgrad.LayerNormalizationGrad.
inline constexpr std::string_view kFusedLayerNormGrad = "LayerNormalizationGrad";

}  // namespace onnxgrad::opdef

#endif  // ONNXGRAD_OPDEF_FUSED_LAYER_NORM_H_
