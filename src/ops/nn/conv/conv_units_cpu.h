#ifndef ONNXGRAD_OPS_NN_CONV_CONV_UNITS_CPU_H_
#define ONNXGRAD_OPS_NN_CONV_CONV_UNITS_CPU_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "device/cpu/scratch_layout.h"
#include "ops/kernel_support.h"
#include "ops/nn/conv/conv_task_cpu.h"

// Cuts of a convolution's work, which its kernels share.

namespace onnxgrad::ops {

using device::aligned_count;
using device::EvenSplit;
using device::ScratchArray;
using device::ScratchBlocks;
using device::ScratchLayout;
using device::split_evenly;

/// Units of work: for some channels of a group, some images, or a block of one. They are ordered so
/// that neighbours share what is most expensive to read: parts of the channels, whose weights they
/// share, slowest, then images, groups, and blocks, of whose source they share a part, fastest.
struct ConvUnits {
  std::int64_t batch = 0;
  std::int64_t images = 1;  ///< of a unit, at most
  std::int64_t groups = 1;
  std::int64_t blocks = 1;  ///< of an image
  std::int64_t parts = 1;   ///< of the channels

  struct Unit {
    std::int64_t part = 0, image = 0, images = 0, group = 0, block = 0;
  };

  std::int64_t image_units() const { return ceil_div(batch, images); }
  /// Returns the units of one part.
  std::int64_t part_units() const { return image_units() * groups * blocks; }
  std::int64_t count() const { return parts * part_units(); }
  Unit at(std::int64_t index) const {
    Unit unit{.block = index % blocks};
    index /= blocks;
    unit.group = index % groups;
    index /= groups;
    unit.image = index % image_units() * images;
    unit.part = index / image_units();
    unit.images = std::min(images, batch - unit.image);
    return unit;
  }
};

/// Largest ratio of a padded image's elements to those of the image and the result.
inline constexpr std::int64_t kLargestPadding = 16;
inline constexpr std::int64_t kPaddingAllowance = 65536;

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

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_NN_CONV_CONV_UNITS_CPU_H_
