#ifndef ONNXGRAD_OPS_NN_CONV_WINOGRAD_CPU_H_
#define ONNXGRAD_OPS_NN_CONV_WINOGRAD_CPU_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "device/cpu/gemm_tile.h"
#include "ops/nn/conv_tiles_cpu.h"
#include "ops/nn/winograd_tiles.h"

// Convolutions of 3 x 3 and 5 x 5 without strides by Winograd's algorithm (winograd_tiles.h): tiles
// of 6 x 6 pixels become 36 numbers per channel, each of which takes part in a matrix product of
// its own. conv_winograd_cpu.cpp computes y or x, conv_winograd_weight_cpu.cpp w.

namespace onnxgrad::ops::winograd {

/// Images with the channels of all groups (there is one).
struct Images {
  std::int64_t channels = 0;
  std::int64_t padded = 0;  ///< channels that fill vectors
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

/// Units of work, each several images or a part of the rows of tiles of one.
struct Units {
  std::int64_t batch = 0;
  std::int64_t tile_rows = 0, tile_columns = 0;
  std::int64_t images = 1;  ///< of a unit
  std::int64_t rows = 0;    ///< of tiles of a unit's image

  std::int64_t blocks() const { return (tile_rows + rows - 1) / rows; }
  std::int64_t count() const { return (batch + images - 1) / images * blocks(); }
  std::int64_t most_tiles() const { return images * rows * tile_columns; }
  /// Images of a unit, all of which have the rows of `part(unit, 0)`.
  std::int64_t parts(std::int64_t unit) const {
    return std::min(images, batch - unit / blocks() * images);
  }
  TileRows part(std::int64_t unit, std::int64_t i) const {
    const std::int64_t begin = unit % blocks() * rows;
    return {.image = unit / blocks() * images + i,
            .begin = begin,
            .end = std::min(begin + rows, tile_rows)};
  }
  std::int64_t tiles(std::int64_t unit) const {
    const TileRows rows_of = part(unit, 0);
    return parts(unit) * (rows_of.end - rows_of.begin) * tile_columns;
  }
  /// At most `most` tiles in a unit if possible, and at least `threads` units.
  void split(std::int64_t most, std::int64_t threads);
};

/// What both computations need.
struct Geometry {
  std::int64_t kernel = 0;
  std::int64_t step = 0;  ///< results of a tile along an axis
  Images source = {};     ///< what the taps read
  Images result = {};     ///< the windows' side: y, or x in the backward pass
  std::int64_t pad_top = 0, pad_left = 0;
  Units units = {};

  std::int64_t tiles() const { return units.tile_rows * units.tile_columns; }
  std::int64_t all_tiles() const { return units.batch * tiles(); }
  /// Pixels of the source that `rows` rows of tiles read, at most.
  std::int64_t source_pixels(std::int64_t rows) const {
    return std::min(rows * step + kernel - 1, source.height) * source.width;
  }
  /// What scratch holds at once: the tiles of all images, or of a unit.
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

/// nullopt: the algorithm cannot compute it.
std::optional<Geometry> geometry_of(const ConvTask& task, std::int64_t lanes);

/// Elements between the 36 values of `count` pixels: no two of them share the lines of a cache set.
inline std::int64_t plane_of(std::int64_t count) { return whole_lines<float>(count) + 16; }

/// Before the first visit_tiles with a copy of `elements`: zeros in the pixel outside of the images
/// and in the channels that only fill vectors.
inline void clear_copy(const Images& images, std::int64_t elements, float* copy) {
  std::fill_n(copy, images.padded == images.channels ? images.padded : elements, 0.0F);
}

/// Calls f(tile, pixels) for tiles of `extent` pixels along an axis, `step` apart, the first at
/// (-pad_top, -pad_left) if they are the source's. `copy` holds the pixels that are read, after a
/// pixel of zeros.
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
  device::gemm_target<float>().transpose(
      tensor + rows.image * images.elements() + low * images.width, images.size(),
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

/// c[p][i, j] (+)= sum over k of a[p][...] * b[p][k, j] for the 36 points p, for a panel of
/// columns.
struct Products {
  const device::OffsetTarget<float>* target = nullptr;
  const std::int32_t* offsets = nullptr;  ///< of k in a
  const float* zeros = nullptr;           ///< a panel's width
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

/// Whether scratch of this size is in proportion to the operands.
bool is_affordable(std::int64_t scratch_bytes, const ConvShape& shape);

/// The vectors of a panel for which cycles(vectors) is least.
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

/// Cycles of the 36 products with `rows` rows for one k.
double product_cycles(const device::OffsetTarget<float>& target, std::int64_t rows,
                      std::int64_t columns, std::int64_t vectors);
/// Cycles of reading an image of the source and of the result, with their transforms.
double image_cycles(const Geometry& geometry, std::int64_t lanes);

}  // namespace onnxgrad::ops::winograd

namespace onnxgrad::ops {

/// Winograd's algorithm, float32, where it takes less time.
opdef::KernelOffer offer_winograd_result(const opdef::KernelRequest& request, const ConvTask& task);
opdef::KernelOffer offer_winograd_weight(const opdef::KernelRequest& request, const ConvTask& task);

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_NN_CONV_WINOGRAD_CPU_H_
