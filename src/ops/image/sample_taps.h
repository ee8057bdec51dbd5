#ifndef ONNXGRAD_OPS_IMAGE_SAMPLE_TAPS_H_
#define ONNXGRAD_OPS_IMAGE_SAMPLE_TAPS_H_

#include <cstdint>

// Which elements of an image a point reads, along one axis, and with which weights: what GridSample
// and its gradients start from.

namespace onnxgrad::ops::sample {

enum class Mode : std::uint8_t { kNearest, kLinear, kCubic };
enum class Padding : std::uint8_t { kZeros, kBorder, kReflection };

/// The number of taps along one axis.
constexpr std::int64_t taps_of(Mode mode) {
  return mode == Mode::kNearest ? 1 : mode == Mode::kLinear ? 2 : 4;
}

struct Axis {
  std::int64_t size = 1;  ///< at least 1, below 2^24
  Mode mode = Mode::kLinear;
  Padding padding = Padding::kZeros;
  bool align_corners = false;
};

/// Of points at grid[p * grid_step], p in [0, count), in [-1, 1] on the axis: tap k reads index
/// indices[k * stride + p] with weight weights[k * stride + p], whose derivative with respect to
/// the grid is slopes[k * stride + p] (nullptr: not wanted). A tap that reads nothing has index 0
/// and weight 0. `position` has room for 2 * count numbers. Points that are NaN lie outside.
void axis_taps(const Axis& axis, const float* grid, std::int64_t grid_step, std::int64_t count,
               std::int64_t stride, float* position, std::int32_t* indices, float* weights,
               float* slopes);
void axis_taps(const Axis& axis, const double* grid, std::int64_t grid_step, std::int64_t count,
               std::int64_t stride, double* position, std::int32_t* indices, double* weights,
               double* slopes);

}  // namespace onnxgrad::ops::sample

#endif  // ONNXGRAD_OPS_IMAGE_SAMPLE_TAPS_H_
