#ifndef ONNXGRAD_OPS_NN_CONV_DIRECT_WEIGHT_PLAN_CPU_H_
#define ONNXGRAD_OPS_NN_CONV_DIRECT_WEIGHT_PLAN_CPU_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "ops/nn/conv/direct_plan_cpu.h"

// The plan of a weight gradient of Conv by direct convolution; see direct_weight_cpu.cpp.

namespace onnxgrad::ops {

template <class T>
struct WeightPlan {
  ConvTask task;
  const device::OffsetTarget<T>* target = nullptr;
  int threads = 1;
  std::int64_t groups = 0;
  std::int64_t channels = 0, y_channels = 0;  ///< per group
  std::int64_t taps = 0;
  std::int64_t input = 0, windows = 0;  ///< positions per image
  std::array<AxisPhase, 3> axes;
  ConvSource source{{}, false};
  std::vector<std::int64_t> tap_offsets;
  /// Rows of the GEMMs are channels and taps, of an im2col matrix, instead of channels.
  bool has_matrix = false;
  /// Offsets of the windows of a unit's images; 0, 1, 2, .. in the im2col matrix [channels * taps,
  /// windows].
  std::vector<std::int32_t> places;
  std::int64_t matrix_row = 0;
  std::vector<ChannelPanel> panels;
  std::int64_t padded_channels = 0;
  double window_cycles = 0;  ///< estimate
  ConvUnits units;
  std::size_t block_axis = 0;     ///< axis along which units are split
  std::int64_t block = 0;         ///< windows per block
  std::int64_t unit_windows = 0;  ///< windows of the largest unit
  /// Threads split the panels instead of the images: if there are more weights than pixels.
  bool shares_panels = false;
  std::vector<std::int64_t> thread_panels = {0,
                                             0};  ///< first panel of each thread, then their number
  ScratchBlocks thread_scratch = {};
  ScratchArray<T> copy = {}, columns = {}, matrix = {}, spare = {};
  ScratchArray<T> all_sums = {};  ///< sums of each thread, or of all if threads split the panels
  std::int64_t scratch_bytes = 0;

  std::int64_t rows() const { return channels * taps; }
  std::int64_t sums() const { return groups * rows() * padded_channels; }
  /// Returns the sums that a thread adds to.
  T* thread_sums(std::byte* scratch, std::int64_t thread) const {
    return all_sums.in(shares_panels ? scratch : thread_scratch.in(scratch, thread));
  }
  /// Returns the range of panels that a thread computes.
  std::pair<std::int64_t, std::int64_t> panels_of(std::int64_t thread) const {
    const std::size_t i = shares_panels ? static_cast<std::size_t>(thread) : 0;
    return {thread_panels[i], thread_panels[i + 1]};
  }
  /// Returns the offset of a panel's sums, [channels, taps, width].
  std::int64_t panel_sums(std::int64_t group, const ChannelPanel& panel) const {
    return rows() * (group * padded_channels + panel.first);
  }
  std::int64_t image_stride() const {
    return source.copies() ? source.copy_elements(channels) : groups * channels * input;
  }
};

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_NN_CONV_DIRECT_WEIGHT_PLAN_CPU_H_
