#ifndef ONNXGRAD_OPS_NN_CONV_CONV_SOURCE_CPU_H_
#define ONNXGRAD_OPS_NN_CONV_CONV_SOURCE_CPU_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "device/isa.h"
#include "ops/nn/conv/conv_operands.h"

// Source tensor of the fast convolutions. Along one axis, result position first + step * q reads,
// for each of its taps, source position offset + source_step * q:
//   forward:        result = window o, source = input i:  i = o * stride + j * dilation - pad
//   backward data:  result = input i, source = window o:  o = (i + pad - j * dilation) / stride,
//                   if that is whole: positions i with the same remainder modulo stride share taps.
// With zeros around the source no tap is outside, and every tap of a result is at a fixed offset in
// memory from the result's position: no im2col matrix is materialised.

namespace onnxgrad::ops {

/// Planes whose distance is a multiple of this map to few sets of the cache; one more cache line
/// between them avoids that.
inline constexpr std::int64_t kAliasingElements = 128;

struct AxisTap {
  std::int64_t tap = 0;
  std::int64_t offset = 0;
};

/// Result positions along one axis that share their taps.
struct AxisPhase {
  std::int64_t first = 0;
  std::int64_t step = 1;
  std::int64_t count = 0;
  std::int64_t source_step = 1;
  std::vector<AxisTap> taps = {};
};

AxisPhase forward_phase(const WindowAxis& axis);
/// Returns one phase per remainder that has positions.
std::vector<AxisPhase> backward_phases(const WindowAxis& axis);

/// Phases of the three axes: results that share their taps.
using AxisPhases = std::array<AxisPhase, 3>;

/// Returns all combinations of the axes' phases: one for a forward pass or weight gradients; none
/// if a backward pass has too many, most of whose results have no tap.
std::vector<AxisPhases> phases_of(const ConvOperands& task);

/// Range [low, high) of source positions that are read along an axis with `size` positions.
struct SourceAxis {
  std::int64_t size = 0;
  std::int64_t low = 0;
  std::int64_t high = 0;

  void cover(const AxisPhase& phase);
  std::int64_t padded() const { return high - low; }
  bool is_inside() const { return low >= 0 && high <= size; }
};

/// Layout of the channels [.., depth, height, width] that the taps read.
class ConvSource {
 public:
  /// Plans the layout. Each axis must cover all its phases. With `column_step` > 1, a copy sorts
  /// the columns of a row by their remainder modulo column_step, so that the columns of results
  /// that far apart are adjacent.
  ConvSource(const std::array<SourceAxis, 3>& axes, bool must_copy, std::int64_t column_step = 1);

  /// Returns the elements from one channel to the next.
  std::int64_t plane() const { return plane_; }
  /// Returns the element of source position (depth, height, width), relative to the result of
  /// copy().
  std::int64_t offset(std::int64_t depth, std::int64_t height, std::int64_t width) const {
    const std::int64_t row = (depth * strides_[0]) + (height * strides_[1]) + origin_;
    if (column_step_ == 1) return row + width;
    const std::int64_t column = width - axes_[2].low;
    return row + (column % column_step_ * columns_) + (column / column_step_);
  }
  std::int64_t stride(std::size_t axis) const { return strides_[axis]; }
  /// Returns the elements from one result to the next, if they are `source_step` source positions
  /// apart.
  std::int64_t step(std::size_t axis, std::int64_t source_step) const {
    return axis == 2 ? source_step / column_step_ : source_step * strides_[axis];
  }
  /// Returns false if the tensor is read in place.
  bool copies() const { return copies_; }
  /// Returns the elements of a padded copy of `channels` channels, with room for vector loads at
  /// any position.
  std::int64_t copy_elements(std::int64_t channels) const;

  /// Fills a copy with zeros; called once before the first copy().
  template <class T>
  void clear(std::int64_t channels, T* copy) const;
  /// Copies from: [channels, depth, height, width], dense. Always writes the same set of elements.
  template <class T>
  void copy(device::Isa isa, const T* from, std::int64_t channels, T* to) const;

 private:
  std::array<SourceAxis, 3> axes_;
  std::array<std::int64_t, 3> strides_ = {};
  std::int64_t plane_ = 0;
  std::int64_t origin_ = 0;
  std::int64_t column_step_ = 1;
  std::int64_t columns_ = 0;  ///< per row and remainder
  bool copies_ = false;
};

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_NN_CONV_CONV_SOURCE_CPU_H_
