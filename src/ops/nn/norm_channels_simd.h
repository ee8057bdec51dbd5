#ifndef ONNXGRAD_OPS_NN_NORM_CHANNELS_SIMD_H_
#define ONNXGRAD_OPS_NN_NORM_CHANNELS_SIMD_H_

#include <cstddef>
#include <cstdint>

#include "base/f16.h"
#include "device/isa.h"

// Batch normalisation of one channel of images fused with its neighbours: the sum with a residual,
// the ReLU or Clip after it, and their masks before its gradient. With SIMD, in float32; elements
// may be stored as f16 or bf16 (base::Float16, base::Bfloat16), which are converted on load and
// rounded on store.

namespace onnxgrad::ops::channels {

/// Elements of a channel: `segments` runs of `length` elements with stride `stride`.
struct Stretches {
  std::int64_t segments = 0;
  std::int64_t stride = 0;
  std::int64_t length = 0;

  std::int64_t count() const { return segments * length; }
};

struct Moments {
  double mean = 0;
  double variance = 0;
};
/// Forward map: v = (x - mean) * slope + shift, y = clamp(v + residual, low, high).
struct Affine {
  float mean = 0;
  float slope = 1;
  float shift = 0;
  float low = 0;
  float high = 0;
};
/// Functions for images of element type E: float, base::Float16 or base::Bfloat16.
template <class E>
struct ForwardFunctions {
  /// Computes mean and variance in one pass over memory: blocks that fit into the L1 cache have
  /// their own means, which are combined in double. Source: Chan, Golub and LeVeque, Updating
  /// Formulae and a Pairwise Algorithm for Computing Sample Variances, 1979.
  Moments (*moments)(const E* x, const Stretches& stretches) = nullptr;
  /// Computes y, which may be x or residual; residual may be nullptr.
  void (*normalize)(const E* x, const E* residual, const Stretches& stretches, const Affine& affine,
                    E* y) = nullptr;
};

/// Returns the functions of an instruction set.
template <class E>
ForwardFunctions<E> forward_functions(device::Isa isa);

/// Condition under which a cotangent passes.
enum class Mask : std::uint8_t {
  kNone,
  kPositive,  ///< v > 0
  kInside,    ///< not v < low, not v > high
  kResult     ///< result > 0
};

/// Cotangent g: the sum of one or two cotangents where the mask lets them pass, rounded to G. G and
/// X are element types; cotangents may be float while the forward pass stored f16 or bf16.
template <class G, class X>
struct Cotangent {
  const G* dy = nullptr;
  const G* more = nullptr;  ///< second cotangent, or nullptr
  const X* x = nullptr;
  const X* result = nullptr;  ///< for kResult
  Mask mask = Mask::kNone;
  Affine affine = {};
};

struct GradSums {
  double g = 0;    ///< sum(g)
  double dot = 0;  ///< sum(g * (x - mean))
};

template <class G, class X>
struct GradFunctions {
  /// Computes the sums; also stores g unless `stored` is nullptr. `stored` may be dy, more or
  /// result.
  GradSums (*sums)(const Cotangent<G, X>& cotangent, const Stretches& stretches,
                   G* stored) = nullptr;
  /// Computes dx = a * g + b * (x - mean) + d; dx may be any operand.
  void (*normalize)(const Cotangent<G, X>& cotangent, const Stretches& stretches, float a, float b,
                    float d, G* dx) = nullptr;
};

/// Returns the functions for G = X, and for float cotangents with f16 or bf16 images.
template <class G, class X>
GradFunctions<G, X> grad_functions(device::Isa isa);

}  // namespace onnxgrad::ops::channels

#endif  // ONNXGRAD_OPS_NN_NORM_CHANNELS_SIMD_H_
