#include <algorithm>
#include <limits>

#include "device/cpu/gemm_tile.h"
#include "ops/nn/conv/direct_plan_cpu.h"

namespace onnxgrad::ops {
namespace {

// Size of the sums of one unit of work, which stay in the L2 cache.
constexpr std::int64_t kSumBytes = std::int64_t{256} * 1024;
// Number of results that should share loaded weights.
constexpr std::int64_t kSharedResults = 256;
// Largest ratio of all multiplications of a unit to those inside the image, not the padding.
constexpr double kLargestWaste = 16;
constexpr double kWasteAllowance = 1 << 20;
// Cycles per result for storing as [position, channel] and transposing.
constexpr double kTransposed = 0.6;
// Cycles per source position for sorting columns, and the largest stride for which they are sorted.
constexpr double kSorted = 1.5;
constexpr std::int64_t kMostColumnSteps = 4;

// Returns true if nearly all multiplications would be with padding: a window much larger than the
// image.
bool is_mostly_padding(const ConvTask& task) {
  const bool forward = task.pass == ConvTask::Pass::kForward;
  double done = 1;
  double needed = 1;
  for (const WindowAxis& axis : task.shape.axes) {
    std::int64_t inside = 0;
    for (std::int64_t o = 0; o < axis.output; ++o) {
      inside += taps_below(axis, o, axis.input) - taps_below(axis, o, 0);
    }
    needed *= static_cast<double>(inside);
    done *= static_cast<double>(axis.kernel) *
            static_cast<double>(forward ? axis.output : (axis.input - 1) / axis.stride + 1);
  }
  return done > kLargestWaste * (needed + kWasteAllowance);
}

/// Fills phases, sizes and the source positions that are read.
template <class T>
std::array<SourceAxis, 3> describe(const ConvTask& task, const std::vector<AxisPhases>& phases,
                                   ResultPlan<T>& plan) {
  const ConvShape& shape = task.shape;
  const bool forward = task.pass == ConvTask::Pass::kForward;
  plan.task = task;
  plan.groups = shape.groups;
  plan.units = {.batch = shape.batch, .groups = shape.groups};
  plan.source_channels = forward ? shape.in_channels : shape.out_channels;
  plan.result_channels = forward ? shape.out_channels : shape.in_channels;
  plan.source_size = forward ? shape.input_size() : shape.output_size();
  plan.result_size = forward ? shape.output_size() : shape.input_size();
  plan.kernel_size = shape.kernel_size();
  std::array<SourceAxis, 3> source;
  for (std::size_t i = 0; i < 3; ++i) {
    source[i].size = forward ? shape.axes[i].input : shape.axes[i].output;
    plan.result[i] = forward ? shape.axes[i].output : shape.axes[i].input;
  }
  for (const AxisPhases& axes : phases) {
    for (std::size_t i = 0; i < 3; ++i) source[i].cover(axes[i]);
    plan.phases.push_back({.axes = axes});
  }
  return source;
}

/// Sets the position of every tap in the kernel and in memory.
template <class T>
void set_offsets(ResultPlan<T>& plan) {
  const auto& kernel = plan.task.shape.axes;
  for (ResultPhase& phase : plan.phases) {
    phase.weights = plan.panel_steps;
    std::vector<std::int64_t> offsets;
    for (const AxisTap& d : phase.axes[0].taps) {
      for (const AxisTap& h : phase.axes[1].taps) {
        for (const AxisTap& w : phase.axes[2].taps) {
          phase.taps.push_back((d.tap * kernel[1].kernel + h.tap) * kernel[2].kernel + w.tap);
          offsets.push_back(plan.source.offset(d.offset, h.offset, w.offset));
        }
      }
    }
    for (std::int64_t c = 0; c < plan.source_channels; ++c) {
      for (const std::int64_t offset : offsets) {
        phase.offsets.push_back(static_cast<std::int32_t>(c * plan.source.plane() + offset));
      }
    }
    plan.panel_steps += phase.steps();
  }
}

/// Estimates the cycles of all tiles of one image, for tiles of this many vectors of channels or of
/// positions.
template <class T>
double result_cycles(const ResultPlan<T>& plan, bool in_planes, std::int64_t vectors) {
  const auto& target = *plan.target;
  const std::int64_t largest_rows = target.max_rows[vectors - 1];
  const auto to_vectors = [&](std::int64_t n) { return ceil_div(n, target.lanes); };
  double cycles = kTransposed * static_cast<double>(plan.result_size * plan.result_channels);
  if (in_planes) {
    const bool sorts = plan.phases.front().axes[2].source_step > 1;
    cycles = sorts ? kSorted * static_cast<double>(plan.source_size * plan.source_channels) : 0;
  }
  for (const ResultPhase& phase : plan.phases) {
    std::int64_t taps = 1;
    for (const AxisPhase& axis : phase.axes) taps *= static_cast<std::int64_t>(axis.taps.size());
    const std::int64_t width = phase.axes[2].count;
    const EvenSplit rows = split_evenly(in_planes ? plan.result_channels : width, largest_rows);
    const EvenSplit columns =
        split_evenly(to_vectors(in_planes ? width : plan.result_channels), vectors);
    double one = 0;
    for (const std::int64_t c : {columns.big, columns.big - 1}) {
      const auto of_columns =
          static_cast<double>(c == columns.big ? columns.big_count : columns.small_count);
      one += of_columns * (static_cast<double>(rows.big_count) * tile_cycles(rows.big, c) +
                           static_cast<double>(rows.small_count) * tile_cycles(rows.big - 1, c));
    }
    cycles += one * static_cast<double>(phase.axes[0].count * phase.axes[1].count) *
              static_cast<double>(plan.source_channels * taps);
  }
  return cycles;
}

template <class T>
void choose_tiles(ResultPlan<T>& plan) {
  const bool can_be_planes = std::ranges::all_of(plan.phases, [](const ResultPhase& phase) {
    return phase.axes[2].step == 1 && phase.axes[2].source_step <= kMostColumnSteps;
  });
  double least = std::numeric_limits<double>::infinity();
  for (const bool in_planes : {false, true}) {
    if (in_planes && !can_be_planes) continue;
    for (std::int64_t v = 1; v <= plan.target->max_vectors; ++v) {
      const double cycles = result_cycles(plan, in_planes, v);
      if (cycles >= least) continue;
      least = cycles;
      plan.image_cycles = cycles * static_cast<double>(plan.groups);
      plan.in_planes = in_planes;
      plan.vectors = v;
    }
  }
}

/// Returns true if planes can be read in place: no vector load ends behind an image, and few planes
/// map to the same cache sets.
template <class T>
bool has_whole_vectors(const ResultPlan<T>& plan) {
  constexpr std::int64_t kMostAliases = 32;
  return plan.kernel_size == 1 && plan.result[2] == plan.result_size &&
         plan.result_size == plan.source_size && plan.result_size % plan.target->lanes == 0 &&
         (plan.source_size % kAliasingElements != 0 || plan.source_channels <= kMostAliases);
}

/// Chooses the panels and their parts, each of which makes separate units: if there are more
/// weights than pixels, every thread reads its own weights. A source read in place costs little
/// more if all threads read it.
template <class T>
void split_channels(ResultPlan<T>& plan) {
  const std::int64_t lanes = plan.in_planes ? 1 : plan.target->lanes;
  const std::int64_t total = ceil_div(plan.result_channels, lanes);
  const std::int64_t most = plan.in_planes ? plan.target->max_rows[plan.vectors - 1] : plan.vectors;
  const std::int64_t weights = plan.result_channels * plan.source_channels * plan.kernel_size;
  const std::int64_t pixels = plan.units.batch * (plan.source_channels * plan.source_size +
                                                  plan.result_channels * plan.result_size);
  const std::int64_t copies = plan.source.copies() ? 1 : plan.threads;
  if (weights * copies > pixels && plan.groups < plan.threads) {
    plan.units.parts = std::min<std::int64_t>(plan.threads, total);
  }
  plan.panels = split_panels(total, most, lanes, plan.units.parts, &plan.part_panels);
  plan.padded_channels = total * lanes;
}

/// Splits the work into units: several images, or a part of one.
template <class T>
void split_work(ResultPlan<T>& plan) {
  const auto bytes = static_cast<std::int64_t>(sizeof(T));
  for (plan.block_axis = 0; plan.block_axis < 2; ++plan.block_axis) {
    if (plan.result[plan.block_axis] > 1) break;
  }
  const AxisPhase& axis = plan.phases.front().axes[plan.block_axis];
  plan.block_step = axis.step;
  plan.block = axis.count;
  const std::int64_t inner = plan.result_size / plan.result[plan.block_axis];
  if (!plan.in_planes) {
    const std::int64_t one = plan.block_step * inner * plan.padded_channels * bytes;
    plan.block = std::clamp<std::int64_t>(kSumBytes / one, 1, plan.block);
  }
  const std::int64_t whole_units = plan.units.batch * plan.groups * plan.units.parts;
  if (whole_units < plan.threads) {
    const std::int64_t wanted = ceil_div(plan.threads, whole_units);
    plan.block = std::min(plan.block, ceil_div(axis.count, wanted));
  }
  if (plan.in_planes && plan.block_axis == 2) {
    const std::int64_t lanes = plan.target->lanes;
    plan.block = round_up(plan.block, lanes);
  }
  plan.units.blocks = ceil_div(axis.count, plan.block);
  plan.block_results = std::min(plan.block * plan.block_step, plan.result[plan.block_axis]) * inner;
  if (plan.in_planes || plan.units.blocks > 1) return;
  const std::int64_t copy = plan.source.copy_elements(plan.source_channels) * bytes;
  plan.units.images = std::min({kSharedResults / plan.result_size,
                                plan.units.batch * plan.units.parts / plan.threads,
                                kCopyBytes / std::max<std::int64_t>(copy, 1)});
  plan.units.images = even_part_of(plan.units.batch, std::max<std::int64_t>(plan.units.images, 1),
                                   plan.units.parts == plan.threads ? 1 : plan.threads);
}

}  // namespace

template <class T>
void place_result_scratch(ResultPlan<T>& plan) {
  std::int64_t widest = 0;
  for (const ChannelPanel& panel : plan.panels) widest = std::max(widest, panel.width);
  const std::int64_t sums =
      plan.in_planes ? 0 : plan.units.images * plan.block_results * plan.padded_channels;
  ScratchLayout own;
  plan.copy = own.reserve<T>(plan.units.images * plan.source.copy_elements(plan.source_channels));
  plan.sums = own.reserve<T>(sums);
  plan.spare = own.reserve<T>(plan.kernel_size * widest);
  ScratchLayout packed;
  plan.weights = packed.reserve<T>(plan.groups * plan.group_weights());
  plan.bias = packed.reserve<T>(plan.groups * plan.padded_channels);
  plan.packed_bytes = packed.size_bytes();
  ScratchLayout all = plan.packed.is_defined() ? ScratchLayout() : packed;
  plan.thread_scratch = all.reserve_blocks(plan.threads, own);
  plan.scratch_bytes = all.size_bytes();
}

ConvTask in_one_row(ConvTask task) {
  const auto& axes = task.shape.axes;
  const bool is_matmul = std::ranges::all_of(axes, [](const WindowAxis& axis) {
    return axis.kernel == 1 && axis.stride == 1 && !axis.is_padded() && axis.input == axis.output;
  });
  if (!is_matmul) return task;
  const std::int64_t pixels = task.shape.input_size();
  task.shape.axes = {};
  task.shape.axes[2].input = pixels;
  task.shape.axes[2].output = pixels;
  return task;
}

template <class T>
std::shared_ptr<ResultPlan<T>> plan_conv_result(const ConvTask& given, int threads) {
  const ConvTask task = in_one_row(given);
  const std::vector<AxisPhases> phases = phases_of(task);
  if (phases.empty() || is_mostly_padding(task)) return nullptr;
  auto plan = std::make_shared<ResultPlan<T>>();
  plan->target = &device::offset_target<T>(task.isa);
  plan->threads = threads;
  const std::array<SourceAxis, 3> axes = describe(task, phases, *plan);
  choose_tiles(*plan);
  plan->source = ConvSource(axes, plan->in_planes && !has_whole_vectors(*plan),
                            plan->in_planes ? plan->phases.front().axes[2].source_step : 1);
  const std::int64_t padded = plan->source.plane();
  if (padded > kLargestPadding * (plan->source_size + plan->result_size) + kPaddingAllowance ||
      padded * plan->source_channels > std::numeric_limits<std::int32_t>::max()) {
    return nullptr;
  }
  set_offsets(*plan);
  split_channels(*plan);
  split_work(*plan);
  place_result_scratch(*plan);
  return plan;
}

template void place_result_scratch(ResultPlan<float>& plan);
template void place_result_scratch(ResultPlan<double>& plan);
template std::shared_ptr<ResultPlan<float>> plan_conv_result(const ConvTask&, int);
template std::shared_ptr<ResultPlan<double>> plan_conv_result(const ConvTask&, int);

}  // namespace onnxgrad::ops
