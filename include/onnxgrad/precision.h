#ifndef ONNXGRAD_PRECISION_H_
#define ONNXGRAD_PRECISION_H_

#include <cstdint>
#include <string>
#include <vector>

namespace [[gnu::visibility("default")]] onnxgrad {

enum class Precision : std::uint8_t {
  kFloat32,   ///< nothing of a float32 model is rounded
  kBfloat16,  ///< 8 bits of precision, the range of float32
  kFloat16,   ///< 11 bits of precision; gradients are scaled, since small ones would become 0
};

/// Mixed precision: a training step stores and multiplies some values in 16 bits. Matrix products
/// and convolutions read operands of 16 bits and add in float32; activations, and gradients that
/// further products depend on, are stored in 16 bits. All else is computed in float32: element-wise
/// work, normalizations, softmax, reductions, the loss, gradients of weights, the update. Weights,
/// running statistics and the optimizer's state are float32, evaluation and prediction too. Only
/// float32 values are concerned: 16-bit and float64 values of the model are unchanged.
struct MixedPrecision {
  Precision type = Precision::kFloat32;
  /// Names of nodes or of operators ("MatMul"), as glob patterns: these nodes, the bodies that they
  /// have, and their gradients are computed from float32 values as if they were not products.
  std::vector<std::string> float32_nodes = {};
  /// Initial scale of the loss, 1 to 2^24, for kFloat16: gradients are computed of `loss_scale`
  /// times the loss, and divided by it once they are float32. If one is then NaN or infinite while
  /// the loss is finite, the step changes nothing but the scale, which is halved. At scale 1 the
  /// step is done nevertheless: the error that follows names the node.
  double loss_scale = 65536;
  /// The scale is doubled after this many steps in a row with finite gradients.
  std::int64_t growth_interval = 2000;
};

}  // namespace onnxgrad

#endif  // ONNXGRAD_PRECISION_H_
