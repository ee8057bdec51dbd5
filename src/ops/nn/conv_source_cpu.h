#ifndef ONNXGRAD_OPS_NN_CONV_SOURCE_CPU_H_
#define ONNXGRAD_OPS_NN_CONV_SOURCE_CPU_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ops/nn/conv.h"

// How the fast convolutions read a tensor. Along one axis, result position first + step * q takes,
// for each of its taps, source position offset + source_step * q:
//   forward:        result = window o, source = input i:  i = o * stride + j * dilation - pad
//   backward data:  result = input i, source = window o:  o = (i + pad - j * dilation) / stride,
//                   if that is whole: positions i with the same remainder modulo stride share taps.
// With the source padded by zeros no tap falls outside, and every tap of a result is at a fixed
// offset in memory from the result's position: no matrix of windows is ever materialised.

namespace onnxgrad::ops {

/// Planes a multiple of this apart map to the same few sets of the cache: one more line spreads
/// them.
inline constexpr std::int64_t kAliasingElements = 128;

struct AxisTap {
  std::int64_t tap = 0;
  std::int64_t offset = 0;
};

/// Result positions along one axis that have the same taps.
struct AxisPhase {
  std::int64_t first = 0;
  std::int64_t step = 1;
  std::int64_t count = 0;
  std::int64_t source_step = 1;
  std::vector<AxisTap> taps = {};
};

AxisPhase forward_phase(const WindowAxis& axis);
/// One per remainder that has positions.
std::vector<AxisPhase> backward_phases(const WindowAxis& axis);

/// Source positions [low, high) are read along an axis that has `size` of them.
struct SourceAxis {
  std::int64_t size = 0;
  std::int64_t low = 0;
  std::int64_t high = 0;

  void cover(const AxisPhase& phase);
  std::int64_t padded() const { return high - low; }
  bool is_inside() const { return low >= 0 && high <= size; }
};

/// Channels [.., depth, height, width] as the taps read them.
class ConvSource {
 public:
  /// Every phase of every axis must have been covered. With `column_step` > 1 a copy has the
  /// columns of a row sorted by their remainder modulo that: those of results that far apart are
  /// adjacent.
  ConvSource(const std::array<SourceAxis, 3>& axes, bool must_copy, std::int64_t column_step = 1);

  /// Elements from one channel to the next.
  std::int64_t plane() const { return plane_; }
  /// Of source position (depth, height, width) relative to the result of copy().
  std::int64_t offset(std::int64_t depth, std::int64_t height, std::int64_t width) const {
    const std::int64_t row = (depth * strides_[0]) + (height * strides_[1]) + origin_;
    if (column_step_ == 1) return row + width;
    const std::int64_t column = width - axes_[2].low;
    return row + (column % column_step_ * columns_) + (column / column_step_);
  }
  std::int64_t stride(std::size_t axis) const { return strides_[axis]; }
  /// From one result to the next, where these are `source_step` source positions apart.
  std::int64_t step(std::size_t axis, std::int64_t source_step) const {
    return axis == 2 ? source_step / column_step_ : source_step * strides_[axis];
  }
  /// False: the tensor is read in place.
  bool copies() const { return copies_; }
  /// Elements of a padded copy of `channels` channels; vectors may be read at any position in it.
  std::int64_t copy_elements(std::int64_t channels) const;

  /// Fills a copy with zeros; once before the first copy().
  template <class T>
  void clear(std::int64_t channels, T* copy) const;
  /// from: [channels, depth, height, width], dense. Writes the same elements each time.
  template <class T>
  void copy(const T* from, std::int64_t channels, T* to) const;

 private:
  std::array<SourceAxis, 3> axes_;
  std::array<std::int64_t, 3> strides_ = {};
  std::int64_t plane_ = 0;
  std::int64_t origin_ = 0;
  std::int64_t column_step_ = 1;
  std::int64_t columns_ = 0;  ///< of a row with the same remainder
  bool copies_ = false;
};

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_NN_CONV_SOURCE_CPU_H_
