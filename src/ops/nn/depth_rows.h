#ifndef ONNXGRAD_OPS_NN_DEPTH_ROWS_H_
#define ONNXGRAD_OPS_NN_DEPTH_ROWS_H_

#include <cstddef>
#include <cstdint>

// Depthwise convolutions with SIMD along rows of pixels, plane by plane. A plane is copied with
// zeros around it, its columns sorted by their remainder modulo the stride: each tap of the results
// of a row is then a vector at a fixed offset.

namespace onnxgrad::ops::depth {

/// Strides along a row of pixels that the copy can sort by.
inline constexpr std::int64_t kMostRowPhases = 2;
/// Elements that may be read and written after a copy.
inline constexpr std::int64_t kCopySlack = 64;

/// What does not change from plane to plane. Distances are in elements.
struct PlaneRows {
  // The copy: [slices, rows, phases, phase_columns], zeros where nothing is copied to.
  std::int64_t from_plane = 0, from_slice = 0, from_row = 0;
  std::int64_t from_first = 0;  ///< of the first element that is copied
  std::int64_t slices = 0, rows = 0, columns = 0;
  std::int64_t copy_plane = 0, copy_slice = 0, copy_row = 0;
  std::int64_t copy_first = 0;  ///< of the row with the first element
  std::int64_t left = 0;        ///< columns before the first element
  std::int64_t phases = 1, phase_columns = 0;

  // Results [result_slices, result_rows, result_columns].
  std::int64_t result_slices = 0, result_rows = 0, result_columns = 0;
  std::int64_t slice_step = 0, row_step = 0;  ///< in the copy, from result to result
  const std::int32_t* offsets = nullptr;      ///< [taps] from there
  std::int64_t taps = 0;
  std::int64_t square = 0;  ///< 3 or 5: the taps are rows of that many, one copy_row apart
  bool is_turned = false;   ///< the last weight belongs to the first tap
  bool finishes = false;    ///< as ConvTask
  double low = 0, high = 0;
};

/// Planes of consecutive channels.
template <class T>
struct Planes {
  const T* from = nullptr;
  const T* weights = nullptr;   ///< [count, taps]
  const T* bias = nullptr;      ///< [count]; nullptr: zeros
  const T* residual = nullptr;  ///< like `to`; nullptr: none
  T* to = nullptr;
  T* copy = nullptr;  ///< of `copies` planes
  std::int64_t copies = 1;
  std::int64_t count = 0;
};

/// to = the convolution of each plane, and what follows it.
template <class T>
void convolve_planes(const PlaneRows& rows, const Planes<T>& planes);

}  // namespace onnxgrad::ops::depth

#endif  // ONNXGRAD_OPS_NN_DEPTH_ROWS_H_
