#ifndef ONNXGRAD_OPDEF_ACTIVATION_H_
#define ONNXGRAD_OPDEF_ACTIVATION_H_

#include <cstdint>
#include <string_view>

namespace onnxgrad::opdef {

/// `Activation` of domain `onnxgrad.fused`, x -> (y, slope): an element-wise function and its
/// derivative, in one pass. The gradient is then a product with the slope. Attribute "function".
enum class ActivationFunction : std::int64_t {
  kGelu,      ///< x Phi(x), Phi being the normal distribution
  kTanhGelu,  ///< x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2
  kSilu,      ///< x / (1 + exp(-x))
};
inline constexpr std::string_view kActivation = "Activation";

/// `ActivationGradient` of the same domain, (x, dy) -> dx: dy times the derivative, for an x that
/// is stored in 16 bits, from which the derivative is computed again. Operands and result of both
/// operators may be float16 or bfloat16, of one type: they are computed in float32.
inline constexpr std::string_view kActivationGradient = "ActivationGradient";

}  // namespace onnxgrad::opdef

#endif  // ONNXGRAD_OPDEF_ACTIVATION_H_
