#ifndef ONNXGRAD_OPS_NN_CONV_DEPTHWISE_ROWS_SIMD_H_
#define ONNXGRAD_OPS_NN_CONV_DEPTHWISE_ROWS_SIMD_H_

#include <cstddef>
#include <cstdint>

#include "device/isa.h"

// Depthwise convolutions of 3 x 3 and 5 x 5 with SIMD along rows of pixels, plane by plane, read in
// place: masked loads yield the zeros around a plane.

namespace onnxgrad::ops::depth {

/// Window geometry: result (i, j) reads, for tap (r, c), pixel (i * stride - top + r, j * stride -
/// left + c).
struct PlaneShape {
  std::int64_t rows = 0, columns = 0;
  std::int64_t result_rows = 0, result_columns = 0;
  std::int64_t kernel = 3;  ///< 3 or 5
  std::int64_t stride = 1;  ///< 1 or 2
  std::int64_t top = 0, left = 0;
  bool is_turned = false;  ///< kernel rotated by 180 degrees
  bool finishes = false;   ///< has an epilogue, see ConvTask
  double low = 0, high = 0;

  std::int64_t size() const { return rows * columns; }
  std::int64_t result_size() const { return result_rows * result_columns; }
};

/// Operands: planes of consecutive channels.
template <class T>
struct Planes {
  const T* from = nullptr;
  const T* weights = nullptr;   ///< [count, kernel, kernel]
  const T* bias = nullptr;      ///< [count]; nullptr: zeros
  const T* residual = nullptr;  ///< like `to`; nullptr: none
  T* to = nullptr;
  std::int64_t count = 0;
};

/// Returns true if this instruction set has masked loads as fast as full ones.
bool has_plane_rows(device::Isa isa);

/// Computes to = the convolution of each plane, then the epilogue.
template <class T>
void convolve_planes(device::Isa isa, const PlaneShape& shape, const Planes<T>& planes);

}  // namespace onnxgrad::ops::depth

#endif  // ONNXGRAD_OPS_NN_CONV_DEPTHWISE_ROWS_SIMD_H_
