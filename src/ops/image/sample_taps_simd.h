#ifndef ONNXGRAD_OPS_IMAGE_SAMPLE_TAPS_SIMD_H_
#define ONNXGRAD_OPS_IMAGE_SAMPLE_TAPS_SIMD_H_

#include <cstdint>

#include "device/isa.h"

// Interpolation taps, with SIMD: the elements of an image that a point reads, and their weights,
// for GridSample and its gradients. Points come in blocks, whose arrays have rows of `stride`
// entries, a multiple of kPadding. Entries behind the last point are written too.

namespace onnxgrad::ops::sample {

enum class Mode : std::uint8_t { kNearest, kLinear, kCubic };
enum class Padding : std::uint8_t { kZeros, kBorder, kReflection };

inline constexpr std::int64_t kPadding = 16;

/// Returns the number of taps along one axis.
constexpr std::int64_t taps_of(Mode mode) {
  return mode == Mode::kNearest ? 1 : mode == Mode::kLinear ? 2 : 4;
}

struct Axis {
  std::int64_t size = 1;  ///< at least 1, below 2^24
  Mode mode = Mode::kLinear;
  Padding padding = Padding::kZeros;
  bool align_corners = false;
};

/// Patches of 2 x 2 elements, one per point, for linear interpolation on two axes, y and x, of at
/// least two elements each. Rows 0 and 1 of `weights` and `slopes` belong to the upper and lower
/// row of the patch, rows 2 and 3 to its left and right column.
template <class T>
struct Patches {
  std::int32_t* first = nullptr;  ///< [stride]: indices of the upper left elements
  T* weights = nullptr;           ///< [4, stride]
  T* slopes = nullptr;            ///< [4, stride]: derivatives of the weights; nullptr: not wanted
  T* elements = nullptr;          ///< [2, stride, 2]: rows of the patches, gathered by the caller
  std::int64_t stride = 0;
};

/// Functions of one instruction set for T.
template <class T>
struct TapTable {
  /// columns[a, p] = grid[p, a] for p in [0, count), then zeros. `rank` is 2 or 3.
  void (*split)(const T* grid, std::int64_t rank, std::int64_t count, std::int64_t stride,
                T* columns) = nullptr;
  /// Finds the taps of points at grid[p] in [-1, 1] on the axis: tap k reads index indices[k, p]
  /// with weight weights[k, p], whose derivative with respect to the grid is slopes[k, p] (nullptr:
  /// not wanted). A tap in the zero padding has index 0 and weight 0. NaN points are outside.
  void (*find)(const Axis& axis, const T* grid, std::int64_t count, std::int64_t stride,
               std::int32_t* indices, T* weights, T* slopes) = nullptr;
  /// Combines each of the `taps` taps in `indices` and `weights` with each of the `own` taps of a
  /// further axis of size `size`, in place.
  void (*combine)(std::int64_t taps, const std::int32_t* more, const T* factors, std::int64_t own,
                  std::int64_t size, std::int64_t count, std::int64_t stride, std::int32_t* indices,
                  T* weights) = nullptr;
  /// total[p] += part[p] * a[p] * b[p] * c[p]; b and c may be nullptr.
  void (*add_products)(const T* part, const T* a, const T* b, const T* c, std::int64_t count,
                       T* total) = nullptr;
  /// y[p] = the sum over 4 x 4 taps of weights[t, p] * x[indices[t, p]], where weights[4 r + k, p]
  /// = rows[r, p] * columns[k, p]. Fast if the taps of a row are contiguous.
  void (*sum_cubic)(const T* x, const std::int32_t* indices, const T* weights, const T* rows,
                    const T* columns, std::int64_t count, std::int64_t stride, T* y) = nullptr;

  /// Finds the patches of the points at columns [2, stride], x first.
  void (*find_patches)(const Axis& y, const Axis& x, const T* columns, std::int64_t count,
                       const Patches<T>& patches) = nullptr;
  /// to[p] = the weighted sum of patch p.
  void (*sum_patches)(const Patches<T>& patches, std::int64_t count, T* to) = nullptr;
  /// shares[p] = dy[p] times the weights of patch p, row by row: [stride, 4].
  void (*share_patches)(const Patches<T>& patches, const T* dy, std::int64_t count,
                        T* shares) = nullptr;
  /// sums[:, p] += dy[p] times the elements of patch p, row by row: [4, stride].
  void (*add_patches)(const Patches<T>& patches, const T* dy, std::int64_t count,
                      T* sums) = nullptr;
  /// dgrid[p] = the derivatives with respect to x and y of the weighted sums of `sums`: [stride,
  /// 2].
  void (*patch_slopes)(const Patches<T>& patches, const T* sums, std::int64_t count,
                       T* dgrid) = nullptr;
};

/// Returns the table of an instruction set.
template <class T>
const TapTable<T>& tap_table(device::Isa isa);

}  // namespace onnxgrad::ops::sample

#endif  // ONNXGRAD_OPS_IMAGE_SAMPLE_TAPS_SIMD_H_
