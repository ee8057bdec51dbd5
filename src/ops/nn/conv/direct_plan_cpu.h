#ifndef ONNXGRAD_OPS_NN_CONV_DIRECT_PLAN_CPU_H_
#define ONNXGRAD_OPS_NN_CONV_DIRECT_PLAN_CPU_H_

#include <array>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "device/cpu/offset_tile.h"
#include "device/cpu/scratch_layout.h"
#include "onnxgrad/tensor.h"
#include "ops/kernel_support.h"
#include "ops/nn/conv/conv_task_cpu.h"
#include "ops/nn/conv/direct_source_cpu.h"

// Plans of the fast convolutions. direct_result_cpu.cpp computes y or x, direct_weight_cpu.cpp w.

namespace onnxgrad::ops {

/// Size of the padded images of one unit of work, which stay in the L2 cache.
inline constexpr std::int64_t kCopyBytes = std::int64_t{1024} * 1024;
/// Largest ratio of a padded image's elements to those of the image and the result.
inline constexpr std::int64_t kLargestPadding = 16;
inline constexpr std::int64_t kPaddingAllowance = 65536;

using device::aligned_count;
using device::EvenSplit;
using device::ScratchArray;
using device::ScratchBlocks;
using device::ScratchLayout;
using device::split_evenly;

/// Returns the size of the larger parts of an even split whose count is a multiple of `parts`, the
/// number of threads, if possible.
std::int64_t even_part_of(std::int64_t total, std::int64_t largest, std::int64_t parts);

/// Estimates the cycles of an offset tile per k: multiply-adds, loads, or the latency of an
/// accumulator.
double tile_cycles(std::int64_t rows, std::int64_t vectors);

/// Channels of one group that are computed together; their weights are the columns of a packed
/// panel.
struct ChannelPanel {
  std::int64_t first = 0;
  std::int64_t width = 0;
};

/// Splits `total * unit` channels into panels of up to `most * unit`, grouped into `parts` parts
/// with nearly equal numbers of channels. `firsts` receives the first panel of each part, then the
/// number of panels.
std::vector<ChannelPanel> split_panels(std::int64_t total, std::int64_t most, std::int64_t unit,
                                       std::int64_t parts = 1,
                                       std::vector<std::int64_t>* firsts = nullptr);

/// Results that share their taps along each axis.
struct ResultPhase {
  std::array<AxisPhase, 3> axes;
  std::vector<std::int64_t> taps = {};     ///< positions in the kernel
  std::vector<std::int32_t> offsets = {};  ///< [source channels, taps]
  std::int64_t weights = 0;                ///< offset in the weights of a panel, per column

  std::int64_t steps() const { return static_cast<std::int64_t>(offsets.size()); }
};

/// Plan of y from x, or x from y: result[n, c, p] = bias[c] + sum over source channels and taps.
template <class T>
struct ResultPlan {
  ConvTask task;
  const device::OffsetTarget<T>* target = nullptr;
  int threads = 1;
  std::int64_t batch = 0, groups = 0;
  std::int64_t source_channels = 0, result_channels = 0;  ///< per group
  std::int64_t source_size = 0, result_size = 0;          ///< positions per image
  std::int64_t kernel_size = 0;
  std::array<std::int64_t, 3> result = {};
  std::vector<ResultPhase> phases;
  ConvSource source{{}, false};

  /// True: vectors of positions (PlaneTile), each result is written directly. False: vectors of
  /// channels (OffsetTile); sums are stored as [position, channel] and transposed at the end.
  bool in_planes = false;
  std::int64_t vectors = 1;  ///< vectors per tile
  std::vector<ChannelPanel> panels;
  std::int64_t padded_channels = 0;  ///< sum over all panels
  std::int64_t panel_steps = 0;      ///< sum over all phases
  double image_cycles = 0;           ///< estimate
  /// Constant weights and biases, packed at plan time; undefined: every call packs them.
  Tensor packed = {};

  std::int64_t images = 1;      ///< per unit of work
  std::size_t block_axis = 0;   ///< axis along which units are split
  std::int64_t block = 0;       ///< positions of every phase per block
  std::int64_t block_step = 1;  ///< results per such position
  std::int64_t blocks = 1;
  std::int64_t block_results = 0;              ///< results of the largest block
  std::int64_t parts = 1;                      ///< parts of the panels; each makes separate units
  std::vector<std::int64_t> part_panels = {};  ///< first panel of each part, then their number

  /// Packed weights and biases of all groups, in scratch unless they are constant.
  ScratchArray<T> weights = {}, bias = {};
  std::int64_t packed_bytes = 0;
  ScratchBlocks thread_scratch = {};
  ScratchArray<T> copy = {}, sums = {}, spare = {};
  std::int64_t scratch_bytes = 0;

  std::int64_t group_weights() const { return padded_channels * panel_steps; }
  /// Returns the units of a part: images, groups and blocks.
  std::int64_t part_units() const { return ceil_div(batch, images) * groups * blocks; }
  /// Returns the range of panels of a part.
  std::pair<std::int64_t, std::int64_t> panels_of(std::int64_t part) const {
    const auto i = static_cast<std::size_t>(part);
    return {part_panels[i], part_panels[i + 1]};
  }
};

/// Flattens the images of a 1 x 1 convolution without strides, which is a matrix product, to one
/// row each; returns other tasks unchanged.
ConvTask in_one_row(ConvTask task);

/// Plans y from x, or x from y; nullptr if the work on padding would outweigh everything else.
template <class T>
std::shared_ptr<ResultPlan<T>> plan_conv_result(const ConvTask& given, int threads);

/// Lays out the scratch, again once the weights are packed.
template <class T>
void place_result_scratch(ResultPlan<T>& plan);

/// Estimates the cycles of the direct computation of the weight gradient from one float32 image.
double weight_image_cycles(const ConvTask& task, int threads);

/// Offers forward and backward data, float32 and float64.
KernelOffer offer_conv_result(const KernelRequest& request, const ConvTask& task);
/// Offers backward weight.
KernelOffer offer_conv_weight(const KernelRequest& request, const ConvTask& task);
/// Offers all three computations of depthwise convolutions, float32 and float64.
KernelOffer offer_depthwise(const KernelRequest& request, const ConvTask& task);
/// Offers forward and, without strides, backward data of 3 x 3 and 5 x 5 depthwise convolutions,
/// with vectors along rows.
KernelOffer offer_depth_rows(const KernelRequest& request, const ConvTask& task);

/// Offers the best of the kernels above and Winograd's, for float32.
KernelOffer offer_conv_float(const KernelRequest& request, const ConvTask& task);
/// Offers kernels for f16/bf16 images, which are converted to float32 a few at a time.
KernelOffer offer_conv_f16(const KernelRequest& request, const ConvTask& task);
/// Offers kernels that multiply two bfloat16 operands directly; needs AMX.
KernelOffer offer_conv_bf16(const KernelRequest& request, const ConvTask& task);

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_NN_CONV_DIRECT_PLAN_CPU_H_
