#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "device/cpu/threads.h"
#include "ops/kernel_support.h"
#include "ops/nn/conv/direct_plan_cpu.h"

// y = conv(x, w) and its transpose x = conv^T(y, w) as matrix products whose left operand is read
// through tables of offsets (conv_source_cpu.h). Weights are packed once per call, or once per
// plan if they are constant, one panel of channels after another; then the threads compute units of
// work, each several images, a part of one, or a part of the channels. The order of a sum over k
// does not depend on the number of threads.
//
// Start reading at Unit::run. Sources: Georganas et al., Anatomy of High-Performance Deep Learning
// Convolutions on SIMD Architectures, SC 2018; Dukhan, The Indirect Convolution Algorithm, 2019.

namespace onnxgrad::ops {

namespace {

// Bytes of a panel's weights that stay in the L1 cache while results are computed.
constexpr std::int64_t kPanelBytes = std::int64_t{24} * 1024;

/// Packs one panel of one group: [steps of all phases, width], k by source channel, then tap.
/// y = conv(x, w): the panel's channels are rows of w, k its columns.
template <class T>
void pack_forward(const ResultPlan<T>& plan, const ChannelPanel& panel, const T* w, T* to) {
  const std::int64_t steps = plan.panel_steps;
  const std::int64_t channels = std::min(panel.width, plan.result_channels - panel.first);
  device::gemm_target<T>(plan.task.isa)
      .transpose(w + panel.first * steps, steps, to, panel.width, channels, steps);
  if (channels == panel.width) return;
  for (std::int64_t k = 0; k < steps; ++k) {
    std::fill(to + k * panel.width + channels, to + (k + 1) * panel.width, T(0));
  }
}

/// Packs one panel for x = conv^T(y, w): its channels are columns of w; each phase has its own
/// taps.
template <class T>
void pack_backward(const ResultPlan<T>& plan, const ChannelPanel& panel, const T* w, T* spare,
                   T* to) {
  const std::int64_t width = panel.width;
  const std::int64_t taps = plan.kernel_size;
  const std::int64_t channels = std::min(width, plan.result_channels - panel.first);
  if (taps == 1) {  // rows of w are rows of the panel
    for (const ResultPhase& phase : plan.phases) {
      if (phase.taps.empty()) continue;
      T* row = to + phase.weights * width;
      for (std::int64_t m = 0; m < plan.source_channels; ++m, row += width) {
        std::copy_n(w + m * plan.result_channels + panel.first, channels, row);
        std::fill(row + channels, row + width, T(0));
      }
    }
    return;
  }
  std::fill_n(spare, taps * width, T(0));
  for (std::int64_t m = 0; m < plan.source_channels; ++m) {
    device::gemm_target<T>(plan.task.isa)
        .transpose(w + (m * plan.result_channels + panel.first) * taps, taps, spare, width,
                   channels, taps);
    for (const ResultPhase& phase : plan.phases) {
      T* row = to + (phase.weights + m * static_cast<std::int64_t>(phase.taps.size())) * width;
      for (const std::int64_t tap : phase.taps) row = std::copy_n(spare + tap * width, width, row);
    }
  }
}

/// Packs panels [first, last) of all groups into the block `packed`. `bias` may be nullptr.
template <class T>
void pack_weights(const ResultPlan<T>& plan, const T* w, const T* bias, std::int64_t first,
                  std::int64_t last, std::byte* packed, T* spare) {
  const auto panels = static_cast<std::int64_t>(plan.panels.size());
  for (std::int64_t i = first; i < last; ++i) {
    const std::int64_t group = i / panels;
    const ChannelPanel& panel = plan.panels[static_cast<std::size_t>(i % panels)];
    const T* from = w + group * plan.source_channels * plan.result_channels * plan.kernel_size;
    T* to = plan.weights.in(packed) + group * plan.group_weights() + panel.first * plan.panel_steps;
    if (plan.task.pass == ConvTask::Pass::kForward) {
      pack_forward(plan, panel, from, to);
    } else {
      pack_backward(plan, panel, from, spare, to);
    }
    T* padded = plan.bias.in(packed) + group * plan.padded_channels + panel.first;
    const std::int64_t channels = std::min(panel.width, plan.result_channels - panel.first);
    std::fill_n(padded, panel.width, T(0));
    if (bias != nullptr) {
      std::copy_n(bias + group * plan.result_channels + panel.first, channels, padded);
    }
  }
}

/// Packs constant weights and biases once, if they may be kept.
template <class T>
void pack_constants(const KernelRequest& request, ResultPlan<T>& plan) {
  if (!request.keeps_constants) return;
  const auto constant = [&](int arg) { return request.constants[static_cast<std::size_t>(arg)]; };
  const Tensor* w = constant(plan.task.w);
  const Tensor* bias = plan.task.bias < 0 ? nullptr : constant(plan.task.bias);
  if (w == nullptr || (plan.task.bias >= 0 && bias == nullptr)) return;
  plan.packed = Tensor::empty(DataType::kUint8, {plan.packed_bytes});
  std::vector<std::byte> own(static_cast<std::size_t>(plan.thread_scratch.size_bytes));
  pack_weights(plan, w->data<T>().data(), bias == nullptr ? nullptr : bias->data<T>().data(), 0,
               plan.groups * static_cast<std::int64_t>(plan.panels.size()),
               plan.packed.mutable_raw(), plan.spare.in(own.data()));
  place_result_scratch(plan);
}

/// Positions of one phase that a unit computes, along each axis.
struct Range {
  std::array<std::int64_t, 3> begin = {};
  std::array<std::int64_t, 3> end = {};

  std::int64_t count(std::size_t axis) const { return end[axis] - begin[axis]; }
};

/// Worker of one thread.
template <class T>
class Unit {
 public:
  Unit(const ResultPlan<T>& plan, KernelArgs args, const std::byte* packed, std::byte* own)
      : plan_(plan),
        args_(args),
        from_(args.at<T>(plan.task.pass == ConvTask::Pass::kForward ? plan.task.x : plan.task.y)),
        to_(args.at<T>(plan.task.pass == ConvTask::Pass::kForward ? plan.task.y : plan.task.x)),
        residual_(args.find<const T>(plan.task.residual)),
        weights_(plan.weights.in(packed)),
        bias_(plan.bias.in(packed)),
        copy_(plan.copy.in(own)),
        sums_(plan.sums.in(own)) {
    for (std::int64_t i = 0; i < plan.units.images; ++i) {
      plan.source.clear(plan.source_channels, image_copy(i));
    }
  }

  /// Computes units [first, last).
  void run(std::int64_t first, std::int64_t last) {
    for (std::int64_t unit = first; unit < last; ++unit) {
      unit_ = plan_.units.at(unit);
      std::tie(first_panel_, last_panel_) = plan_.panels_of(unit_.part);
      if (unit == first || unit_.block == 0) read_images();
      const std::int64_t before = unit_.block * plan_.block * plan_.block_step;
      first_result_ = before * (plan_.result_size / plan_.result[plan_.block_axis]);
      for (const ResultPhase& phase : plan_.phases) run_phase(phase);
      if (!plan_.in_planes) write_results();
    }
  }

 private:
  const T* tensor_image(std::int64_t i) const {
    return from_ + ((unit_.image + i) * plan_.groups + unit_.group) * plan_.source_channels *
                       plan_.source_size;
  }
  T* result_image(std::int64_t i) const {
    return to_ + ((unit_.image + i) * plan_.groups + unit_.group) * plan_.result_channels *
                     plan_.result_size;
  }
  T* image_copy(std::int64_t i) const {
    return copy_ + i * plan_.source.copy_elements(plan_.source_channels);
  }
  const T* source_image(std::int64_t i) const {
    return plan_.source.copies() ? image_copy(i) : tensor_image(i);
  }
  T* image_sums(std::int64_t i) const {
    return sums_ + i * plan_.block_results * plan_.padded_channels;
  }
  std::int64_t result_index(const ResultPhase& phase, const std::array<std::int64_t, 3>& q) const {
    std::int64_t index = 0;
    for (std::size_t i = 0; i < 3; ++i) {
      index = index * plan_.result[i] + phase.axes[i].first + q[i] * phase.axes[i].step;
    }
    return index;
  }
  std::int64_t source_index(const ResultPhase& phase, const std::array<std::int64_t, 3>& q) const {
    std::int64_t index = 0;
    for (std::size_t i = 0; i < 3; ++i) {
      index += q[i] * plan_.source.step(i, phase.axes[i].source_step);
    }
    return index;
  }

  void read_images() {
    if (!plan_.source.copies()) return;
    for (std::int64_t i = 0; i < unit_.images; ++i) {
      plan_.source.copy(plan_.task.isa, tensor_image(i), plan_.source_channels, image_copy(i));
    }
  }

  void run_phase(const ResultPhase& phase) {
    Range range;
    for (std::size_t i = 0; i < 3; ++i) range.end[i] = phase.axes[i].count;
    range.begin[plan_.block_axis] = unit_.block * plan_.block;
    range.end[plan_.block_axis] =
        std::min(range.end[plan_.block_axis], (unit_.block + 1) * plan_.block);
    for (std::size_t i = 0; i < 3; ++i) {
      if (range.count(i) <= 0) return;
    }
    for (std::int64_t p = first_panel_; p < last_panel_; ++p) {
      const ChannelPanel& panel = plan_.panels[static_cast<std::size_t>(p)];
      const T* weights = weights_ + unit_.group * plan_.group_weights() +
                         panel.first * plan_.panel_steps + phase.weights * panel.width;
      if (plan_.in_planes) {
        for (std::int64_t i = 0; i < unit_.images; ++i) run_planes(phase, range, panel, weights, i);
        continue;
      }
      const std::int64_t steps = phase.steps();
      const std::int64_t largest = std::max<std::int64_t>(
          kPanelBytes / static_cast<std::int64_t>(sizeof(T)) / panel.width, 1);
      std::int64_t k = 0;
      do {  // also without taps: the result is the bias
        const std::int64_t count = std::min(largest, steps - k);
        for (std::int64_t i = 0; i < unit_.images; ++i) {
          run_tiles(phase, range, panel, weights + k * panel.width, k, count, i);
        }
        k += count;
      } while (k < steps);
    }
  }

  /// Computes sums[position, channel] of one panel over k in [first, first + count).
  void run_tiles(const ResultPhase& phase, const Range& range, const ChannelPanel& panel,
                 const T* weights, std::int64_t first, std::int64_t count, std::int64_t image) {
    const std::int64_t width = plan_.padded_channels;
    const std::int64_t vectors = panel.width / plan_.target->lanes;
    const auto* functions = plan_.target->offset_tile[vectors - 1];
    const EvenSplit rows = split_evenly(range.count(2), plan_.target->max_rows[vectors - 1]);
    const AxisPhase& height = phase.axes[1];
    device::OffsetTile<T> tile{.offsets = phase.offsets.data() + first,
                               .a_row = phase.axes[2].source_step,
                               .b = weights,
                               .c_row = phase.axes[2].step * width,
                               .steps = count,
                               .blocks = range.count(1),
                               .a_block = height.source_step * plan_.source.stride(1),
                               .c_block = height.step * plan_.result[2] * width};
    if (first > 0) {
      tile.start_row = tile.c_row;
      tile.start_block = tile.c_block;
    }
    std::array<std::int64_t, 3> q = range.begin;
    for (; q[0] < range.end[0]; ++q[0]) {
      q[2] = range.begin[2];
      for (std::int64_t i = 0; i < rows.count(); i += is_row(range) ? tile.blocks : 1) {
        const std::int64_t size = rows.size(i);
        if (is_row(range)) {
          tile.blocks = i == 0 ? rows.big_count : rows.small_count;
          tile.a_block = size * tile.a_row;
          tile.c_block = size * tile.c_row;
          if (first > 0) tile.start_block = tile.c_block;
        }
        tile.a = source_image(image) + source_index(phase, q);
        tile.c = image_sums(image) + (result_index(phase, q) - first_result_) * width + panel.first;
        tile.start = first > 0 ? tile.c : bias_ + unit_.group * plan_.padded_channels + panel.first;
        functions[size - 1](tile);
        q[2] += is_row(range) ? size * tile.blocks : size;
      }
    }
  }
  /// Returns true for a single row, along which tiles have one size.
  static bool is_row(const Range& range) { return range.count(0) == 1 && range.count(1) == 1; }

  /// Computes results of some channels, with vectors of positions along a row.
  void run_planes(const ResultPhase& phase, const Range& range, const ChannelPanel& panel,
                  const T* weights, std::int64_t image) {
    const std::int64_t lanes = plan_.target->lanes;
    const EvenSplit columns = split_evenly(ceil_div(range.count(2), lanes), plan_.vectors);
    const AxisPhase& height = phase.axes[1];
    device::PlaneTile<T> tile{.a = weights,
                              .offsets = phase.offsets.data(),
                              .c_row = plan_.result_size,
                              .start = bias_ + unit_.group * plan_.padded_channels + panel.first,
                              .steps = phase.steps(),
                              .blocks = range.count(1),
                              .b_block = height.source_step * plan_.source.stride(1),
                              .c_block = height.step * plan_.result[2],
                              .finishes = plan_.task.finishes(),
                              .low = static_cast<T>(plan_.task.low),
                              .high = static_cast<T>(plan_.task.high)};
    std::array<std::int64_t, 3> q = range.begin;
    for (; q[0] < range.end[0]; ++q[0]) {
      q[2] = range.begin[2];
      for (std::int64_t i = 0; i < columns.count(); ++i) {
        const std::int64_t whole = columns.size(i) * lanes;
        if (is_row(range)) {  // tiles of one size except the last, which may have a tail
          const std::int64_t count = i < columns.big_count ? columns.big_count : columns.count();
          const bool has_tail = range.count(2) % lanes != 0 && count == columns.count();
          tile.blocks = std::max<std::int64_t>(count - i - (has_tail ? 1 : 0), 1);
          tile.b_block = whole;
          tile.c_block = whole;
        }
        const std::int64_t width = std::min(whole, range.end[2] - q[2]);
        tile.b = source_image(image) + source_index(phase, q);
        tile.c = result_image(image) + panel.first * plan_.result_size + result_index(phase, q);
        tile.tail = width - (columns.size(i) - 1) * lanes;
        if (residual_ != nullptr) tile.residual = residual_ + (tile.c - to_);
        plan_.target->plane_tile[columns.size(i) - 1][panel.width - 1](tile);
        if (is_row(range)) {
          q[2] += whole * (tile.blocks - 1);
          i += tile.blocks - 1;
        }
        q[2] += width;
      }
    }
  }

  void write_results() {
    const ChannelPanel& first = plan_.panels[static_cast<std::size_t>(first_panel_)];
    const ChannelPanel& last = plan_.panels[static_cast<std::size_t>(last_panel_ - 1)];
    const std::int64_t channels =
        std::min(last.first + last.width, plan_.result_channels) - first.first;
    const std::int64_t count = std::min(plan_.block_results, plan_.result_size - first_result_);
    for (std::int64_t i = 0; i < unit_.images; ++i) {
      T* results = result_image(i) + first.first * plan_.result_size + first_result_;
      device::gemm_target<T>(plan_.task.isa)
          .transpose(image_sums(i) + first.first, plan_.padded_channels, results, plan_.result_size,
                     count, channels);
      finish_results<T>(plan_.task, args_, results - to_, channels, plan_.result_size, count);
    }
  }

  const ResultPlan<T>& plan_;
  KernelArgs args_;
  const T* from_;
  T* to_;
  const T* residual_;
  const T* weights_;
  const T* bias_;
  T* copy_;
  T* sums_;
  ConvUnits::Unit unit_;
  std::int64_t first_result_ = 0;
  std::int64_t first_panel_ = 0, last_panel_ = 0;
};

template <class T>
void run_result(const ResultPlan<T>& plan, KernelArgs args) {
  std::byte* scratch = args[plan.task.scratch];
  const bool is_packed = plan.packed.is_defined();
  const std::byte* packed = is_packed ? plan.packed.raw() : scratch;
  const std::int64_t items = plan.groups * static_cast<std::int64_t>(plan.panels.size());
  const std::int64_t units = plan.units.count();
  const auto own = [&](const device::Chunk& chunk) {
    return plan.thread_scratch.in(scratch, chunk.thread);
  };
  if (!is_packed) {
    const T* bias = args.find<T>(plan.task.bias);
    device::on_threads(plan.threads, [&](const device::Chunk& chunk) {
      pack_weights(plan, args.at<const T>(plan.task.w), bias, chunk.first(items), chunk.last(items),
                   scratch, plan.spare.in(own(chunk)));
    });
  }
  device::on_threads(
      plan.threads, device::chunks_of(plan.threads, units), [&](const device::Chunk& chunk) {
        Unit<T>(plan, args, packed, own(chunk)).run(chunk.first(units), chunk.last(units));
      });
}

template <class T>
KernelOffer offer(const KernelRequest& request, const ConvTask& task) {
  auto plan = plan_conv_result<T>(task, request.threads);
  if (plan == nullptr) return KernelOffer::decline("mostly padding");
  pack_constants(request, *plan);
  opdef::PreparedKernel kernel;
  kernel.fn = kKernel<run_result<T>>;
  kernel.scratch_bytes = plan->scratch_bytes;
  if (plan->packed.is_defined()) kernel.kept_bytes = plan->packed.size_bytes();
  kernel.label =
      fmt::format("{} of {} vectors", plan->in_planes ? "planes" : "channels", plan->vectors);
  kernel.flops = task.shape.flops();
  kernel.data = std::move(plan);
  return {.kernel = std::move(kernel), .declined = {}};
}

}  // namespace

KernelOffer offer_conv_result(const KernelRequest& request, const ConvTask& task) {
  return request.outputs[0].dtype == DataType::kFloat32 ? offer<float>(request, task)
                                                        : offer<double>(request, task);
}

}  // namespace onnxgrad::ops
