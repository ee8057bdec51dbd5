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

}  // namespace onnxgrad::opdef

#endif  // ONNXGRAD_OPDEF_ACTIVATION_H_
