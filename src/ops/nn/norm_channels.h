#ifndef ONNXGRAD_OPS_NN_NORM_CHANNELS_H_
#define ONNXGRAD_OPS_NN_NORM_CHANNELS_H_

#include <cstddef>
#include <cstdint>

#include "base/half.h"

// Batch normalisation of one channel of images with what surrounds it: the sum with a residual,
// ReLU or Clip after it, and their masks before its gradient. With SIMD, in float32; elements may
// be stored in 16 bits (base::Float16, base::Bfloat16): they are widened as they are read and
// rounded as they are written.

namespace onnxgrad::ops::channels {

/// The channel's elements: `segments` stretches of `length`, `stride` apart.
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
/// v = (x - mean) * slope + shift, and y = v + residual restricted to [low, high].
struct Affine {
  float mean = 0;
  float slope = 1;
  float shift = 0;
  float low = 0;
  float high = 0;
};
/// For images of E: float, base::Float16 or base::Bfloat16.
template <class E>
struct ForwardFunctions {
  /// One pass over memory: blocks that fit into the L1 cache have means of their own, which are
  /// combined in double. Source: Chan, Golub and LeVeque, Updating Formulae and a Pairwise
  /// Algorithm for Computing Sample Variances, 1979.
  Moments (*moments)(const E* x, const Stretches& stretches) = nullptr;
  /// y may be x or residual, which may be nullptr.
  void (*normalize)(const E* x, const E* residual, const Stretches& stretches, const Affine& affine,
                    E* y) = nullptr;
};

/// For the best instruction set of this machine.
template <class E>
ForwardFunctions<E> forward_functions();

/// Where a cotangent passes.
enum class Mask : std::uint8_t {
  kNone,
  kPositive,  ///< v > 0
  kInside,    ///< not v < low, not v > high
  kResult     ///< result > 0
};

/// g = the sum of one or two cotangents, as a number of G, where the mask lets them pass. G and X
/// are types of elements; cotangents may be float where the forward pass left halves.
template <class G, class X>
struct Cotangent {
  const G* dy = nullptr;
  const G* more = nullptr;  ///< nullptr: there is one
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
  /// Also stores g unless `stored` is nullptr; it may be dy, more or result.
  GradSums (*sums)(const Cotangent<G, X>& cotangent, const Stretches& stretches,
                   G* stored) = nullptr;
  /// dx = a * g + b * (x - mean) + d; dx may be any operand.
  void (*normalize)(const Cotangent<G, X>& cotangent, const Stretches& stretches, float a, float b,
                    float d, G* dx) = nullptr;
};

/// For G = X, and for float with halves.
template <class G, class X>
GradFunctions<G, X> grad_functions();

}  // namespace onnxgrad::ops::channels

#endif  // ONNXGRAD_OPS_NN_NORM_CHANNELS_H_
