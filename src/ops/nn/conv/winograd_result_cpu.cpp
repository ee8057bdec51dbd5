#include "device/cpu/threads.h"
#include "ops/kernel_support.h"
#include "ops/nn/conv/winograd_cpu.h"

#include <fmt/format.h>

#include <numeric>

// y = conv(x, w), or x = conv^T(y, w) as the convolution with the kernel rotated by 180 degrees.
// Either the weights of all channels are transformed first and threads compute units of tiles; or,
// if the images are smaller than the weights, the tiles of all images are transformed first, and
// threads compute panels of result channels, transforming their weights block by block, which then
// stay in the cache. Start reading at run_result.

namespace onnxgrad::ops::winograd {
namespace {

// Size of a unit's transformed tiles and of their products with a panel.
constexpr std::int64_t kUnitBytes = std::int64_t{900} * 1024;
// Source channels per block of the matrix products.
constexpr std::int64_t kBlockChannels = 64;
// Maximum size of transformed constant weights that are kept in memory.
constexpr std::int64_t kPackedBytes = std::int64_t{4} << 20;
// Largest ratio of the estimated time of Winograd's algorithm to that of the direct one.
constexpr double kWorthwhile = 0.9;
// Cycles per vector of transformed weights, and per element of a transposed tensor.
constexpr double kWeightCycles = 200;
constexpr double kPackedCycles = 60;  // per vector of packed weights that is read
constexpr double kTransposedCycles = 0.6;
constexpr double kTileCycles = 140;

struct WinogradResultPlan {
  ConvTask task;
  Geometry geometry;
  const device::OffsetTarget<float>* target = nullptr;
  int threads = 1;
  std::vector<ChannelPanel> panels;
  std::vector<std::int32_t> offsets;  ///< 0, 1, 2, ..
  bool stores_images = false;
  bool is_constant = false;     ///< weights are packed at plan time
  std::int64_t tile_plane = 0;  ///< stride of transformed tiles of a unit, or of all images
  std::int64_t sum_plane = 0;
  std::int64_t weight_plane = 0;  ///< stride of the weights of all channels, or of a block
  Tensor packed = {};             ///< transformed weights of all panels, if constant and small

  /// Arrays of all threads: tiles of all images, or weights of all panels, if these are stored.
  ScratchArray<float> all_tiles = {}, weights = {}, bias = {};
  ScratchBlocks thread_scratch = {};
  std::int64_t copy_elements = 0;
  ScratchArray<float> copy = {}, tiles = {}, sums = {}, block = {}, spare = {};
  std::int64_t scratch_bytes = 0;

  std::int64_t widest() const { return std::ranges::max(panels, {}, &ChannelPanel::width).width; }
  std::int64_t taps() const { return geometry.kernel * geometry.kernel; }
  /// Returns the size of the transformed weights of all panels.
  std::int64_t all_weights() const {
    return kPoints * weight_plane * static_cast<std::int64_t>(panels.size());
  }
  bool is_forward() const { return task.pass == ConvTask::Pass::kForward; }
};

/// Worker of one thread.
class Worker {
 public:
  Worker(const WinogradResultPlan& plan, KernelArgs args, std::int64_t thread)
      : plan_(plan),
        args_(args),
        source_(args.at<float>(plan.is_forward() ? plan.task.x : plan.task.y)),
        weights_(args.at<float>(plan.task.w)),
        result_(args.at<float>(plan.is_forward() ? plan.task.y : plan.task.x)),
        given_bias_(args.find<float>(plan.task.bias)),
        shared_(args[plan.task.scratch]),
        own_(plan.thread_scratch.in(shared_, thread)) {}

  /// Stores the bias, padded by zeros, after a panel of zeros.
  void prepare_bias() {
    const Images& images = plan_.geometry.result;
    float* bias = plan_.bias.in(shared_);
    std::fill_n(bias, plan_.widest() + images.padded, 0.0F);
    if (given_bias_ != nullptr) std::copy_n(given_bias_, images.channels, bias + plan_.widest());
  }

  /// Transforms blocks [first, last) of source channels, panel by panel; `to` is that of the first
  /// panel.
  void prepare_weights(std::int64_t first, std::int64_t last, float* to) {
    const std::int64_t blocks = channel_blocks();
    for (std::int64_t i = first; i < last; ++i) {
      const ChannelPanel& panel = plan_.panels[static_cast<std::size_t>(i / blocks)];
      const std::int64_t c = i % blocks * kBlockChannels;
      transform_block(panel, c, to + i / blocks * kPoints * plan_.weight_plane + c * panel.width);
    }
  }
  std::int64_t channel_blocks() const {
    return ceil_div(plan_.geometry.source.channels, kBlockChannels);
  }

  void prepare_images(std::int64_t first, std::int64_t last) {
    clear_copy(plan_.geometry.source, plan_.copy_elements, plan_.copy.in(own_));
    const std::int64_t tiles = plan_.geometry.tiles();
    for (std::int64_t i = first; i < last; ++i) {
      read_tiles({.image = i, .end = plan_.geometry.units.tile_rows}, i * tiles,
                 plan_.all_tiles.in(shared_));
    }
  }

  void run_units(std::int64_t first, std::int64_t last) {
    clear_copy(plan_.geometry.source, plan_.copy_elements, plan_.copy.in(own_));
    const Units& units = plan_.geometry.units;
    const std::int64_t channels = plan_.geometry.source.channels;
    for (std::int64_t index = first; index < last; ++index) {
      const ConvUnits::Unit unit = units.at(index);
      const std::int64_t of_image = units.image_tiles(unit);
      const std::int64_t tiles = unit.images * of_image;
      for (std::int64_t i = 0; i < unit.images; ++i) {
        read_tiles(units.rows_of(unit, i), i * of_image, plan_.tiles.in(own_));
      }
      for (std::size_t p = 0; p < plan_.panels.size(); ++p) {
        const float* weights = panel_weights(static_cast<std::int64_t>(p));
        for (std::int64_t c = 0; c < channels; c += kProductChannels) {
          const std::int64_t count = std::min(kProductChannels, channels - c);
          multiply(plan_.panels[p], plan_.tiles.in(own_), tiles, c, count,
                   weights + c * plan_.panels[p].width);
        }
        for (std::int64_t i = 0; i < unit.images; ++i) {
          write(plan_.panels[p], units.rows_of(unit, i), i * of_image);
        }
      }
    }
  }

  float* shared_weights() const { return plan_.weights.in(shared_); }

  void run_panels(std::int64_t first, std::int64_t last) {
    const Geometry& geometry = plan_.geometry;
    const std::int64_t channels = geometry.source.channels;
    float* block = plan_.block.in(own_);
    for (std::int64_t p = first; p < last; ++p) {
      const ChannelPanel& panel = plan_.panels[static_cast<std::size_t>(p)];
      for (std::int64_t c = 0; c < channels; c += kBlockChannels) {
        if (!plan_.packed.is_defined()) transform_block(panel, c, block);
        const float* weights =
            plan_.packed.is_defined() ? panel_weights(p) + c * panel.width : block;
        multiply(panel, plan_.all_tiles.in(shared_), geometry.all_tiles(), c,
                 std::min(kBlockChannels, channels - c), weights);
      }
      for (std::int64_t i = 0; i < geometry.units.batch; ++i) {
        write(panel, {.image = i, .end = geometry.units.tile_rows}, i * geometry.tiles());
      }
    }
  }

 private:
  // Rows of packed weights that stay in the L1 cache while tiles are traversed.
  static constexpr std::int64_t kProductChannels = 128;

  const float* panel_weights(std::int64_t panel) const {
    const float* first =
        plan_.packed.is_defined() ? plan_.packed.data<float>().data() : shared_weights();
    return first + panel * kPoints * plan_.weight_plane;
  }

  void read_tiles(const TileRows& rows, std::int64_t first, float* to) {
    const Images& images = plan_.geometry.source;
    visit_tiles(images, plan_.geometry, kTile, rows, source_, plan_.copy.in(own_),
                [&](std::int64_t tile, const float* const* pixels) {
                  transform_source(plan_.task.isa, pixels, images.padded,
                                   to + (first + tile) * images.padded, plan_.tile_plane);
                });
  }

  /// Computes G w G^T of a block of source channels from c on.
  void transform_block(const ChannelPanel& panel, std::int64_t c, float* to) {
    const Geometry& geometry = plan_.geometry;
    const std::int64_t taps = plan_.taps();
    const std::int64_t width = panel.width;
    const std::int64_t channels = std::min(width, geometry.result.channels - panel.first);
    const std::int64_t count = std::min(kBlockChannels, geometry.source.channels - c);
    float* spare = plan_.spare.in(own_);  // [channel, tap, width]
    const auto transpose = device::gemm_target<float>(plan_.task.isa).transpose;
    if (plan_.is_forward()) {
      const std::int64_t row = geometry.source.channels * taps;
      clear_rest(spare, panel, channels, count * taps);
      transpose(weights_ + panel.first * row + c * taps, row, spare, width, channels, count * taps);
    } else {
      clear_rest(spare, panel, channels, count * taps);
      for (std::int64_t i = 0; i < count; ++i) {
        transpose(weights_ + ((c + i) * geometry.result.channels + panel.first) * taps, taps,
                  spare + i * taps * width, width, channels, taps);
      }
    }
    const std::int64_t turned = plan_.is_forward() ? 0 : (taps - 1) * width;
    const std::int64_t step = plan_.is_forward() ? width : -width;
    for (std::int64_t i = 0; i < count; ++i) {
      transform_weights(plan_.task.isa, geometry.kernel, spare + i * taps * width + turned, step,
                        width, to + i * width, plan_.weight_plane);
    }
  }

  /// Zeroes the columns after the last channel, which a wider panel may have written.
  static void clear_rest(float* spare, const ChannelPanel& panel, std::int64_t channels,
                         std::int64_t rows) {
    if (channels == panel.width) return;
    for (std::int64_t i = 0; i < rows; ++i) {
      std::fill(spare + i * panel.width + channels, spare + (i + 1) * panel.width, 0.0F);
    }
  }

  void multiply(const ChannelPanel& panel, const float* tiles, std::int64_t rows, std::int64_t c,
                std::int64_t count, const float* weights) {
    const std::int64_t row = plan_.geometry.source.padded;
    Gemms{.target = plan_.target,
          .offsets = plan_.offsets.data(),
          .zeros = plan_.bias.in(shared_),
          .a = tiles + c,
          .a_plane = plan_.tile_plane,
          .a_row = row,
          .b = weights,
          .b_plane = plan_.weight_plane,
          .c = plan_.sums.in(own_),
          .c_plane = plan_.sum_plane,
          .rows = rows,
          .steps = count,
          .width = panel.width,
          .adds = c > 0}
        .run();
  }

  /// Writes the results of the tiles from `first` on, first as pixels and then as planes.
  void write(const ChannelPanel& panel, const TileRows& rows, std::int64_t first) {
    const Geometry& geometry = plan_.geometry;
    const Images& images = geometry.result;
    const std::int64_t top = rows.begin * geometry.step;
    const std::int64_t bottom = std::min(rows.end * geometry.step, images.height);
    float* pixels = plan_.spare.in(own_);
    const float* bias = plan_.bias.in(shared_) + plan_.widest() + panel.first;
    const float* sums = plan_.sums.in(own_) + first * panel.width;
    float* tile[kPoints];
    for (std::int64_t row = rows.begin; row < rows.end; ++row) {
      for (std::int64_t column = 0; column < geometry.units.tile_columns; ++column) {
        float** next = tile;
        for (std::int64_t h = row * geometry.step; h < (row + 1) * geometry.step; ++h) {
          for (std::int64_t w = column * geometry.step; w < (column + 1) * geometry.step; ++w) {
            const bool is_inside = h < bottom && w < images.width;
            *next++ = is_inside ? pixels + ((h - top) * images.width + w) * panel.width : nullptr;
          }
        }
        write_results(plan_.task.isa, geometry.kernel, sums, plan_.sum_plane, bias, panel.width,
                      tile);
        sums += panel.width;
      }
    }
    const std::int64_t start =
        (rows.image * images.channels + panel.first) * images.size() + top * images.width;
    const std::int64_t count = (bottom - top) * images.width;
    const std::int64_t channels = std::min(panel.width, images.channels - panel.first);
    device::gemm_target<float>(plan_.task.isa)
        .transpose(pixels, panel.width, result_ + start, images.size(), count, channels);
    finish_results<float>(plan_.task, args_, start, channels, images.size(), count);
  }

  const WinogradResultPlan& plan_;
  KernelArgs args_;
  const float* source_;
  const float* weights_;
  float* result_;
  const float* given_bias_;
  std::byte* shared_;
  std::byte* own_;
};

void run_result(const WinogradResultPlan& plan, KernelArgs args) {
  Worker(plan, args, 0).prepare_bias();
  const auto on_threads = [&](std::int64_t total, const auto& part) {
    on_workers<Worker>(plan, args, total, part);
  };
  const auto panels = static_cast<std::int64_t>(plan.panels.size());
  if (plan.stores_images) {
    on_threads(plan.geometry.units.batch, [](Worker worker, std::int64_t first, std::int64_t last) {
      worker.prepare_images(first, last);
    });
    on_threads(panels, [](Worker worker, std::int64_t first, std::int64_t last) {
      worker.run_panels(first, last);
    });
    return;
  }
  if (!plan.packed.is_defined()) {
    const std::int64_t blocks = panels * Worker(plan, args, 0).channel_blocks();
    on_threads(blocks, [](Worker worker, std::int64_t first, std::int64_t last) {
      worker.prepare_weights(first, last, worker.shared_weights());
    });
  }
  on_threads(plan.geometry.units.count(), [](Worker worker, std::int64_t first, std::int64_t last) {
    worker.run_units(first, last);
  });
}

void place_scratch(WinogradResultPlan& plan) {
  const Geometry& geometry = plan.geometry;
  const Images& source = geometry.source;
  const std::int64_t width = plan.widest();
  const std::int64_t rows = geometry.stored_rows(plan.stores_images);
  const std::int64_t tiles = geometry.stored_tiles(plan.stores_images);
  plan.tile_plane = plane_of(tiles * source.padded);
  plan.sum_plane = plane_of(tiles * width);
  const bool is_packed = plan.packed.is_defined();
  const bool has_blocks = plan.stores_images && !is_packed;
  plan.weight_plane = plane_of((has_blocks ? kBlockChannels : source.channels) * width);
  ScratchLayout own;
  plan.copy_elements = (geometry.source_pixels(rows) + 1) * source.padded;
  plan.copy = own.reserve<float>(plan.copy_elements);
  if (!plan.stores_images) plan.tiles = own.reserve<float>(kPoints * plan.tile_plane);
  plan.sums = own.reserve<float>(kPoints * plan.sum_plane);
  if (has_blocks) plan.block = own.reserve<float>(kPoints * plan.weight_plane);
  plan.spare = own.reserve<float>(
      std::max(plan.taps() * kBlockChannels, geometry.result_pixels(rows)) * width);
  ScratchLayout all;
  if (plan.stores_images) {
    plan.all_tiles = all.reserve<float>(kPoints * plan.tile_plane);
  } else if (!is_packed) {
    plan.weights = all.reserve<float>(plan.all_weights());
  }
  plan.bias = all.reserve<float>(width + geometry.result.padded);
  plan.thread_scratch = all.reserve_blocks(plan.threads, own);
  plan.scratch_bytes = all.size_bytes();
}

/// Returns true if the transformed weights are small enough to be kept in addition to the constant
/// ones.
bool are_small(const Geometry& geometry) {
  return kPoints * geometry.source.channels * geometry.result.padded *
             static_cast<std::int64_t>(sizeof(float)) <=
         kPackedBytes;
}

/// Transforms constant weights.
void pack_weights(const Tensor& weights, WinogradResultPlan& plan) {
  const std::int64_t width = plan.widest();
  plan.weight_plane = plane_of(plan.geometry.source.channels * width);
  plan.packed = Tensor::zeros(DataType::kFloat32, {plan.all_weights()});
  place_scratch(plan);
  std::vector<std::byte> scratch(static_cast<std::size_t>(plan.scratch_bytes));
  std::vector<std::byte*> args(static_cast<std::size_t>(plan.task.scratch) + 1, nullptr);
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast): kernels only read their inputs
  auto* values = const_cast<float*>(weights.data<float>().data());
  args[static_cast<std::size_t>(plan.task.w)] = reinterpret_cast<std::byte*>(values);
  args.back() = scratch.data();
  Worker worker(plan, args.data(), 0);
  worker.prepare_weights(0, worker.channel_blocks() * static_cast<std::int64_t>(plan.panels.size()),
                         plan.packed.mutable_data<float>().data());
}

/// Estimates the cycles of one image with panels of this many vectors.
double result_cycles(const WinogradResultPlan& plan, std::int64_t vectors) {
  const Geometry& geometry = plan.geometry;
  const std::int64_t lanes = plan.target->lanes;
  const auto tiles = static_cast<double>(geometry.tiles());
  const std::int64_t rows = std::min<std::int64_t>(geometry.all_tiles(), 24);
  const std::int64_t result_vectors = geometry.result.padded / lanes;
  const double products = product_cycles(*plan.target, rows, result_vectors, vectors) /
                          static_cast<double>(rows) * static_cast<double>(geometry.source.channels);
  const double weights = (plan.is_constant ? kPackedCycles : kWeightCycles) *
                         static_cast<double>(geometry.source.channels) *
                         static_cast<double>(result_vectors) /
                         static_cast<double>(geometry.units.batch);
  return tiles * products + image_cycles(geometry, lanes) + weights;
}

}  // namespace

void Units::split(std::int64_t most, std::int64_t threads) {
  const std::int64_t of_image = tile_rows * tile_columns;
  rows = tile_rows;
  images = std::clamp<std::int64_t>(most / of_image, 1, std::max<std::int64_t>(batch / threads, 1));
  images = even_part_of(batch, images, threads);
  if (images > 1) return;
  const std::int64_t bands = std::max(ceil_div(of_image, most), ceil_div(threads, batch));
  const std::int64_t of_band = std::max<std::int64_t>(tile_rows / std::min(bands, tile_rows), 1);
  rows = split_evenly(tile_rows, of_band).big;
  blocks = ceil_div(tile_rows, rows);
}

std::optional<Geometry> geometry_of(const ConvTask& task, std::int64_t lanes) {
  const ConvShape& shape = task.shape;
  const WindowAxis& height = shape.axes[1];
  const WindowAxis& width = shape.axes[2];
  const std::int64_t kernel = width.kernel;
  const bool fits = shape.spatial_rank == 2 && shape.groups == 1 && (kernel == 3 || kernel == 5) &&
                    height.kernel == kernel && height.stride == 1 && width.stride == 1 &&
                    height.dilation == 1 && width.dilation == 1;
  if (!fits || shape.flops() == 0) return std::nullopt;
  const auto padded = [&](std::int64_t channels) { return round_up(channels, lanes); };
  const Images x{.channels = shape.in_channels,
                 .padded = padded(shape.in_channels),
                 .height = height.input,
                 .width = width.input};
  const Images y{.channels = shape.out_channels,
                 .padded = padded(shape.out_channels),
                 .height = height.output,
                 .width = width.output};
  const bool turned = task.pass == ConvTask::Pass::kBackwardData;
  Geometry geometry{.isa = task.isa, .kernel = kernel, .step = results_per_tile(kernel)};
  geometry.source = turned ? y : x;
  geometry.result = turned ? x : y;
  geometry.pad_top = turned ? kernel - 1 - height.pad_begin : height.pad_begin;
  geometry.pad_left = turned ? kernel - 1 - width.pad_begin : width.pad_begin;
  geometry.units.batch = shape.batch;
  const auto tiles = [&](std::int64_t results) { return ceil_div(results, geometry.step); };
  geometry.units.tile_rows = tiles(geometry.result.height);
  geometry.units.tile_columns = tiles(geometry.result.width);
  geometry.units.rows = geometry.units.tile_rows;
  return geometry;
}

bool is_affordable(std::int64_t scratch_bytes, const ConvShape& shape) {
  constexpr std::int64_t kAllowance = std::int64_t{16} << 20;
  constexpr std::int64_t kLargestPart = 4;
  const std::int64_t operands = shape.batch * (shape.in_channels * shape.input_size() +
                                               shape.out_channels * shape.output_size()) +
                                shape.in_channels * shape.out_channels * shape.kernel_size();
  return scratch_bytes <=
         kAllowance + kLargestPart * operands * static_cast<std::int64_t>(sizeof(float));
}

void Gemms::run() const {
  const std::int64_t vectors = width / target->lanes;
  const auto* functions = target->offset_tile[vectors - 1];
  const EvenSplit split = split_evenly(rows, target->max_rows[vectors - 1]);
  for (std::int64_t p = 0; p < kPoints; ++p) {
    device::OffsetTile<float> tile{.a = a + p * a_plane,
                                   .offsets = offsets,
                                   .a_row = a_row,
                                   .b = b + p * b_plane,
                                   .c = c + p * c_plane,
                                   .c_row = width,
                                   .start = adds ? c + p * c_plane : zeros,
                                   .start_row = adds ? width : 0,
                                   .steps = steps};
    std::int64_t size = split.big;
    for (const std::int64_t count : {split.big_count, split.small_count}) {
      if (count > 0) {
        tile.blocks = count;
        tile.a_block = size * a_row;
        tile.c_block = size * width;
        tile.start_block = adds ? tile.c_block : 0;
        functions[size - 1](tile);
        tile.a += count * tile.a_block;
        tile.c += count * tile.c_block;
        if (adds) tile.start = tile.c;
      }
      --size;
    }
  }
}

double product_cycles(const device::OffsetTarget<float>& target, std::int64_t rows,
                      std::int64_t columns, std::int64_t vectors) {
  const EvenSplit row_split = split_evenly(rows, target.max_rows[vectors - 1]);
  const EvenSplit column_split = split_evenly(columns, vectors);
  double cycles = 0;
  for (const std::int64_t c : {column_split.big, column_split.big - 1}) {
    const auto count = static_cast<double>(c == column_split.big ? column_split.big_count
                                                                 : column_split.small_count);
    cycles +=
        count * (static_cast<double>(row_split.big_count) * tile_cycles(row_split.big, c) +
                 static_cast<double>(row_split.small_count) * tile_cycles(row_split.big - 1, c));
  }
  return cycles * static_cast<double>(kPoints);
}

double image_cycles(const Geometry& geometry, std::int64_t lanes) {
  const Images& source = geometry.source;
  const Images& result = geometry.result;
  const std::int64_t vectors = (source.padded + result.padded) / lanes;
  return kTransposedCycles * static_cast<double>(source.elements() + result.elements()) +
         kTileCycles * static_cast<double>(geometry.tiles()) * static_cast<double>(vectors);
}

}  // namespace onnxgrad::ops::winograd

namespace onnxgrad::ops {

KernelOffer offer_winograd_result(const KernelRequest& request, const ConvTask& task) {
  using namespace winograd;
  const auto& target = device::offset_target<float>(task.isa);
  const auto geometry = geometry_of(task, target.lanes);
  if (!geometry) return KernelOffer::decline("not 3 x 3 or 5 x 5 without strides");
  const auto direct = plan_conv_result<float>(task, request.threads);
  auto plan = std::make_shared<winograd::WinogradResultPlan>();
  plan->task = task;
  plan->geometry = *geometry;
  plan->target = &target;
  plan->threads = request.threads;
  const Tensor* constant = request.constants[static_cast<std::size_t>(task.w)];
  plan->is_constant = constant != nullptr && winograd::are_small(*geometry);
  const PanelChoice best = choose_vectors(
      target.max_vectors, [&](std::int64_t v) { return winograd::result_cycles(*plan, v); });
  if (direct != nullptr && best.cycles > kWorthwhile * direct->image_cycles) {
    return KernelOffer::decline("sums tap by tap take less time");
  }
  plan->is_constant = plan->is_constant && request.keeps_constants;  // same choice without packing
  const Images& source = geometry->source;
  const Images& result = geometry->result;
  plan->stores_images = geometry->all_tiles() < result.padded;
  const std::int64_t vectors = result.padded / target.lanes;
  const std::int64_t parts =
      plan->stores_images ? std::min<std::int64_t>(request.threads, vectors) : 1;
  plan->panels = split_panels(vectors, best.vectors, target.lanes, parts);
  const std::int64_t most = kUnitBytes / static_cast<std::int64_t>(sizeof(float)) / kPoints /
                            (source.padded + plan->widest());
  plan->geometry.units.split(std::max<std::int64_t>(most, 1), request.threads);
  plan->offsets.resize(static_cast<std::size_t>(source.channels));
  std::iota(plan->offsets.begin(), plan->offsets.end(), 0);
  place_scratch(*plan);
  if (plan->is_constant) pack_weights(*constant, *plan);
  if (!is_affordable(plan->scratch_bytes, task.shape)) {
    return KernelOffer::decline("takes too much memory");
  }
  opdef::PreparedKernel kernel;
  kernel.fn = kKernel<run_result>;
  kernel.scratch_bytes = plan->scratch_bytes;
  if (plan->packed.is_defined()) kernel.kept_bytes = plan->packed.size_bytes();
  kernel.label = fmt::format("winograd {}x{}, {}", geometry->step, geometry->step,
                             plan->stores_images ? "all images" : "all weights");
  kernel.flops = task.shape.flops();
  kernel.data = std::move(plan);
  return {.kernel = std::move(kernel), .declined = {}};
}

}  // namespace onnxgrad::ops
