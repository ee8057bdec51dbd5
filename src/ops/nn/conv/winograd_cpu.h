#ifndef ONNXGRAD_OPS_NN_CONV_WINOGRAD_CPU_H_
#define ONNXGRAD_OPS_NN_CONV_WINOGRAD_CPU_H_

#include <algorithm>
#include <cstdint>
#include <optional>

#include "device/cpu/gemm_tile.h"
#include "device/cpu/threads.h"
#include "ops/kernel_support.h"
#include "ops/nn/conv/direct_plan_cpu.h"
#include "ops/nn/conv/winograd_tiles_simd.h"

// Convolutions of 3 x 3 and 5 x 5 without strides by Winograd's algorithm (winograd_tiles_simd.h):
// a tile of 6 x 6 pixels is transformed into 36 values per channel, each of which takes part in a
// separate matrix product. winograd_result_cpu.cpp computes y or x, winograd_weight_cpu.cpp w.

namespace onnxgrad::ops::winograd {

/// Shape of images with the channels of all groups (there is one).
struct Images {
  std::int64_t channels = 0;
  std::int64_t padded = 0;  ///< channels rounded up to whole vectors
  std::int64_t height = 0;
  std::int64_t width = 0;

  std::int64_t size() const { return height * width; }
  std::int64_t elements() const { return channels * size(); }
};

/// Rows of tiles of one image.
struct TileRows {
  std::int64_t image = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

/// Units of several images, or of blocks of the tile rows of one.
struct Units : ConvUnits {
  std::int64_t tile_rows = 0, tile_columns = 0;
  std::int64_t rows = 0;  ///< tile rows per unit and image

  std::int64_t most_tiles() const { return images * rows * tile_columns; }
  /// Returns the rows of image `i` of a unit.
  TileRows rows_of(const Unit& unit, std::int64_t i) const {
    const std::int64_t begin = unit.block * rows;
    return {.image = unit.image + i, .begin = begin, .end = std::min(begin + rows, tile_rows)};
  }
  /// Returns the tiles of each image of a unit.
  std::int64_t image_tiles(const Unit& unit) const {
    const TileRows rows_of_first = rows_of(unit, 0);
    return (rows_of_first.end - rows_of_first.begin) * tile_columns;
  }
  /// Chooses units of at most `most` tiles if possible, and at least `threads` units.
  void split(std::int64_t most, std::int64_t threads);
};

/// Geometry shared by the computations of results and weights.
struct Geometry {
  device::Isa isa = {};
  std::int64_t kernel = 0;
  std::int64_t step = 0;  ///< results of a tile along an axis
  Images source = {};     ///< tensor that the taps read
  Images result = {};     ///< windows' side: y, or x in the backward pass
  std::int64_t pad_top = 0, pad_left = 0;
  Units units = {};

  std::int64_t tiles() const { return units.tile_rows * units.tile_columns; }
  std::int64_t all_tiles() const { return units.batch * tiles(); }
  /// Returns the largest number of source pixels that `rows` tile rows read.
  std::int64_t source_pixels(std::int64_t rows) const {
    return std::min(rows * step + kernel - 1, source.height) * source.width;
  }
  /// Returns the tile rows whose tiles are in scratch at a time: of all images, or of a unit.
  std::int64_t stored_rows(bool all_images) const {
    return all_images ? units.tile_rows : units.rows;
  }
  std::int64_t stored_tiles(bool all_images) const {
    return all_images ? all_tiles() : units.most_tiles();
  }
  std::int64_t result_pixels(std::int64_t rows) const {
    return std::min(rows * step, result.height) * result.width;
  }
};

/// Returns nullopt if the algorithm does not apply.
std::optional<Geometry> geometry_of(const ConvTask& task, std::int64_t lanes);

/// Returns the stride between the 36 values of `count` pixels, chosen to avoid conflicts in the
/// cache.
inline std::int64_t plane_of(std::int64_t count) { return aligned_count<float>(count) + 16; }

/// Calls part(worker, first, last) for ranges of [0, total) on the threads of the plan, with a
/// worker on the scratch of each thread.
template <class Worker, class Plan, class Part>
void on_workers(const Plan& plan, KernelArgs args, std::int64_t total, const Part& part) {
  device::on_threads(
      plan.threads, device::chunks_of(plan.threads, total), [&](const device::Chunk& chunk) {
        part(Worker(plan, args, chunk.thread), chunk.first(total), chunk.last(total));
      });
}

/// Zeroes a copy of `elements` before the first visit_tiles: the pixel for positions outside the
/// images and the channels that pad vectors.
inline void clear_copy(const Images& images, std::int64_t elements, float* copy) {
  std::fill_n(copy, images.padded == images.channels ? images.padded : elements, 0.0F);
}

/// Calls f(tile, pixels) for tiles of `extent` pixels along an axis with stride `step`; source
/// tiles start at (-pad_top, -pad_left). `copy` receives a pixel of zeros, then the pixels that are
/// read, channels-last.
template <class F>
void visit_tiles(const Images& images, const Geometry& geometry, std::int64_t extent,
                 const TileRows& rows, const float* tensor, float* copy, F&& f) {
  const bool is_source = extent == kTile;
  const std::int64_t top = is_source ? -geometry.pad_top : 0;
  const std::int64_t left = is_source ? -geometry.pad_left : 0;
  const std::int64_t low =
      std::clamp<std::int64_t>(rows.begin * geometry.step + top, 0, images.height);
  const std::int64_t high =
      std::clamp<std::int64_t>((rows.end - 1) * geometry.step + top + extent, low, images.height);
  const float* zeros = copy;
  const float* pixels = copy + images.padded;
  device::gemm_target<float>(geometry.isa)
      .transpose(tensor + rows.image * images.elements() + low * images.width, images.size(),
                 copy + images.padded, images.padded, images.channels, (high - low) * images.width);
  const float* tile[kPoints];
  std::int64_t index = 0;
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    for (std::int64_t column = 0; column < geometry.units.tile_columns; ++column, ++index) {
      const float** next = tile;
      for (std::int64_t i = 0; i < extent; ++i) {
        const std::int64_t h = row * geometry.step + top + i;
        for (std::int64_t j = 0; j < extent; ++j) {
          const std::int64_t w = column * geometry.step + left + j;
          const bool is_inside = h >= low && h < high && w >= 0 && w < images.width;
          *next++ = is_inside ? pixels + ((h - low) * images.width + w) * images.padded : zeros;
        }
      }
      f(index, static_cast<const float* const*>(tile));
    }
  }
}

/// Batched GEMM for one panel of columns: c[p][i, j] (+)= sum over k of a[p][...] * b[p][k, j] for
/// the 36 points p.
struct Gemms {
  const device::OffsetTarget<float>* target = nullptr;
  const std::int32_t* offsets = nullptr;  ///< offset in a of each k
  const float* zeros = nullptr;           ///< at least a panel's width
  const float* a = nullptr;
  std::int64_t a_plane = 0, a_row = 0;
  const float* b = nullptr;
  std::int64_t b_plane = 0;
  float* c = nullptr;
  std::int64_t c_plane = 0;
  std::int64_t rows = 0, steps = 0, width = 0;
  bool adds = false;

  void run() const;
};

/// Returns true if scratch of this size is in proportion to the operands.
bool is_affordable(std::int64_t scratch_bytes, const ConvShape& shape);

/// Number of vectors per panel with the lowest cycles(vectors).
struct PanelChoice {
  std::int64_t vectors = 1;
  double cycles = 0;
};
template <class F>
PanelChoice choose_vectors(std::int64_t most, const F& cycles) {
  PanelChoice best{.cycles = cycles(1)};
  for (std::int64_t v = 2; v <= most; ++v) {
    const double of_v = cycles(v);
    if (of_v < best.cycles) best = {.vectors = v, .cycles = of_v};
  }
  return best;
}

/// Estimates the cycles per k of the 36 matrix products with `rows` rows.
double product_cycles(const device::OffsetTarget<float>& target, std::int64_t rows,
                      std::int64_t columns, std::int64_t vectors);
/// Estimates the cycles of reading an image of source and result and of their transforms.
double image_cycles(const Geometry& geometry, std::int64_t lanes);

}  // namespace onnxgrad::ops::winograd

#endif  // ONNXGRAD_OPS_NN_CONV_WINOGRAD_CPU_H_
