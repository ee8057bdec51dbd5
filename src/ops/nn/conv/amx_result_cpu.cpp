#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

#include "device/cpu/amx_target.h"
#include "device/cpu/convert.h"
#include "device/cpu/f16_gemm_vnni.h"
#include "device/cpu/gemm_tile.h"
#include "device/cpu/tap_gemms.h"
#include "device/cpu/threads.h"
#include "device/cpu_options.h"
#include "ops/kernel_support.h"
#include "ops/nn/conv/amx_copies_cpu.h"
#include "ops/nn/conv/direct_plan_cpu.h"
#include "ops/nn/norm_channels_simd.h"

// y from x, or x from y: result[channel, position] = sum over taps and source channels. Rows of A
// are weights [channel, tap, source channel], columns of B the positions of copies whose channels
// are interleaved as VNNI pairs. Start reading at Worker::run.

namespace onnxgrad::ops::conv_bf16::result {
namespace {

using device::kTapColumns;
using device::kTapNumbers;
using device::kTapRows;
using device::kTapVnni;

constexpr std::int64_t kUnitBytes = std::int64_t{512} * 1024;  // copies of a unit, in the L2 cache
constexpr std::int64_t kFewestChannels = 16;  // fewer source channels would mostly multiply zeros
constexpr std::int64_t kSlack = 16;           // elements that vector stores may exceed the end by

/// Results that share their taps.
struct Phase {
  std::array<AxisPhase, 3> axes;
  std::vector<std::int32_t> a_offsets = {}, b_offsets = {};

  std::array<std::int64_t, 3> counts() const {
    return {axes[0].count, axes[1].count, axes[2].count};
  }
};

struct Bf16ResultPlan {
  ConvTask task;
  device::TapGemmsFn products = nullptr;
  device::ConvertFn narrow = nullptr, widen = nullptr;
  int threads = 1;
  bool is_forward = true;
  std::int64_t kernel_size = 0;
  std::int64_t source_channels = 0, result_channels = 0;
  std::int64_t padded_channels = 0;  ///< source channels rounded up to whole steps
  std::int64_t source_size = 0;
  std::array<std::int64_t, 3> result = {};  ///< positions
  std::vector<Phase> phases;
  Copies copies;
  bool is_dense = false;  ///< sums of an image are its result, position by position
  bool result_is_f16 = false, residual_is_f16 = false;
  ConvUnits units;  ///< blocks: of channels
  std::int64_t weight_row = 0;
  std::int64_t sums_row = 0;
  ScratchArray<std::uint16_t> weights = {};
  ScratchBlocks thread_scratch = {};
  ScratchArray<std::uint32_t> copy = {};
  ScratchArray<float> sums = {}, values = {};
  ScratchArray<std::byte> line = {};
  std::int64_t scratch_bytes = 0;

  std::int64_t result_size() const { return result[0] * result[1] * result[2]; }
  std::int64_t copy_elements() const { return padded_channels / 2 * copies.channel(); }
};

class Worker {
 public:
  Worker(const Bf16ResultPlan& plan, KernelArgs args, std::int64_t thread)
      : plan_(plan), args_(args), weights_(plan.weights.in(args[plan.task.scratch])) {
    std::byte* own = plan.thread_scratch.in(args[plan.task.scratch], thread);
    copy_ = plan.copy.in(own);
    sums_ = plan.sums.in(own);
    values_ = plan.values.in(own);
    line_ = plan.line.in(own);
  }

  // ---- weights ----

  /// Packs the weights, forward: [out channel, tap, in channel] from [out channel, in channel,
  /// tap], for out channels [first, last).
  void pack_forward(std::int64_t first, std::int64_t last) {
    for (std::int64_t m = first; m < last; ++m) {
      pack_taps(m, plan_.source_channels, plan_.padded_channels, weights_ + m * plan_.weight_row);
    }
  }

  /// Packs the weights, backward: [in channel, tap, out channel], for blocks [first, last) of
  /// kTapNumbers out channels.
  void pack_backward(std::int64_t first, std::int64_t last) {
    const std::int64_t channels = plan_.result_channels;
    const std::int64_t padded = round_up(channels, kTapColumns);
    const std::int64_t row = plan_.kernel_size * padded;
    auto* rows = reinterpret_cast<std::uint16_t*>(line_);
    auto* pairs = reinterpret_cast<std::uint32_t*>(rows + kTapNumbers * row);
    spare_ = reinterpret_cast<std::byte*>(pairs + kTapVnni * padded);
    for (std::int64_t block = first; block < last; ++block) {
      const std::int64_t m = block * kTapNumbers;
      const std::int64_t steps = std::min(kTapNumbers, plan_.source_channels - m);
      for (std::int64_t i = 0; i < steps; ++i) pack_taps(m + i, channels, padded, rows + i * row);
      for (std::int64_t tap = 0; tap < plan_.kernel_size; ++tap) {
        device::pack_vnni(rows + tap * padded, row, steps, channels, pairs, padded);
        std::fill(pairs + (steps + 1) / 2 * padded, pairs + kTapVnni * padded, 0U);
        auto* to = reinterpret_cast<float*>(weights_) + (tap * plan_.padded_channels + m) / 2;
        device::gemm_target<float>(plan_.task.isa)
            .transpose(reinterpret_cast<const float*>(pairs), padded, to, plan_.weight_row / 2,
                       kTapVnni, channels);
      }
    }
  }

  void pack(const device::Chunk& chunk) {
    spare_ = line_;
    if (plan_.is_forward) {
      pack_forward(chunk.first(plan_.result_channels), chunk.last(plan_.result_channels));
    } else {
      const std::int64_t blocks = plan_.padded_channels / kTapNumbers;
      pack_backward(chunk.first(blocks), chunk.last(blocks));
    }
  }

  // ---- results ----

  void run(std::int64_t first, std::int64_t last) {
    std::fill_n(copy_, plan_.copy_elements(), 0U);
    for (std::int64_t i = first; i < last; ++i) {
      const ConvUnits::Unit unit = plan_.units.at(i);
      if (unit.block == 0 || i == first) copy_images(unit.image, unit.images);
      const device::Chunk rows{.index = unit.block, .count = plan_.units.blocks};
      const std::int64_t blocks = ceil_div(plan_.result_channels, kTapRows);
      const std::int64_t end = rows.last(blocks) * kTapRows;
      for (std::int64_t c = rows.first(blocks) * kTapRows; c < std::min(end, plan_.result_channels);
           c += kTapRows) {
        run_channels(unit.image, unit.images, c, std::min(kTapRows, plan_.result_channels - c));
      }
    }
  }

 private:
  /// Packs the weights of one out channel: [tap, channel], zero-padded to `padded` channels.
  void pack_taps(std::int64_t m, std::int64_t channels, std::int64_t padded, std::uint16_t* to) {
    const std::int64_t taps = plan_.kernel_size;
    const auto* w = args_.at<std::uint16_t>(plan_.task.w) + m * channels * taps;
    if (taps == 1) {
      std::copy_n(w, channels, to);
      std::fill(to + channels, to + padded, std::uint16_t{0});
      return;
    }
    auto* line = reinterpret_cast<float*>(spare_);
    float* wide = line + taps * padded;
    plan_.widen(wide, w, channels * taps);
    device::gemm_target<float>(plan_.task.isa).transpose(wide, taps, line, padded, channels, taps);
    for (std::int64_t t = 0; t < taps; ++t) {
      std::fill(line + t * padded + channels, line + (t + 1) * padded, 0.0F);
    }
    plan_.narrow(to, line, taps * padded);
  }

  /// Copies two channels at a time, interleaved (VNNI layout).
  void copy_images(std::int64_t image, std::int64_t images) {
    const auto* source = args_.at<std::uint16_t>(plan_.is_forward ? plan_.task.x : plan_.task.y);
    const std::int64_t size = plan_.source_size;
    auto* line = reinterpret_cast<std::uint32_t*>(line_);
    for (std::int64_t c = 0; c < plan_.source_channels; c += 2) {
      const std::int64_t channels = std::min<std::int64_t>(2, plan_.source_channels - c);
      std::uint32_t* to = copy_ + c / 2 * plan_.copies.channel();
      for (std::int64_t i = 0; i < images; ++i) {
        const std::uint16_t* from = source + ((image + i) * plan_.source_channels + c) * size;
        plan_.copies.for_rows(
            i, [&](std::int64_t at, std::int64_t first, std::int64_t count, std::int64_t step) {
              if (step == 1) {
                device::pack_vnni(from + first, size, channels, count, to + at, 0);
                return;
              }
              device::pack_vnni(from + first, size, channels, (count - 1) * step + 1, line, 0);
              for (std::int64_t k = 0; k < count; ++k) to[at + k] = line[k * step];
            });
      }
    }
  }

  void run_channels(std::int64_t image, std::int64_t images, std::int64_t channel,
                    std::int64_t channels) {
    for (const Phase& phase : plan_.phases) {
      const std::int64_t span = plan_.copies.span(phase.counts(), images);
      plan_.products(
          {.a = reinterpret_cast<const std::byte*>(weights_ + channel * plan_.weight_row),
           .a_row = plan_.weight_row * 2,
           .a_offsets = phase.a_offsets.data(),
           .b = reinterpret_cast<const std::byte*>(copy_ + plan_.copies.origin()),
           .b_row = plan_.copies.channel() * 4,
           .b_offsets = phase.b_offsets.data(),
           .steps = static_cast<std::int64_t>(phase.a_offsets.size()),
           .sums = sums_,
           .sums_row = plan_.sums_row,
           .rows = channels,
           .columns = round_up(span, kTapColumns)});
      if (plan_.phases.size() == 1) break;
      for (std::int64_t c = 0; c < channels; ++c) {
        for (std::int64_t i = 0; i < images; ++i) {
          collect(phase, sums_ + c * plan_.sums_row + i * plan_.copies.plane(),
                  values_ + (c * plan_.units.images + i) * plan_.result_size());
        }
      }
    }
    for (std::int64_t c = 0; c < channels; ++c) {
      for (std::int64_t i = 0; i < images; ++i) {
        finish(values_of(c, i), image + i, channel + c);
      }
    }
  }

  /// Returns the results of one plane, contiguously.
  float* values_of(std::int64_t c, std::int64_t image) {
    float* sums = sums_ + c * plan_.sums_row + image * plan_.copies.plane();
    if (plan_.is_dense) return sums;
    if (plan_.phases.size() > 1) {
      return values_ + (c * plan_.units.images + image) * plan_.result_size();
    }
    collect(plan_.phases.front(), sums, values_);
    return values_;
  }

  void collect(const Phase& phase, const float* sums, float* to) const {
    const auto& [depth, height, width] = phase.axes;
    const std::int64_t row = plan_.result[2];
    for (std::int64_t d = 0; d < depth.count; ++d) {
      const float* from = sums + d * plan_.copies.depth_pitch();
      float* plane = to + (depth.first + d * depth.step) * plan_.result[1] * row;
      // The vector copy writes zeros after the last row, where other phases may have results.
      if (plan_.phases.size() == 1) {
        device::gemm_target<float>(plan_.task.isa)
            .copy(from, plan_.copies.row_pitch(), plane, row, height.count, width.count);
        continue;
      }
      for (std::int64_t h = 0; h < height.count; ++h, from += plan_.copies.row_pitch()) {
        float* next = plane + (height.first + h * height.step) * row + width.first;
        for (std::int64_t w = 0; w < width.count; ++w) next[w * width.step] = from[w];
      }
    }
  }

  void finish(float* values, std::int64_t image, std::int64_t channel) {
    const ConvTask& task = plan_.task;
    const std::int64_t size = plan_.result_size();
    const std::int64_t at = (image * plan_.result_channels + channel) * size;
    std::byte* result = args_[plan_.is_forward ? task.y : task.x];
    if (task.bias >= 0 || task.finishes()) {
      const float* residual = nullptr;
      if (task.residual >= 0 && plan_.residual_is_f16) {
        auto* line = reinterpret_cast<float*>(line_);
        plan_.widen(line, args_.at<const std::uint16_t>(task.residual) + at, size);
        residual = line;
      } else if (task.residual >= 0) {
        residual = args_.at<const float>(task.residual) + at;
      }
      const float bias = task.bias < 0 ? 0 : args_.at<const float>(task.bias)[channel];
      channels::forward_functions<float>(plan_.task.isa)
          .normalize(values, residual, {.segments = 1, .stride = size, .length = size},
                     {.shift = bias, .low = task.low, .high = task.high}, values);
    }
    if (plan_.result_is_f16) {
      plan_.narrow(reinterpret_cast<std::uint16_t*>(result) + at, values, size);
    } else {
      std::copy_n(values, size, reinterpret_cast<float*>(result) + at);
    }
  }

  const Bf16ResultPlan& plan_;
  KernelArgs args_;
  std::uint16_t* weights_;
  std::uint32_t* copy_;
  float* sums_;
  float* values_;
  std::byte* line_;
  std::byte* spare_ = nullptr;
};

void run(const Bf16ResultPlan& plan, KernelArgs args) {
  device::on_threads(plan.threads, [&](const device::Chunk& chunk) {
    Worker(plan, args, chunk.thread).pack(chunk);
  });
  device::on_threads(plan.threads, [&](const device::Chunk& chunk) {
    Worker(plan, args, chunk.thread)
        .run(chunk.first(plan.units.count()), chunk.last(plan.units.count()));
  });
}

void set_phases(const ConvShape& shape, Bf16ResultPlan& plan,
                std::array<std::vector<AxisPhase>, 3>& phases) {
  std::array<std::int64_t, 3> sizes = {};
  for (std::size_t i = 0; i < 3; ++i) {
    const WindowAxis& axis = shape.axes[i];
    phases[i] = plan.is_forward ? std::vector{forward_phase(axis)} : backward_phases(axis);
    sizes[i] = plan.is_forward ? axis.input : axis.output;
    plan.result[i] = plan.is_forward ? axis.output : axis.input;
  }
  plan.source_size = sizes[0] * sizes[1] * sizes[2];
  plan.copies = Copies(phases, sizes);
  for (const AxisPhase& d : phases[0]) {
    for (const AxisPhase& h : phases[1]) {
      for (const AxisPhase& w : phases[2]) {
        plan.phases.push_back({.axes = {d, h, w}});
      }
    }
  }
  plan.is_dense = plan.phases.size() == 1 && plan.copies.row_pitch() == plan.result[2] &&
                  plan.copies.depth_pitch() == plan.result[1] * plan.result[2];
}

void set_offsets(const ConvShape& shape, Bf16ResultPlan& plan) {
  for (Phase& phase : plan.phases) {
    // Taps are the innermost loop: the taps of one position read nearly the same cache lines.
    for (std::int64_t c = 0; c < plan.padded_channels; c += kTapNumbers) {
      for (const AxisTap& d : phase.axes[0].taps) {
        for (const AxisTap& h : phase.axes[1].taps) {
          for (const AxisTap& w : phase.axes[2].taps) {
            const std::int64_t tap =
                (d.tap * shape.axes[1].kernel + h.tap) * shape.axes[2].kernel + w.tap;
            const std::int64_t offset = plan.copies.offset(d.offset, h.offset, w.offset);
            phase.a_offsets.push_back(
                static_cast<std::int32_t>(2 * (tap * plan.padded_channels + c)));
            phase.b_offsets.push_back(
                static_cast<std::int32_t>(4 * (c / 2 * plan.copies.channel() + offset)));
          }
        }
      }
    }
  }
}

void place_scratch(Bf16ResultPlan& plan) {
  ScratchLayout all, own;
  plan.weights = all.reserve<std::uint16_t>(plan.result_channels * plan.weight_row);
  plan.copy = own.reserve<std::uint32_t>(plan.copy_elements());
  plan.sums = own.reserve<float>(kTapRows * plan.sums_row);
  const bool keeps_planes = plan.phases.size() > 1;
  const std::int64_t planes = keeps_planes ? kTapRows * plan.units.images : 1;
  plan.values = own.reserve<float>(plan.is_dense ? 0 : planes * plan.result_size() + kSlack);
  const std::int64_t padded = round_up(plan.result_channels, kTapColumns);
  std::int64_t packing = 2 * plan.kernel_size * std::max(plan.padded_channels, padded) * 4;
  if (!plan.is_forward) {
    packing += kTapNumbers * plan.kernel_size * padded * 2 + kTapVnni * padded * 4;
  }
  const std::int64_t line = 4 * (std::max(plan.result_size(), plan.source_size) + kSlack);
  plan.line = own.reserve<std::byte>(std::max(packing, line));
  plan.thread_scratch = all.reserve_blocks(plan.threads, own);
  plan.scratch_bytes = all.size_bytes();
}

}  // namespace

KernelOffer offer(const KernelRequest& request, const ConvTask& given) {
  const ConvTask task = in_one_row(given);
  const ConvShape& shape = task.shape;
  auto plan = std::make_shared<Bf16ResultPlan>();
  plan->task = task;
  plan->products = device::cpu_options(request).amx->tap_gemms;
  plan->narrow = device::find_conversion(task.isa, DataType::kFloat32, DataType::kBfloat16);
  plan->widen = device::find_conversion(task.isa, DataType::kBfloat16, DataType::kFloat32);
  plan->threads = request.threads;
  plan->is_forward = task.pass == ConvTask::Pass::kForward;
  plan->kernel_size = shape.kernel_size();
  plan->source_channels = plan->is_forward ? shape.in_channels : shape.out_channels;
  plan->result_channels = plan->is_forward ? shape.out_channels : shape.in_channels;
  if (plan->source_channels < kFewestChannels) return KernelOffer::decline("few channels");
  plan->padded_channels = round_up(plan->source_channels, kTapNumbers);
  const auto is_f16 = [&](int arg) {
    return arg >= 0 && operand(request, arg).dtype == DataType::kBfloat16;
  };
  plan->result_is_f16 = is_f16(plan->is_forward ? task.y : task.x);
  plan->residual_is_f16 = is_f16(task.residual);
  std::array<std::vector<AxisPhase>, 3> phases;
  set_phases(shape, *plan, phases);
  const std::int64_t of_image = plan->copies.lines() * plan->copies.plane();
  if (of_image == 0) return KernelOffer::decline("no taps");
  if (of_image > kLargestPadding * (plan->source_size + plan->result_size()) + kPaddingAllowance) {
    return KernelOffer::decline("mostly padding");
  }
  ConvUnits& units = plan->units;
  units.batch = shape.batch;
  units.images = std::clamp<std::int64_t>(kUnitBytes / (2 * plan->padded_channels * of_image), 1,
                                          std::max<std::int64_t>(units.batch / plan->threads, 1));
  units.images = even_part_of(units.batch, units.images, plan->threads);
  if (units.image_units() < plan->threads) {
    units.blocks = std::min<std::int64_t>(plan->threads, ceil_div(plan->result_channels, kTapRows));
  }
  plan->copies.set_images(plan->units.images);
  std::int64_t span = 0;
  for (const Phase& phase : plan->phases) {
    span = std::max(span, plan->copies.span(phase.counts(), plan->units.images));
  }
  plan->sums_row = round_up(span, kTapColumns) + kTapColumns;
  plan->weight_row = plan->kernel_size * plan->padded_channels + kTapNumbers;
  constexpr std::int64_t kMostBytes = std::numeric_limits<std::int32_t>::max();
  if (2 * plan->padded_channels * plan->copies.channel() > kMostBytes ||
      2 * plan->weight_row > kMostBytes) {
    return KernelOffer::decline("too large for its offsets");
  }
  set_offsets(shape, *plan);
  place_scratch(*plan);
  const std::int64_t scratch = plan->scratch_bytes;
  const std::int64_t images = plan->units.images;
  return offer_of(kKernel<run>, std::move(plan), shape, images, scratch);
}

}  // namespace onnxgrad::ops::conv_bf16::result
