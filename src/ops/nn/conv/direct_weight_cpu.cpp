#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <tuple>

#include "device/cpu/threads.h"
#include "ops/kernel_support.h"
#include "ops/nn/conv/direct_weight_plan_cpu.h"

// w[m, c, tap] = sum over images and windows p of y[n, m, p] * x[n, c, window p, tap]: GEMMs of x's
// channels (rows, read through a table of windows) with y transposed to [window, channel]. With few
// channels the taps are rows as well, which requires an im2col matrix. Sums accumulate as
// [c, tap, m], one block per thread, added in the order of the threads.

namespace onnxgrad::ops {

namespace {

// Bytes of a panel of y that stay in the L1 cache while rows are traversed.
constexpr std::int64_t kYPanelBytes = std::int64_t{28} * 1024;
// Cycles per element of the im2col matrix, and per element of y transposed.
constexpr double kCopied = 0.4;
constexpr double kTransposedY = 0.5;

/// Estimates the cycles per window with tiles of this many vectors of y's channels.
template <class T>
double tile_window_cycles(const WeightPlan<T>& plan, bool has_matrix, std::int64_t vectors) {
  const std::int64_t lanes = plan.target->lanes;
  const EvenSplit columns = split_evenly(ceil_div(plan.y_channels, lanes), vectors);
  const EvenSplit rows =
      split_evenly(has_matrix ? plan.rows() : plan.channels, plan.target->max_rows[vectors - 1]);
  const double transposed = kTransposedY * static_cast<double>(plan.y_channels);
  double cycles = 0;
  for (const std::int64_t c : {columns.big, columns.big - 1}) {
    const auto count =
        static_cast<double>(c == columns.big ? columns.big_count : columns.small_count);
    cycles += count * (static_cast<double>(rows.big_count) * tile_cycles(rows.big, c) +
                       static_cast<double>(rows.small_count) * tile_cycles(rows.big - 1, c));
  }
  if (has_matrix) return transposed + cycles + kCopied * static_cast<double>(plan.rows());
  return transposed + cycles * static_cast<double>(plan.taps);
}

template <class T>
void choose_tiles(WeightPlan<T>& plan) {
  double least = std::numeric_limits<double>::infinity();
  std::int64_t vectors = 1;
  for (const bool has_matrix : {false, true}) {
    for (std::int64_t v = 1; v <= plan.target->max_vectors; ++v) {
      const double cycles = tile_window_cycles(plan, has_matrix, v);
      if (cycles >= least) continue;
      least = cycles;
      plan.has_matrix = has_matrix;
      vectors = v;
    }
  }
  plan.window_cycles = least;
  const std::int64_t lanes = plan.target->lanes;
  const std::int64_t total = ceil_div(plan.y_channels, lanes);
  const std::int64_t weights = plan.groups * plan.rows() * plan.y_channels;
  const std::int64_t pixels = plan.units.batch * plan.groups *
                              (plan.channels * plan.input + plan.y_channels * plan.windows);
  plan.shares_panels = !plan.has_matrix && plan.threads > 1 && total >= plan.threads &&
                       weights * (plan.taps == 1 ? plan.threads : 1) > pixels;
  plan.panels = split_panels(total, vectors, lanes, plan.shares_panels ? plan.threads : 1,
                             &plan.thread_panels);
  plan.padded_channels = total * lanes;
}

/// Splits the work into units: several images, or a block of the windows of one.
template <class T>
void split_work(WeightPlan<T>& plan) {
  const auto bytes = static_cast<std::int64_t>(sizeof(T));
  const std::int64_t copy = plan.source.copy_elements(plan.channels) * bytes;
  const std::int64_t fitting = kCopyBytes / std::max<std::int64_t>(copy, 1);
  const std::int64_t largest =
      std::max<std::int64_t>(kYPanelBytes / bytes / plan.panels.front().width, 1);
  for (plan.block_axis = 0; plan.block_axis < 2; ++plan.block_axis) {
    if (plan.axes[plan.block_axis].count > 1) break;
  }
  const std::int64_t count = plan.axes[plan.block_axis].count;
  const std::int64_t inner = plan.windows / count;
  const std::int64_t at_once = std::max<std::int64_t>(largest / inner, 1);
  plan.units.blocks = ceil_div(count, at_once);
  plan.block = ceil_div(count, plan.units.blocks);
  plan.units.blocks = ceil_div(count, plan.block);
  if (plan.units.blocks == 1) {
    const std::int64_t of_thread =
        plan.shares_panels ? plan.units.batch : plan.units.batch / plan.threads;
    plan.units.images = std::min({largest / plan.windows, of_thread, fitting});
    plan.units.images = even_part_of(plan.units.batch, std::max<std::int64_t>(plan.units.images, 1),
                                     plan.shares_panels ? 1 : plan.threads);
  }
  plan.unit_windows = plan.units.images * plan.block * inner;
}

template <class T>
void set_tables(WeightPlan<T>& plan) {
  for (const AxisTap& d : plan.axes[0].taps) {
    for (const AxisTap& h : plan.axes[1].taps) {
      for (const AxisTap& w : plan.axes[2].taps) {
        plan.tap_offsets.push_back(plan.source.offset(d.offset, h.offset, w.offset));
      }
    }
  }
  if (plan.has_matrix) {
    plan.places.resize(static_cast<std::size_t>(plan.unit_windows));
    std::iota(plan.places.begin(), plan.places.end(), 0);
    return;
  }
  const auto step = [&](std::size_t i) { return plan.axes[i].source_step * plan.source.stride(i); };
  for (std::int64_t n = 0; n < plan.units.images; ++n) {
    for (std::int64_t d = 0; d < plan.axes[0].count; ++d) {
      for (std::int64_t h = 0; h < plan.axes[1].count; ++h) {
        for (std::int64_t w = 0; w < plan.axes[2].count; ++w) {
          plan.places.push_back(static_cast<std::int32_t>(n * plan.image_stride() + d * step(0) +
                                                          h * step(1) + w * step(2)));
        }
      }
    }
  }
}

/// Sets the sizes and the source positions that are read.
template <class T>
std::array<SourceAxis, 3> describe(const ConvTask& task, int threads, WeightPlan<T>* plan) {
  const ConvShape& shape = task.shape;
  plan->task = task;
  plan->target = &device::offset_target<T>(task.isa);
  plan->threads = threads;
  plan->groups = shape.groups;
  plan->units = {.batch = shape.batch, .groups = shape.groups};
  plan->channels = shape.in_channels;
  plan->y_channels = shape.out_channels;
  plan->taps = shape.kernel_size();
  plan->input = shape.input_size();
  plan->windows = shape.output_size();
  std::array<SourceAxis, 3> source;
  for (std::size_t i = 0; i < 3; ++i) {
    plan->axes[i] = forward_phase(shape.axes[i]);
    source[i].size = shape.axes[i].input;
    source[i].cover(plan->axes[i]);
  }
  return source;
}

template <class T>
void place_scratch(WeightPlan<T>& plan) {
  ScratchLayout own;
  plan.copy = own.reserve<T>(plan.units.images * plan.source.copy_elements(plan.channels));
  plan.columns = own.reserve<T>(plan.unit_windows * plan.padded_channels);
  if (plan.has_matrix) {
    // The row stride is an odd number of cache lines, with space for a vector written at the end.
    const std::int64_t line = aligned_count<T>(1);
    plan.matrix_row = aligned_count<T>(plan.unit_windows);
    if (plan.matrix_row / line % 2 == 0) plan.matrix_row += line;
    plan.matrix = own.reserve<T>(plan.rows() * plan.matrix_row + line);
  }
  if (plan.task.update != nullptr) {
    std::int64_t widest = 0;
    for (const ChannelPanel& panel : plan.panels) widest = std::max(widest, panel.width);
    plan.spare = own.reserve<T>(widest * kConsumedColumns);
  }
  ScratchLayout all;
  if (!plan.shares_panels) plan.all_sums = own.reserve<T>(plan.sums());
  plan.thread_scratch = all.reserve_blocks(plan.threads, own);
  if (plan.shares_panels) plan.all_sums = all.reserve<T>(plan.sums());
  plan.scratch_bytes = all.size_bytes();
}

template <class T>
std::shared_ptr<WeightPlan<T>> plan_conv_weight(const ConvTask& task, int threads) {
  auto plan = std::make_shared<WeightPlan<T>>();
  const std::array<SourceAxis, 3> source = describe(in_one_row(task), threads, plan.get());
  choose_tiles(*plan);
  plan->source = ConvSource(source, !plan->has_matrix && plan->input % kAliasingElements == 0);
  const std::int64_t padded = plan->source.plane();
  if (padded > kLargestPadding * (plan->input + plan->windows) + kPaddingAllowance) return nullptr;
  split_work(*plan);
  if (plan->image_stride() > std::numeric_limits<std::int32_t>::max() / plan->units.images) {
    return nullptr;
  }
  set_tables(*plan);
  place_scratch(*plan);
  return plan;
}

/// Worker of one thread.
template <class T>
class Unit {
 public:
  Unit(const WeightPlan<T>& plan, KernelArgs args, std::int64_t thread, std::byte* scratch)
      : plan_(plan),
        x_(args.at<T>(plan.task.x)),
        y_(args.at<T>(plan.task.y)),
        sums_(plan.thread_sums(scratch, thread)) {
    std::byte* own = plan.thread_scratch.in(scratch, thread);
    copy_ = plan.copy.in(own);
    columns_ = plan.columns.in(own);
    matrix_ = plan.matrix.in(own);
    std::tie(first_panel_, last_panel_) = plan.panels_of(thread);
    for (std::int64_t i = 0; i < plan.units.images; ++i) {
      plan.source.clear(plan.channels, copy_ + i * plan.image_stride());
    }
    std::fill_n(columns_, plan.unit_windows * plan.padded_channels, T(0));
    if (!plan.shares_panels) {
      std::fill_n(sums_, plan.sums(), T(0));
      return;
    }
    for (std::int64_t g = 0; g < plan.groups; ++g) {
      for (std::int64_t p = first_panel_; p < last_panel_; ++p) {
        const ChannelPanel& panel = plan.panels[static_cast<std::size_t>(p)];
        std::fill_n(sums_ + plan.panel_sums(g, panel), plan.rows() * panel.width, T(0));
      }
    }
  }

  /// Computes units [first, last).
  void run(std::int64_t first, std::int64_t last) {
    for (std::int64_t unit = first; unit < last; ++unit) {
      unit_ = plan_.units.at(unit);
      const std::int64_t axis_count = plan_.axes[plan_.block_axis].count;
      const std::int64_t inner = plan_.windows / axis_count;
      begin_ = unit_.block * plan_.block;
      end_ = std::min(begin_ + plan_.block, axis_count);
      first_window_ = begin_ * inner;
      windows_ = (end_ - begin_) * inner;
      if (unit == first || unit_.block == 0) read_images();
      if (plan_.has_matrix) fill_matrix();
      for (std::int64_t p = first_panel_; p < last_panel_; ++p) {
        const ChannelPanel& panel = plan_.panels[static_cast<std::size_t>(p)];
        fill_columns(panel);
        if (plan_.has_matrix) {
          add_matrix(panel);
        } else {
          add_channels(panel);
        }
      }
    }
  }

 private:
  std::int64_t total() const { return unit_.images * windows_; }
  /// Returns the address of the sums of a panel from row `row` on, [rows, width].
  T* sums(std::int64_t row, const ChannelPanel& panel) const {
    return sums_ + plan_.panel_sums(unit_.group, panel) + row * panel.width;
  }
  const T* tensor_image(std::int64_t i) const {
    return x_ + ((unit_.image + i) * plan_.groups + unit_.group) * plan_.channels * plan_.input;
  }
  const T* source_image(std::int64_t i) const {
    return plan_.source.copies() ? copy_ + i * plan_.image_stride() : tensor_image(i);
  }

  void read_images() {
    if (!plan_.source.copies()) return;
    for (std::int64_t i = 0; i < unit_.images; ++i) {
      plan_.source.copy(plan_.task.isa, tensor_image(i), plan_.channels,
                        copy_ + i * plan_.image_stride());
    }
  }

  /// Packs y's channels of a panel as [images, windows, width]; zeros pad the last channels.
  void fill_columns(const ChannelPanel& panel) {
    const std::int64_t channels = std::min(panel.width, plan_.y_channels - panel.first);
    const std::int64_t y_image = plan_.groups * plan_.y_channels * plan_.windows;
    const T* from = y_ + unit_.image * y_image +
                    (unit_.group * plan_.y_channels + panel.first) * plan_.windows + first_window_;
    for (std::int64_t i = 0; i < unit_.images; ++i) {
      device::gemm_target<T>(plan_.task.isa)
          .transpose(from + i * y_image, plan_.windows, columns(panel) + i * windows_ * panel.width,
                     panel.width, channels, windows_);
    }
  }
  /// Returns the packed columns of a panel, which has its own block: zeros are written once.
  T* columns(const ChannelPanel& panel) const {
    return columns_ + panel.first * plan_.unit_windows;
  }

  /// Fills the im2col matrix [(channel, tap), (image, window)].
  void fill_matrix() {
    std::array<std::int64_t, 3> begin = {};
    std::array<std::int64_t, 3> end = {};
    for (std::size_t i = 0; i < 3; ++i) end[i] = plan_.axes[i].count;
    begin[plan_.block_axis] = begin_;
    end[plan_.block_axis] = end_;
    const auto step = [&](std::size_t i) {
      return plan_.axes[i].source_step * plan_.source.stride(i);
    };
    const std::int64_t rows = end[1] - begin[1];
    const std::int64_t columns = end[2] - begin[2];
    for (std::int64_t r = 0; r < plan_.rows(); ++r) {
      T* to = matrix_ + r * plan_.matrix_row;
      const std::int64_t place = r / plan_.taps * plan_.source.plane() +
                                 plan_.tap_offsets[static_cast<std::size_t>(r % plan_.taps)] +
                                 begin[1] * step(1) + begin[2] * step(2);
      for (std::int64_t i = 0; i < unit_.images; ++i) {
        for (std::int64_t d = begin[0]; d < end[0]; ++d) {
          const T* from = source_image(i) + place + d * step(0);
          copy_windows(from, step(1), step(2), to, rows, columns);
          to += rows * columns;
        }
      }
    }
  }

  void copy_windows(const T* from, std::int64_t row_step, std::int64_t step, T* to,
                    std::int64_t rows, std::int64_t columns) const {
    if (step == 1) {
      // Zeros up to a full vector after each row are overwritten by the next row.
      device::gemm_target<T>(plan_.task.isa).copy(from, row_step, to, columns, rows, columns);
      return;
    }
    for (std::int64_t i = 0; i < rows; ++i, from += row_step) {
      for (std::int64_t j = 0; j < columns; ++j) *to++ = from[j * step];
    }
  }

  void add_matrix(const ChannelPanel& panel) {
    device::OffsetTile<T> tile = make_tile(panel);
    tile.offsets = plan_.places.data();
    tile.a_row = plan_.matrix_row;
    tile.c_row = tile.start_row = panel.width;
    const auto* functions = functions_of(panel);
    const EvenSplit rows = split_evenly(plan_.rows(), largest_rows(panel));
    for (std::int64_t i = 0, r = 0; i < rows.count(); r += rows.size(i), ++i) {
      tile.a = matrix_ + r * plan_.matrix_row;
      tile.start = tile.c = sums(r, panel);
      functions[rows.size(i) - 1](tile);
    }
  }

  void add_channels(const ChannelPanel& panel) {
    device::OffsetTile<T> tile = make_tile(panel);
    tile.offsets = plan_.places.data() + first_window_;
    tile.a_row = plan_.source.plane();
    tile.c_row = tile.start_row = plan_.taps * panel.width;
    const auto* functions = functions_of(panel);
    const EvenSplit rows = split_evenly(plan_.channels, largest_rows(panel));
    for (std::int64_t i = 0, c = 0; i < rows.count(); c += rows.size(i), ++i) {
      for (std::int64_t t = 0; t < plan_.taps; ++t) {
        tile.a = source_image(0) + c * plan_.source.plane() +
                 plan_.tap_offsets[static_cast<std::size_t>(t)];
        tile.start = tile.c = sums(c * plan_.taps + t, panel);
        functions[rows.size(i) - 1](tile);
      }
    }
  }

  device::OffsetTile<T> make_tile(const ChannelPanel& panel) const {
    return {.b = columns(panel), .steps = total()};
  }

  const device::OffsetTileFn<T>* functions_of(const ChannelPanel& panel) const {
    return plan_.target->offset_tile[panel.width / plan_.target->lanes - 1];
  }
  std::int64_t largest_rows(const ChannelPanel& panel) const {
    return plan_.target->max_rows[panel.width / plan_.target->lanes - 1];
  }

  const WeightPlan<T>& plan_;
  const T* x_;
  const T* y_;
  T* copy_;
  T* columns_;
  T* matrix_;
  T* sums_;
  ConvUnits::Unit unit_;
  std::int64_t begin_ = 0, end_ = 0;  ///< range of the block, along its axis
  std::int64_t first_window_ = 0, windows_ = 0;
  std::int64_t first_panel_ = 0, last_panel_ = 0;
};

/// Writes w[m, c, tap] = sums[c, tap, m] for panels [first, last) of all groups, group by group.
template <class T>
void write_weights(const WeightPlan<T>& plan, KernelArgs args, std::int64_t first,
                   std::int64_t last, const T* sums, T* spare) {
  const std::int64_t rows = plan.rows();
  const auto count = static_cast<std::int64_t>(plan.panels.size());
  for (std::int64_t i = first; i < last; ++i) {
    const std::int64_t group = i / count;
    const ChannelPanel& panel = plan.panels[static_cast<std::size_t>(i % count)];
    finish_weights<T>(plan.task, args,
                      {.from = sums + plan.panel_sums(group, panel),
                       .from_row = panel.width,
                       .channel = group * plan.y_channels + panel.first,
                       .channels = std::min(panel.width, plan.y_channels - panel.first),
                       .columns = rows},
                      spare);
  }
}

/// Adds elements [first, last) of other threads' sums to those of the first thread.
template <class T>
void add_sums(const WeightPlan<T>& plan, std::int64_t first, std::int64_t last,
              std::byte* scratch) {
  T* sums = plan.thread_sums(scratch, 0);
  for (std::int64_t other = 1; other < plan.threads; ++other) {
    const T* from = plan.thread_sums(scratch, other);
    for (std::int64_t i = first; i < last; ++i) sums[i] += from[i];
  }
}

template <class T>
void run_weight(const WeightPlan<T>& plan, KernelArgs args) {
  std::byte* scratch = args[plan.task.scratch];
  const std::int64_t units = plan.units.count();
  T* sums = plan.thread_sums(scratch, 0);
  const std::int64_t panels = plan.groups * static_cast<std::int64_t>(plan.panels.size());
  device::on_threads(plan.threads, [&](const device::Chunk& chunk) {
    Unit<T> unit(plan, args, chunk.index, scratch);
    if (plan.shares_panels) {
      unit.run(0, units);
    } else {
      unit.run(chunk.first(units), chunk.last(units));
    }
  });
  if (!plan.shares_panels && plan.threads > 1) {
    device::on_threads(plan.threads, [&](const device::Chunk& chunk) {
      add_sums(plan, chunk.first(plan.sums()), chunk.last(plan.sums()), scratch);
    });
  }
  device::on_threads(plan.threads, [&](const device::Chunk& chunk) {
    write_weights(plan, args, chunk.first(panels), chunk.last(panels), sums,
                  plan.spare.in(plan.thread_scratch.in(scratch, chunk.thread)));
  });
}

template <class T>
KernelOffer offer(const ConvTask& task, int threads) {
  auto plan = plan_conv_weight<T>(task, threads);
  if (plan == nullptr) return KernelOffer::decline("mostly padding");
  opdef::PreparedKernel kernel;
  kernel.fn = kKernel<run_weight<T>>;
  kernel.scratch_bytes = plan->scratch_bytes;
  kernel.label = fmt::format("{} of {} columns", plan->has_matrix ? "taps" : "channels",
                             plan->panels.front().width);
  kernel.flops = task.shape.flops();
  kernel.data = std::move(plan);
  return {.kernel = std::move(kernel), .declined = {}};
}

}  // namespace

double weight_image_cycles(const ConvTask& task, int threads) {
  WeightPlan<float> plan;
  describe(task, threads, &plan);
  choose_tiles(plan);
  return plan.window_cycles * static_cast<double>(plan.windows * plan.groups);
}

KernelOffer offer_conv_weight(const KernelRequest& request, const ConvTask& task) {
  return request.outputs[0].dtype == DataType::kFloat32 ? offer<float>(task, request.threads)
                                                        : offer<double>(task, request.threads);
}

}  // namespace onnxgrad::ops
