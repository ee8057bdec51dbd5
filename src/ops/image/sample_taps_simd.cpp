#include <cstdint>

#include "device/cpu/simd.h"
#include "ops/image/sample_taps.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/image/sample_taps_simd.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

// Plain loops over points, which the compiler turns into vectors of each instruction set. Nothing
// of the standard library is called: its inline functions are shared between instruction sets.

HWY_BEFORE_NAMESPACE();
namespace onnxgrad::ops::sample::HWY_NAMESPACE {

HWY_INLINE float floor_of(float x) { return __builtin_floorf(x); }
HWY_INLINE double floor_of(double x) { return __builtin_floor(x); }
HWY_INLINE float rounded(float x) { return __builtin_rintf(x); }
HWY_INLINE double rounded(double x) { return __builtin_rint(x); }

// `low` for NaN.
template <class T>
HWY_INLINE T clamped(T x, T low, T high) {
  const T least = x > low ? x : low;
  return least < high ? least : high;
}

// x reflected at `low` and `high` until it is between them; `sign` turns with it.
template <class T>
HWY_INLINE T reflected(T x, T low, T high, T& sign) {
  const T range = high - low;
  const T distance = x - low;
  const T size = distance < T(0) ? -distance : distance;
  const T turns = range > T(0) ? floor_of(size / range) : T(0);
  const T rest = range > T(0) ? size - turns * range : T(0);
  const bool is_back = turns - T(2) * floor_of(turns / T(2)) != T(0);
  const bool is_negative = distance < T(0);
  if (is_back != is_negative) sign = -sign;
  return is_back ? high - rest : low + rest;
}

// Where the points lie on the axis, position[p], and how they move with the grid, position[count +
// p]. Those beyond the border are brought back; of cubic interpolation with padding "border" the
// taps alone are, as PyTorch and onnxruntime have it.
template <class T>
HWY_INLINE void find_positions(const Axis& axis, const T* HWY_RESTRICT grid, std::int64_t grid_step,
                               std::int64_t count, T* HWY_RESTRICT position) {
  const T last = static_cast<T>(axis.size - 1);
  const T scale = static_cast<T>(axis.align_corners ? axis.size - 1 : axis.size) / T(2);
  const T shift = last / T(2);
  const T low = axis.align_corners ? T(0) : T(-0.5);
  const T high = axis.align_corners ? last : last + T(0.5);
  T* HWY_RESTRICT slope = position + count;
  for (std::int64_t p = 0; p < count; ++p) {
    position[p] = grid[p * grid_step] * scale + shift;
    slope[p] = scale;
  }
  if (axis.mode == Mode::kNearest) {
    for (std::int64_t p = 0; p < count; ++p) position[p] = rounded(position[p]);
  }
  if (axis.padding == Padding::kBorder && axis.mode != Mode::kCubic) {
    for (std::int64_t p = 0; p < count; ++p) {
      const T x = position[p];
      const bool is_inside = x >= low && x <= high;
      position[p] = is_inside ? x : clamped(x, T(0), last);
      slope[p] = is_inside ? slope[p] : T(0);
    }
  } else if (axis.padding == Padding::kReflection) {
    for (std::int64_t p = 0; p < count; ++p) {
      T sign = slope[p];
      const T x = position[p];
      const bool is_inside = x >= low && x <= high;
      const T mirrored = reflected(x, low, high, sign);
      position[p] = is_inside ? x : clamped(mirrored, low, high);
      slope[p] = is_inside ? scale : sign;
    }
  }
  // Anything farther outside reads the same, and every whole number fits an index.
  for (std::int64_t p = 0; p < count; ++p) {
    position[p] = clamped(position[p], T(-4), last + T(4));
  }
}

HWY_INLINE std::int32_t mirrored_index(std::int32_t i, std::int32_t size, bool align_corners) {
  if (size == 1) return 0;
  const std::int32_t period = align_corners ? 2 * (size - 1) : 2 * size;
  i %= period;
  if (i < 0) i += period;
  if (i < size) return i;
  return align_corners ? period - i : period - 1 - i;
}

// The indices of one tap, and weights of 0 where it reads nothing.
template <class T>
HWY_INLINE void place_tap(const Axis& axis, std::int64_t count, std::int32_t* HWY_RESTRICT indices,
                          T* HWY_RESTRICT weights, T* HWY_RESTRICT slopes) {
  const auto size = static_cast<std::int32_t>(axis.size);
  if (axis.padding == Padding::kReflection) {
    for (std::int64_t p = 0; p < count; ++p) {
      if (indices[p] >= 0 && indices[p] < size) continue;
      indices[p] = mirrored_index(indices[p], size, axis.align_corners);
    }
    return;
  }
  if (axis.padding == Padding::kBorder) {
    for (std::int64_t p = 0; p < count; ++p) {
      const std::int32_t least = indices[p] > 0 ? indices[p] : 0;
      indices[p] = least < size - 1 ? least : size - 1;
    }
    return;
  }
  if (slopes != nullptr) {
    for (std::int64_t p = 0; p < count; ++p) {
      slopes[p] = indices[p] >= 0 && indices[p] < size ? slopes[p] : T(0);
    }
  }
  for (std::int64_t p = 0; p < count; ++p) {
    const bool is_inside = indices[p] >= 0 && indices[p] < size;
    indices[p] = is_inside ? indices[p] : 0;
    weights[p] = is_inside ? weights[p] : T(0);
  }
}

// Keys, Cubic convolution interpolation for digital image processing, 1981, with a = -0.75.
template <class T>
HWY_INLINE T near_weight(T d) {
  return (T(1.25) * d - T(2.25)) * d * d + T(1);
}
template <class T>
HWY_INLINE T far_weight(T d) {
  return ((T(-0.75) * d + T(3.75)) * d - T(6)) * d + T(3);
}
template <class T>
HWY_INLINE T near_slope(T d) {
  return (T(3.75) * d - T(4.5)) * d;
}
template <class T>
HWY_INLINE T far_slope(T d) {
  return (T(-2.25) * d + T(7.5)) * d - T(6);
}

template <class T>
HWY_INLINE void cubic_tap(std::int64_t k, const T* HWY_RESTRICT position, std::int64_t count,
                          std::int32_t* HWY_RESTRICT indices, T* HWY_RESTRICT weights,
                          T* HWY_RESTRICT slopes) {
  const T* HWY_RESTRICT moves = position + count;
  const bool is_near = k == 1 || k == 2;
  const T sign = k < 2 ? T(1) : T(-1);
  for (std::int64_t p = 0; p < count; ++p) {
    const T first = floor_of(position[p]);
    const T fraction = position[p] - first;
    const T distance = sign * (fraction - static_cast<T>(k - 1));
    indices[p] = static_cast<std::int32_t>(first) + static_cast<std::int32_t>(k - 1);
    weights[p] = is_near ? near_weight(distance) : far_weight(distance);
    if (slopes == nullptr) continue;
    const T slope = is_near ? near_slope(distance) : far_slope(distance);
    slopes[p] = sign * slope * moves[p];
  }
}

template <class T>
HWY_INLINE void linear_tap(std::int64_t k, const T* HWY_RESTRICT position, std::int64_t count,
                           std::int32_t* HWY_RESTRICT indices, T* HWY_RESTRICT weights,
                           T* HWY_RESTRICT slopes) {
  const T* HWY_RESTRICT moves = position + count;
  for (std::int64_t p = 0; p < count; ++p) {
    const T first = floor_of(position[p]);
    const T fraction = position[p] - first;
    indices[p] = static_cast<std::int32_t>(first) + static_cast<std::int32_t>(k);
    weights[p] = k == 0 ? T(1) - fraction : fraction;
  }
  if (slopes == nullptr) return;
  for (std::int64_t p = 0; p < count; ++p) slopes[p] = k == 0 ? -moves[p] : moves[p];
}

template <class T>
HWY_INLINE void nearest_tap(const T* HWY_RESTRICT position, std::int64_t count,
                            std::int32_t* HWY_RESTRICT indices, T* HWY_RESTRICT weights,
                            T* HWY_RESTRICT slopes) {
  for (std::int64_t p = 0; p < count; ++p) {
    indices[p] = static_cast<std::int32_t>(position[p]);
    weights[p] = T(1);
  }
  if (slopes == nullptr) return;
  for (std::int64_t p = 0; p < count; ++p) slopes[p] = T(0);
}

template <class T>
HWY_INLINE void axis_taps_of(const Axis& axis, const T* grid, std::int64_t grid_step,
                             std::int64_t count, std::int64_t stride, T* position,
                             std::int32_t* indices, T* weights, T* slopes) {
  find_positions(axis, grid, grid_step, count, position);
  for (std::int64_t k = 0; k < taps_of(axis.mode); ++k) {
    if (axis.mode == Mode::kNearest) nearest_tap(position, count, indices, weights, slopes);
    if (axis.mode == Mode::kLinear) linear_tap(k, position, count, indices, weights, slopes);
    if (axis.mode == Mode::kCubic) cubic_tap(k, position, count, indices, weights, slopes);
    place_tap(axis, count, indices, weights, slopes);
    indices += stride;
    weights += stride;
    if (slopes != nullptr) slopes += stride;
  }
}

HWY_ATTR void axis_taps_float(const Axis& axis, const float* grid, std::int64_t grid_step,
                              std::int64_t count, std::int64_t stride, float* position,
                              std::int32_t* indices, float* weights, float* slopes) {
  axis_taps_of(axis, grid, grid_step, count, stride, position, indices, weights, slopes);
}
HWY_ATTR void axis_taps_double(const Axis& axis, const double* grid, std::int64_t grid_step,
                               std::int64_t count, std::int64_t stride, double* position,
                               std::int32_t* indices, double* weights, double* slopes) {
  axis_taps_of(axis, grid, grid_step, count, stride, position, indices, weights, slopes);
}

}  // namespace onnxgrad::ops::sample::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace onnxgrad::ops::sample {

HWY_EXPORT(axis_taps_float);
HWY_EXPORT(axis_taps_double);

void axis_taps(const Axis& axis, const float* grid, std::int64_t grid_step, std::int64_t count,
               std::int64_t stride, float* position, std::int32_t* indices, float* weights,
               float* slopes) {
  HWY_DYNAMIC_DISPATCH(axis_taps_float)
  (axis, grid, grid_step, count, stride, position, indices, weights, slopes);
}

void axis_taps(const Axis& axis, const double* grid, std::int64_t grid_step, std::int64_t count,
               std::int64_t stride, double* position, std::int32_t* indices, double* weights,
               double* slopes) {
  HWY_DYNAMIC_DISPATCH(axis_taps_double)
  (axis, grid, grid_step, count, stride, position, indices, weights, slopes);
}

}  // namespace onnxgrad::ops::sample
#endif  // HWY_ONCE
