#include <fmt/format.h>

#include "device/cpu/threads.h"
#include "ops/kernel_support.h"
#include "ops/nn/conv/winograd_cpu.h"

// w = sum over images and windows of y * x: for each tile of x and its tile of y, the 36 products
// of all channels of x with all channels of y, summed over the tiles and transformed once at the
// end. Either each thread adds its units of tiles to its own sums; or, if the images are smaller
// than the sums, all tiles are transformed first, and threads compute blocks of the weights, each a
// sum over all tiles. Start reading at run_weight.

namespace onnxgrad::ops::winograd {
namespace {

// Size of a unit's transformed tiles of x and y.
constexpr std::int64_t kWeightUnitBytes = std::int64_t{900} * 1024;
// Channels of x whose sums are transformed at once, at most, and at least where threads share them.
constexpr std::int64_t kRowBlock = 64;
constexpr std::int64_t kLeastRowBlock = 16;
constexpr double kWorthwhileWeight = 0.9;
// Cycles per vector of transformed sums.
constexpr double kSumCycles = 200;

struct WinogradWeightPlan {
  ConvTask task;
  Geometry geometry;  ///< source: x, result: y
  const device::OffsetTarget<float>* target = nullptr;
  int threads = 1;
  std::vector<ChannelPanel> panels;
  std::vector<std::int32_t> offsets;  ///< offset of each tile among x's
  bool stores_images = false;
  std::int64_t row_block = kRowBlock;  ///< channels of x in a block of the weights
  std::int64_t tile_plane = 0;         ///< stride of x's tiles of a unit, or of all images
  std::int64_t gradient_plane = 0;     ///< stride of y's tiles of a panel
  std::int64_t sum_plane = 0;          ///< stride of the sums of all channels of x, or of a block

  /// Tiles of all images, in memory shared by all threads, or of a unit, in a thread's.
  ScratchArray<float> tiles = {}, gradients = {};
  ScratchBlocks thread_scratch = {};
  std::int64_t x_copy_elements = 0, y_copy_elements = 0;
  ScratchArray<float> x_copy = {}, y_copy = {}, sums = {}, spare = {};
  ScratchArray<float> consumed = {};  ///< block passed to an update
  std::int64_t scratch_bytes = 0;

  std::int64_t num_panels() const { return static_cast<std::int64_t>(panels.size()); }
  std::int64_t widest() const { return panels.front().width; }
  std::int64_t taps() const { return geometry.kernel * geometry.kernel; }
  std::int64_t row_blocks() const { return ceil_div(geometry.source.channels, row_block); }
};

/// Work on the data of one chunk.
class WeightWorker {
 public:
  WeightWorker(const WinogradWeightPlan& plan, KernelArgs args, std::int64_t chunk)
      : plan_(plan),
        args_(args),
        x_(args.at<float>(plan.task.x)),
        y_(args.at<float>(plan.task.y)),
        shared_(args[plan.task.scratch]),
        own_(part_of(chunk)) {}

  void prepare_images(std::int64_t first, std::int64_t last) {
    clear_copies();
    const Geometry& geometry = plan_.geometry;
    for (std::int64_t i = first; i < last; ++i) {
      read_tiles({.image = i, .end = geometry.units.tile_rows}, i * geometry.tiles(),
                 plan_.tiles.in(shared_), plan_.gradients.in(shared_));
    }
  }

  /// Adds units of tiles to the sums of this chunk.
  void add_units(std::int64_t first, std::int64_t last) {
    clear_copies();
    const Units& units = plan_.geometry.units;
    std::fill_n(plan_.sums.in(own_), plan_.num_panels() * kPoints * plan_.sum_plane, 0.0F);
    for (std::int64_t index = first; index < last; ++index) {
      const ConvUnits::Unit unit = units.at(index);
      const std::int64_t of_image = units.image_tiles(unit);
      const std::int64_t tiles = unit.images * of_image;
      for (std::int64_t i = 0; i < unit.images; ++i) {
        read_tiles(units.rows_of(unit, i), i * of_image, plan_.tiles.in(own_),
                   plan_.gradients.in(own_));
      }
      for (std::int64_t p = 0; p < plan_.num_panels(); ++p) {
        multiply(p, plan_.tiles.in(own_), plan_.gradients.in(own_), tiles, 0,
                 plan_.geometry.source.channels, panel_sums(own_, p), /*adds=*/true);
      }
    }
  }

  /// Adds elements [first, last) of the other chunks' sums to those of the first one, in order.
  void add_sums(std::int64_t first, std::int64_t last) {
    float* to = plan_.sums.in(part_of(0));
    for (std::int64_t other = 1; other < plan_.threads; ++other) {
      const float* from = plan_.sums.in(part_of(other));
      for (std::int64_t i = first; i < last; ++i) to[i] += from[i];
    }
  }

  /// Writes blocks [first, last) of the weights from the sums of the first chunk.
  void write_sums(std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) {
      const std::int64_t p = i / plan_.row_blocks();
      const std::int64_t c = i % plan_.row_blocks() * plan_.row_block;
      write_block(p, c, panel_sums(part_of(0), p) + c * panel(p).width);
    }
  }

  /// Computes blocks [first, last) of the weights from the tiles of all images.
  void compute_blocks(std::int64_t first, std::int64_t last) {
    // Another thread may have prepared the images: multiply() reads zeros from this one's copy.
    std::fill_n(plan_.y_copy.in(own_), plan_.geometry.result.padded, 0.0F);
    for (std::int64_t i = first; i < last; ++i) {
      const std::int64_t p = i / plan_.row_blocks();
      const std::int64_t c = i % plan_.row_blocks() * plan_.row_block;
      float* sums = plan_.sums.in(own_);
      multiply(p, plan_.tiles.in(shared_), plan_.gradients.in(shared_), plan_.geometry.all_tiles(),
               c, rows_from(c), sums, /*adds=*/false);
      write_block(p, c, sums);
    }
  }

 private:
  void clear_copies() {
    const Geometry& geometry = plan_.geometry;
    clear_copy(geometry.source, plan_.x_copy_elements, plan_.x_copy.in(own_));
    clear_copy(geometry.result, plan_.y_copy_elements, plan_.y_copy.in(own_));
  }

  // Tiles of y that stay in the L1 cache while channels of x are traversed.
  static constexpr std::int64_t kProductTiles = 128;

  const ChannelPanel& panel(std::int64_t p) const {
    return plan_.panels[static_cast<std::size_t>(p)];
  }
  std::byte* part_of(std::int64_t chunk) const { return plan_.thread_scratch.in(shared_, chunk); }
  float* panel_sums(std::byte* part, std::int64_t p) const {
    return plan_.sums.in(part) + p * kPoints * plan_.sum_plane;
  }
  std::int64_t rows_from(std::int64_t c) const {
    return std::min(plan_.row_block, plan_.geometry.source.channels - c);
  }

  void read_tiles(const TileRows& rows, std::int64_t first, float* tiles, float* gradients) {
    const Geometry& geometry = plan_.geometry;
    const std::int64_t padded = geometry.source.padded;
    visit_tiles(geometry.source, geometry, kTile, rows, x_, plan_.x_copy.in(own_),
                [&](std::int64_t tile, const float* const* pixels) {
                  transform_source(plan_.task.isa, pixels, padded, tiles + (first + tile) * padded,
                                   plan_.tile_plane);
                });
    visit_tiles(geometry.result, geometry, geometry.step, rows, y_, plan_.y_copy.in(own_),
                [&](std::int64_t tile, const float* const* pixels) {
                  gradient_panels(pixels, first + tile, gradients);
                });
  }

  void gradient_panels(const float* const* pixels, std::int64_t tile, float* to) {
    const Geometry& geometry = plan_.geometry;
    const float* of_panel[kPoints];
    for (const ChannelPanel& one : plan_.panels) {
      for (std::int64_t i = 0; i < geometry.step * geometry.step; ++i) {
        of_panel[i] = pixels[i] + one.first;
      }
      transform_gradient(plan_.task.isa, geometry.kernel, of_panel, one.width,
                         to + tile * one.width, plan_.gradient_plane);
      to += kPoints * plan_.gradient_plane;
    }
  }

  void multiply(std::int64_t p, const float* tiles, const float* gradients, std::int64_t count,
                std::int64_t c, std::int64_t rows,
                float* sums,  // NOLINT(readability-non-const-parameter): Gemms::c
                bool adds) {
    const std::int64_t width = panel(p).width;
    const float* of_panel = gradients + p * kPoints * plan_.gradient_plane;
    for (std::int64_t k = 0; k < count; k += kProductTiles) {
      Gemms{.target = plan_.target,
            .offsets = plan_.offsets.data() + k,
            .zeros = plan_.y_copy.in(own_),  // pixel of zeros, at least a panel wide
            .a = tiles + c,
            .a_plane = plan_.tile_plane,
            .a_row = 1,
            .b = of_panel + k * width,
            .b_plane = plan_.gradient_plane,
            .c = sums,
            .c_plane = plan_.sum_plane,
            .rows = rows,
            .steps = std::min(kProductTiles, count - k),
            .width = width,
            .adds = adds || k > 0}
          .run();
    }
  }

  /// Writes the weights of x's channels from c on.
  void write_block(std::int64_t p, std::int64_t c, const float* sums) {
    const Geometry& geometry = plan_.geometry;
    const std::int64_t taps = plan_.taps();
    const std::int64_t width = panel(p).width;
    const std::int64_t count = rows_from(c);
    float* spare = plan_.spare.in(own_);  // [channel, tap, width]
    for (std::int64_t i = 0; i < count; ++i) {
      write_weights(plan_.task.isa, geometry.kernel, sums + i * width, plan_.sum_plane, width,
                    spare + i * taps * width, width);
    }
    finish_weights<float>(plan_.task, args_,
                          {.from = spare,
                           .from_row = width,
                           .channel = panel(p).first,
                           .channels = std::min(width, geometry.result.channels - panel(p).first),
                           .column = c * taps,
                           .columns = count * taps},
                          plan_.consumed.in(own_));
  }

  const WinogradWeightPlan& plan_;
  KernelArgs args_;
  const float* x_;
  const float* y_;
  std::byte* shared_;
  std::byte* own_;
};

void run_weight(const WinogradWeightPlan& plan, KernelArgs args) {
  const std::int64_t blocks = plan.num_panels() * plan.row_blocks();
  const auto on_threads = [&](std::int64_t total, const auto& part) {
    on_workers<WeightWorker>(plan, args, total, part);
  };
  if (plan.stores_images) {
    on_threads(plan.geometry.units.batch,
               [](WeightWorker worker, std::int64_t first, std::int64_t last) {
                 worker.prepare_images(first, last);
               });
    on_threads(blocks, [](WeightWorker worker, std::int64_t first, std::int64_t last) {
      worker.compute_blocks(first, last);
    });
    return;
  }
  const std::int64_t units = plan.geometry.units.count();
  device::on_threads(plan.threads, [&](const device::Chunk& chunk) {
    WeightWorker(plan, args, chunk.index).add_units(chunk.first(units), chunk.last(units));
  });
  if (plan.threads > 1) {
    on_threads(plan.num_panels() * kPoints * plan.sum_plane,
               [](WeightWorker worker, std::int64_t first, std::int64_t last) {
                 worker.add_sums(first, last);
               });
  }
  on_threads(blocks, [](WeightWorker worker, std::int64_t first, std::int64_t last) {
    worker.write_sums(first, last);
  });
}

void place_scratch(WinogradWeightPlan& plan) {
  const Geometry& geometry = plan.geometry;
  const Images& x = geometry.source;
  const Images& y = geometry.result;
  const std::int64_t width = plan.widest();
  const std::int64_t rows = geometry.stored_rows(plan.stores_images);
  const std::int64_t tiles = geometry.stored_tiles(plan.stores_images);
  plan.tile_plane = plane_of(tiles * x.padded);
  plan.gradient_plane = plane_of(tiles * width);
  plan.sum_plane =
      plane_of((plan.stores_images ? std::min(plan.row_block, x.channels) : x.channels) * width);
  const std::int64_t sums = kPoints * plan.sum_plane * (plan.stores_images ? 1 : plan.num_panels());
  ScratchLayout all, own;
  plan.x_copy_elements = (geometry.source_pixels(rows) + 1) * x.padded;
  plan.y_copy_elements = (geometry.result_pixels(rows) + 1) * y.padded;
  plan.x_copy = own.reserve<float>(plan.x_copy_elements);
  plan.y_copy = own.reserve<float>(plan.y_copy_elements);
  ScratchLayout& of_tiles = plan.stores_images ? all : own;
  plan.tiles = of_tiles.reserve<float>(kPoints * plan.tile_plane);
  plan.gradients = of_tiles.reserve<float>(kPoints * plan.gradient_plane * plan.num_panels());
  plan.sums = own.reserve<float>(sums);
  plan.spare = own.reserve<float>(plan.taps() * std::min(plan.row_block, x.channels) * width);
  if (plan.task.update != nullptr) plan.consumed = own.reserve<float>(kConsumedColumns * width);
  plan.thread_scratch = all.reserve_blocks(plan.threads, own);
  plan.scratch_bytes = all.size_bytes();
}

/// Estimates the cycles per image with panels of this many vectors.
double weight_cycles(const WinogradWeightPlan& plan, std::int64_t vectors) {
  const Geometry& geometry = plan.geometry;
  const std::int64_t lanes = plan.target->lanes;
  const auto columns = geometry.result.padded / lanes;
  const double products = product_cycles(*plan.target, geometry.source.channels, columns, vectors);
  const double sums = kSumCycles * static_cast<double>(geometry.source.channels * columns) /
                      static_cast<double>(geometry.units.batch);
  return static_cast<double>(geometry.tiles()) * products + image_cycles(geometry, lanes) + sums;
}

}  // namespace
}  // namespace onnxgrad::ops::winograd

namespace onnxgrad::ops {

KernelOffer offer_winograd_weight(const KernelRequest& request, const ConvTask& task) {
  using namespace winograd;
  const auto& target = device::offset_target<float>(task.isa);
  const auto geometry = geometry_of(task, target.lanes);
  if (!geometry) return KernelOffer::decline("not 3 x 3 or 5 x 5 without strides");
  auto plan = std::make_shared<winograd::WinogradWeightPlan>();
  plan->task = task;
  plan->geometry = *geometry;
  plan->target = &target;
  plan->threads = request.threads;
  const PanelChoice best =
      choose_vectors(target.max_vectors, [&](std::int64_t v) { return weight_cycles(*plan, v); });
  if (best.cycles > kWorthwhileWeight * weight_image_cycles(task, request.threads)) {
    return KernelOffer::decline("sums tap by tap take less time");
  }
  const Images& x = geometry->source;
  const Images& y = geometry->result;
  plan->panels = split_panels(y.padded / target.lanes, best.vectors, target.lanes);
  plan->stores_images =
      geometry->all_tiles() * (x.padded + y.padded) < x.padded * y.padded * request.threads;
  while (plan->threads > 1 && plan->row_block > kLeastRowBlock &&
         plan->num_panels() * plan->row_blocks() < device::kChunksPerThread * plan->threads) {
    plan->row_block /= 2;
  }
  const std::int64_t most =
      kWeightUnitBytes / static_cast<std::int64_t>(sizeof(float)) / kPoints / (x.padded + y.padded);
  plan->geometry.units.split(std::max<std::int64_t>(most, 1), request.threads);
  const std::int64_t tiles = plan->geometry.stored_tiles(plan->stores_images);
  for (std::int64_t i = 0; i < tiles; ++i) {
    plan->offsets.push_back(static_cast<std::int32_t>(i * x.padded));
  }
  place_scratch(*plan);
  if (!is_affordable(plan->scratch_bytes, task.shape)) {
    return KernelOffer::decline("takes too much memory");
  }
  opdef::PreparedKernel kernel;
  kernel.fn = kKernel<run_weight>;
  kernel.scratch_bytes = plan->scratch_bytes;
  kernel.label = fmt::format("winograd {}x{}, {}", geometry->kernel, geometry->kernel,
                             plan->stores_images ? "all images" : "all weights");
  kernel.flops = task.shape.flops();
  kernel.data = std::move(plan);
  return {.kernel = std::move(kernel), .declined = {}};
}

}  // namespace onnxgrad::ops
