#ifndef ONNXGRAD_OPS_NN_CONV_AMX_COPIES_CPU_H_
#define ONNXGRAD_OPS_NN_CONV_AMX_COPIES_CPU_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "ops/kernel_support.h"
#include "ops/nn/conv/conv_source_cpu.h"
#include "ops/nn/conv/conv_task_cpu.h"

// Convolutions of bfloat16 images as AMX matrix products (device/cpu/tap_gemms.h). Images are
// copied with zeros after each row and each plane: the neighbour of a position is then at a fixed
// offset, across the edges too, and a tap is the product of one weight matrix with the positions of
// all images of a unit, as one contiguous line. Results between rows and planes are computed and
// discarded. amx_result_cpu.cpp computes y or x, amx_weight_cpu.cpp w.

namespace onnxgrad::ops::conv_bf16 {

/// Layout of a copy along one axis: positions with the same remainder modulo `step` are adjacent.
struct CopiedAxis {
  std::int64_t size = 0;  ///< size of the tensor
  std::int64_t step = 1;  ///< source positions from one result to the next
  std::int64_t low = 0;   ///< range of positions that are read, for one remainder
  std::int64_t high = 0;
  std::int64_t pitch = 0;  ///< positions in a copy, including the zeros after them

  CopiedAxis(std::int64_t given, const std::vector<AxisPhase>& phases);
  /// Returns how many of the positions remainder, remainder + step, ... are in the tensor.
  std::int64_t count(std::int64_t remainder) const {
    return remainder < size ? (size - remainder - 1) / step + 1 : 0;
  }
};

/// Layout of the padded copy of a channel: a line for each remainder that taps read, with all
/// images of a unit.
class Copies {
 public:
  Copies() = default;
  Copies(const std::array<std::vector<AxisPhase>, 3>& phases,
         const std::array<std::int64_t, 3>& sizes);

  std::int64_t plane() const { return axes_[0].pitch * axes_[1].pitch * axes_[2].pitch; }
  /// Returns the number of elements of a line that does not depend on the number of images.
  std::int64_t fixed() const;
  std::int64_t lines() const { return static_cast<std::int64_t>(remainders_.size()); }
  void set_images(std::int64_t images) { line_ = images * plane() + fixed(); }
  /// Returns the elements from one channel to the next.
  std::int64_t channel() const { return lines() * line_; }
  /// Returns the element of the first position of a line.
  std::int64_t origin() const { return before_; }
  /// Returns the element of the source at these tap offsets, relative to a result's position.
  std::int64_t offset(std::int64_t d, std::int64_t h, std::int64_t w) const;
  /// Returns the number of positions from the first result of a phase to the last, for so many
  /// images.
  std::int64_t span(const std::array<std::int64_t, 3>& counts, std::int64_t images) const;
  std::int64_t row_pitch() const { return axes_[2].pitch; }
  std::int64_t depth_pitch() const { return axes_[1].pitch * axes_[2].pitch; }

  /// Calls f(to, from, count, step) for all rows of an image: `count` positions of a channel, from
  /// element `from` on with stride `step`, become adjacent in the copy from element `to` on.
  template <class F>
  void for_rows(std::int64_t image, const F& f) const {
    for (std::size_t i = 0; i < remainders_.size(); ++i) {
      const auto& [rd, rh, rw] = remainders_[i];
      const std::int64_t line = static_cast<std::int64_t>(i) * line_ + before_ + image * plane();
      const std::int64_t columns = axes_[2].count(rw);
      const std::int64_t rows = axes_[1].count(rh);
      const bool is_dense = axes_[1].step == 1 && axes_[2].step == 1 && axes_[2].pitch == columns;
      for (std::int64_t d = 0; d < axes_[0].count(rd); ++d) {
        const std::int64_t from = (rd + d * axes_[0].step) * axes_[1].size;
        const std::int64_t to = line + d * depth_pitch();
        if (is_dense) {
          f(to, from * columns, rows * columns, std::int64_t{1});
          continue;
        }
        for (std::int64_t h = 0; h < rows; ++h) {
          f(to + h * axes_[2].pitch, (from + rh + h * axes_[1].step) * axes_[2].size + rw, columns,
            axes_[2].step);
        }
      }
    }
  }

 private:
  std::array<std::int64_t, 3> remainder_of(std::int64_t d, std::int64_t h, std::int64_t w) const;

  std::vector<CopiedAxis> axes_;
  std::vector<std::array<std::int64_t, 3>> remainders_;
  std::int64_t before_ = 0, after_ = 0;  ///< zeros around the images of a line
  std::int64_t line_ = 0;
};

/// Returns true if both operands are bfloat16; the result and residual may be float32.
bool has_types(const KernelRequest& request, const ConvTask& task);

/// Offers the kernel of a plan, unless its scratch is too large.
KernelOffer offer_of(opdef::KernelFn fn, std::shared_ptr<const void> plan, const ConvShape& shape,
                     std::int64_t images, std::int64_t scratch_bytes);

namespace result {
/// Offers a kernel for forward and backward data.
KernelOffer offer(const KernelRequest& request, const ConvTask& given);
}  // namespace result
namespace weight {
/// Offers a kernel for backward weight.
KernelOffer offer(const KernelRequest& request, const ConvTask& given);
}  // namespace weight

}  // namespace onnxgrad::ops::conv_bf16

#endif  // ONNXGRAD_OPS_NN_CONV_AMX_COPIES_CPU_H_
