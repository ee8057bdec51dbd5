#ifndef ONNXGRAD_OPS_NN_CONV_TILES_CPU_H_
#define ONNXGRAD_OPS_NN_CONV_TILES_CPU_H_

#include <array>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "device/cpu/offset_tile.h"
#include "onnxgrad/tensor.h"
#include "ops/nn/conv_source_cpu.h"
#include "ops/nn/conv_task.h"

// What the fast convolutions compute at plan time. conv_result_cpu.cpp computes y or x,
// conv_weight_cpu.cpp w.

namespace onnxgrad::ops {

/// Padded images of one unit of work stay in the L2 cache.
inline constexpr std::int64_t kCopyBytes = std::int64_t{1024} * 1024;
/// A padded image may have this many times the elements of the image and the result.
inline constexpr std::int64_t kLargestPadding = 16;
inline constexpr std::int64_t kPaddingAllowance = 65536;

/// `total` as `big_count` parts of `big`, then `small_count` of `big - 1`.
struct EvenSplit {
  std::int64_t big = 0;
  std::int64_t big_count = 0;
  std::int64_t small_count = 0;

  EvenSplit() = default;
  EvenSplit(std::int64_t total, std::int64_t largest);

  std::int64_t count() const { return big_count + small_count; }
  std::int64_t size(std::int64_t i) const { return i < big_count ? big : big - 1; }
};

/// The larger parts of an even split.
std::int64_t even_part(std::int64_t total, std::int64_t largest);
/// The same where the count should be a multiple of `parts`: of threads, which share it.
std::int64_t even_part_of(std::int64_t total, std::int64_t largest, std::int64_t parts);

/// Elements that fill whole cache lines.
template <class T>
std::int64_t whole_lines(std::int64_t elements) {
  constexpr std::int64_t kLine = 64 / static_cast<std::int64_t>(sizeof(T));
  return (elements + kLine - 1) / kLine * kLine;
}

/// Cycles of one k of an offset tile: multiply-adds, loads, or the latency of the last sum.
double tile_cycles(std::int64_t rows, std::int64_t vectors);

/// Channels of one group that are computed together, and columns of packed weights.
struct ChannelPanel {
  std::int64_t first = 0;
  std::int64_t width = 0;
};

/// Panels of up to `most * unit` channels that make up `total * unit` of them, in `parts` parts of
/// nearly as many channels each. `firsts`: the first panel of each part, and after the last.
std::vector<ChannelPanel> split_panels(std::int64_t total, std::int64_t most, std::int64_t unit,
                                       std::int64_t parts = 1,
                                       std::vector<std::int64_t>* firsts = nullptr);

/// The results that have the same taps, along each axis.
struct ResultPhase {
  std::array<AxisPhase, 3> axes;
  std::vector<std::int64_t> taps = {};     ///< positions in the kernel
  std::vector<std::int32_t> offsets = {};  ///< [source channels, taps]
  std::int64_t weights = 0;                ///< elements of a panel's columns before this phase's

  std::int64_t steps() const { return static_cast<std::int64_t>(offsets.size()); }
};

/// result[n, c, p] = bias[c] + sum over source channels and taps, for y from x or x from y.
template <class T>
struct ResultPlan {
  ConvTask task;
  const device::OffsetTarget<T>* target = nullptr;
  int threads = 1;
  std::int64_t batch = 0, groups = 0;
  std::int64_t source_channels = 0, result_channels = 0;  ///< per group
  std::int64_t source_size = 0, result_size = 0;          ///< positions of an image
  std::int64_t kernel_size = 0;
  std::array<std::int64_t, 3> result = {};
  std::vector<ResultPhase> phases;
  ConvSource source{{}, false};

  /// True: vectors of positions (PlaneTile), each result written at once. False: vectors of
  /// channels (OffsetTile); results gather as [position, channel] and are transposed at the end.
  bool in_planes = false;
  std::int64_t vectors = 1;  ///< of a tile
  std::vector<ChannelPanel> panels;
  std::int64_t padded_channels = 0;  ///< of all panels
  std::int64_t panel_steps = 0;      ///< of all phases
  double image_cycles = 0;           ///< estimate
  /// Weights and biases that are constant, packed at plan time; undefined: every call packs them.
  Tensor packed = {};

  std::int64_t images = 1;      ///< that one unit of work computes together
  std::size_t block_axis = 0;   ///< units are split along it,
  std::int64_t block = 0;       ///< into this many positions of every phase
  std::int64_t block_step = 1;  ///< results per such position
  std::int64_t blocks = 1;
  std::int64_t block_results = 0;              ///< results of the largest block
  std::int64_t parts = 1;                      ///< of the panels, each a unit of its own
  std::vector<std::int64_t> part_panels = {};  ///< the first of each part, and after the last

  // Scratch, in elements: the packed weights and biases of all groups unless they are constant,
  // then the threads' parts.
  std::int64_t bias_at = 0, packed_elements = 0, threads_at = 0, thread_elements = 0;
  std::int64_t sums_at = 0, spare_at = 0;  ///< in a thread's part

  std::int64_t group_weights() const { return padded_channels * panel_steps; }
  /// Units of a part: images, groups and blocks.
  std::int64_t part_units() const { return (batch + images - 1) / images * groups * blocks; }
  /// The panels of a part.
  std::pair<std::int64_t, std::int64_t> panels_of(std::int64_t part) const {
    const auto i = static_cast<std::size_t>(part);
    return {part_panels[i], part_panels[i + 1]};
  }
  std::int64_t scratch_bytes() const {
    return (threads_at + thread_elements * threads) * static_cast<std::int64_t>(sizeof(T));
  }
};

/// A convolution that is a product of matrices, 1 x 1 without strides, has no rows of pixels: each
/// image as one row. Others as they are.
ConvTask in_one_row(ConvTask task);

/// nullptr: padding would outweigh everything else.
template <class T>
std::shared_ptr<ResultPlan<T>> plan_conv_result(const ConvTask& given, int threads);

/// An estimate for the direct computation of the weights from one image, of float32.
double weight_image_cycles(const ConvTask& task, int threads);

/// Forward and backward data, float32 and float64.
opdef::KernelOffer offer_conv_result(const opdef::KernelRequest& request, const ConvTask& task);
/// Backward weight.
opdef::KernelOffer offer_conv_weight(const opdef::KernelRequest& request, const ConvTask& task);
/// All three where every channel is a group of its own, float32 and float64.
opdef::KernelOffer offer_depthwise(const opdef::KernelRequest& request, const ConvTask& task);
/// Forward and, without strides, backward data of those of 3 x 3 and 5 x 5, with vectors along
/// rows.
opdef::KernelOffer offer_depth_rows(const opdef::KernelRequest& request, const ConvTask& task);

/// The best of those above and of winograd's, for float32.
opdef::KernelOffer offer_conv_float(const opdef::KernelRequest& request, const ConvTask& task);
/// Images of 16 bits, some at a time in float32.
opdef::KernelOffer offer_conv_half(const opdef::KernelRequest& request, const ConvTask& task);
/// Both operands in bfloat16, multiplied as such; needs AMX.
opdef::KernelOffer offer_conv_bf16(const opdef::KernelRequest& request, const ConvTask& task);

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_NN_CONV_TILES_CPU_H_
