#ifndef ONNXGRAD_OPDEF_CONV_UPDATE_H_
#define ONNXGRAD_OPDEF_CONV_UPDATE_H_

#include <string_view>

namespace onnxgrad::opdef {

// Updates of a convolution's weight whose gradient is never stored as a whole. dy and x are the
// operands of onnxgrad.ConvWeightGrad, whose attributes the nodes have; results equal those of an
// update by the stored gradient.

/// `ConvWeightUpdate` of domain `onnxgrad.fused`, (dy, x, w, m, ...) -> (w', m', v'): WeightUpdate
/// with that gradient; its attributes too.
inline constexpr std::string_view kConvWeightUpdate = "ConvWeightUpdate";

/// `ConvDescent` of domain `onnxgrad.fused`, (dy, x, w, rate) -> w' = w - rate * gradient; rate has
/// one element.
inline constexpr std::string_view kConvDescent = "ConvDescent";

}  // namespace onnxgrad::opdef

#endif  // ONNXGRAD_OPDEF_CONV_UPDATE_H_
