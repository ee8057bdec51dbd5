#ifndef ONNXGRAD_OPS_NN_NORM_CHANNELS_H_
#define ONNXGRAD_OPS_NN_NORM_CHANNELS_H_

#include <cstddef>
#include <cstdint>

// Batch normalisation of one channel of float32 images with what surrounds it: the sum with a
// residual, ReLU or Clip after it, and their masks before its gradient. With SIMD.

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
/// One pass over memory: blocks that fit into the L1 cache have means of their own, which are
/// combined in double. Source: Chan, Golub and LeVeque, Updating Formulae and a Pairwise Algorithm
/// for Computing Sample Variances, 1979.
Moments moments(const float* x, const Stretches& stretches);

/// v = (x - mean) * slope + shift, and y = v + residual restricted to [low, high].
struct Affine {
  float mean = 0;
  float slope = 1;
  float shift = 0;
  float low = 0;
  float high = 0;
};
/// y may be x or residual, which may be nullptr.
void normalize(const float* x, const float* residual, const Stretches& stretches,
               const Affine& affine, float* y);

/// Where a cotangent passes.
enum class Mask : std::uint8_t {
  kNone,
  kPositive,  ///< v > 0
  kInside,    ///< not v < low, not v > high
  kResult     ///< result > 0
};

/// g = the sum of one or two cotangents where the mask lets them pass.
struct Cotangent {
  const float* dy = nullptr;
  const float* more = nullptr;  ///< nullptr: there is one
  const float* x = nullptr;
  const float* result = nullptr;  ///< for kResult
  Mask mask = Mask::kNone;
  Affine affine = {};
};

struct GradSums {
  double g = 0;    ///< sum(g)
  double dot = 0;  ///< sum(g * (x - mean))
};
/// Also stores g unless `stored` is nullptr; it may be dy, more or result.
GradSums grad_sums(const Cotangent& cotangent, const Stretches& stretches, float* stored);

/// dx = a * g + b * (x - mean) + d; dx may be any operand.
void normalize_grad(const Cotangent& cotangent, const Stretches& stretches, float a, float b,
                    float d, float* dx);

}  // namespace onnxgrad::ops::channels

#endif  // ONNXGRAD_OPS_NN_NORM_CHANNELS_H_
