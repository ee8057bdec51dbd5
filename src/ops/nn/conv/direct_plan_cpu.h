#ifndef ONNXGRAD_OPS_NN_CONV_DIRECT_PLAN_CPU_H_
#define ONNXGRAD_OPS_NN_CONV_DIRECT_PLAN_CPU_H_

#include <array>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "device/cpu/offset_tile.h"
#include "onnxgrad/tensor.h"
#include "ops/nn/conv/conv_source_cpu.h"
#include "ops/nn/conv/conv_units_cpu.h"

// Plans of the fast convolutions. direct_result_cpu.cpp computes y or x, direct_weight_cpu.cpp w.

namespace onnxgrad::ops {

/// Size of the padded images of one unit of work, which stay in the L2 cache.
inline constexpr std::int64_t kCopyBytes = std::int64_t{1024} * 1024;
/// Results that share their taps along each axis.
struct ResultPhase {
  AxisPhases axes;
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
  std::int64_t groups = 0;
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

  ConvUnits units;                             ///< parts: of the panels
  std::size_t block_axis = 0;                  ///< axis along which units are split
  std::int64_t block = 0;                      ///< positions of every phase per block
  std::int64_t block_step = 1;                 ///< results per such position
  std::int64_t block_results = 0;              ///< results of the largest block
  std::vector<std::int64_t> part_panels = {};  ///< first panel of each part, then their number

  /// Packed weights and biases of all groups, in scratch unless they are constant.
  ScratchArray<T> weights = {}, bias = {};
  std::int64_t packed_bytes = 0;
  ScratchBlocks thread_scratch = {};
  ScratchArray<T> copy = {}, sums = {}, spare = {};
  std::int64_t scratch_bytes = 0;

  std::int64_t group_weights() const { return padded_channels * panel_steps; }
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

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_NN_CONV_DIRECT_PLAN_CPU_H_
