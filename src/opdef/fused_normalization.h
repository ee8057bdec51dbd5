#ifndef ONNXGRAD_OPDEF_FUSED_NORMALIZATION_H_
#define ONNXGRAD_OPDEF_FUSED_NORMALIZATION_H_

#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

#include "ir/graph.h"

// BatchNormalization in training mode and its gradient with the element-wise work around them:
// operators of domain `onnxgrad.fused` that the pass fuse_normalization makes, for float32.

namespace onnxgrad::opdef {

/// Condition for a gradient to pass from the nodes after a normalisation.
enum class NormMask : std::uint8_t {
  kNone,
  kPositive,  ///< after Relu: the normalised value is > 0
  kInside,    ///< after Clip: it is neither below `low` nor above `high`
  kResult     ///< after Relu of a sum with a residual: the result is > 0
};

/// `BatchNormalization`: (X, scale, B, mean, var, residual?) ->
///   (Y, running_mean?, running_var?, saved_mean, saved_inverse)
/// Y = BatchNormalization(X, ...) + residual, restricted to [low, high]; saved_inverse is
/// 1 / sqrt(batch variance + epsilon).
///
/// `BatchNormalizationGrad`: (dY, X, scale, B, saved_mean, saved_inverse, dY2?, Y?) ->
///   (dX?, dscale?, dB?, g?)
/// the gradient for the cotangent g = dY + dY2 where `mask` lets it pass, else 0.
struct FusedNormalization {
  float epsilon = 1e-5F;
  float momentum = 0.9F;  ///< for the running statistics
  float low = -std::numeric_limits<float>::infinity();
  float high = std::numeric_limits<float>::infinity();
  NormMask mask = NormMask::kNone;

  static FusedNormalization read(const ir::Node& node);
  std::vector<ir::Attribute> attributes() const;
};
inline constexpr std::string_view kFusedNormalization = "BatchNormalization";
inline constexpr std::string_view kFusedNormalizationGrad = "BatchNormalizationGrad";

}  // namespace onnxgrad::opdef

#endif  // ONNXGRAD_OPDEF_FUSED_NORMALIZATION_H_
