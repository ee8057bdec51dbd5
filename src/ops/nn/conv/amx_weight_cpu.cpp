#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

#include "device/cpu/amx_target.h"
#include "device/cpu/gemm_tile.h"
#include "device/cpu/tap_gemms.h"
#include "device/cpu/threads.h"
#include "device/cpu_options.h"
#include "ops/kernel_support.h"
#include "ops/nn/conv/amx_copies_cpu.h"
#include "ops/nn/conv/direct_plan_cpu.h"

// w[m, channel, tap] = sum over images and windows of y * x. A is the copy of x, whose positions
// are contiguous from a tap's first one on; B is y transposed in VNNI layout, [pair of windows, m],
// with zeros for the windows between rows and planes. Threads process separate images and add their
// sums, or, if there are many weights, transpose y together and each computes the sums of its
// channels, or of its taps if there are few channels. Start reading at run.

namespace onnxgrad::ops::conv_bf16::weight {
namespace {

using device::kTapColumns;
using device::kTapNumbers;
using device::kTapRows;
using device::kTapVnni;

constexpr std::int64_t kUnitBytes = std::int64_t{768} * 1024;  // x and y of a unit, in the L2 cache
constexpr std::int64_t kFewestColumns = 16;
constexpr std::int64_t kOwnSumBytes = std::int64_t{1024} * 1024;
constexpr std::int64_t kConsumedChannels = 64;

struct Bf16WeightPlan {
  ConvTask task;
  device::TapGemmsFn products = nullptr;
  int threads = 1;
  std::int64_t batch = 0, channels = 0, columns = 0, taps = 0;
  std::int64_t padded_columns = 0;
  std::int64_t x_size = 0;
  std::array<std::int64_t, 3> windows = {};
  Copies copies;
  bool splits_images = false, splits_taps = false;
  std::int64_t images = 1;
  std::int64_t length = 0;  ///< line of windows of a unit, in whole steps
  std::vector<std::int64_t> tap_offsets = {};
  std::vector<std::int32_t> a_offsets = {}, b_offsets = {};
  /// Transposed y and sums, one set per thread if threads process separate images.
  std::int64_t sets = 1;
  ScratchBlocks set_scratch = {};
  ScratchArray<std::uint32_t> turned = {};
  ScratchArray<float> sums = {};
  /// Copies of x, and rows of y or, later, a block of w.
  ScratchBlocks thread_scratch = {};
  ScratchArray<std::uint16_t> copy = {}, y_rows = {};
  std::int64_t scratch_bytes = 0;

  std::int64_t window_count() const { return windows[0] * windows[1] * windows[2]; }
  std::int64_t rows() const { return channels * taps; }
  std::int64_t steps(std::int64_t of_images) const {
    return ceil_div(copies.span(windows, of_images), kTapNumbers);
  }
};

class Worker {
 public:
  /// all: all chunks; chunk: those that process the same images.
  Worker(const Bf16WeightPlan& plan, KernelArgs args, const device::Chunk& all,
         const device::Chunk& chunk)
      : plan_(plan), args_(args), all_(all), chunk_(chunk) {
    std::byte* scratch = args[plan.task.scratch];
    std::byte* set = plan.set_scratch.in(scratch, plan.splits_images ? all.index : 0);
    turned_ = plan.turned.in(set);
    sums_ = plan.sums.in(set);
    std::byte* own = plan.thread_scratch.in(scratch, all.index);
    copy_ = plan.copy.in(own);
    rows_ = plan.y_rows.in(own);
    const std::int64_t blocks = ceil_div(plan.channels, kTapColumns);
    first_ = plan.splits_taps ? 0 : std::min(chunk.first(blocks) * kTapColumns, plan.channels);
    last_ = plan.splits_taps ? plan.channels
                             : std::min(chunk.last(blocks) * kTapColumns, plan.channels);
    first_tap_ = plan.splits_taps ? chunk.first(plan.taps) : 0;
    last_tap_ = plan.splits_taps ? chunk.last(plan.taps) : plan.taps;
  }

  /// Makes copies of some images, for add_products().
  void copy(std::int64_t image, std::int64_t images, bool is_first) {
    if (is_first) {
      std::fill_n(copy_, (last_ - first_) * plan_.copies.channel(), std::uint16_t{0});
    }
    turn_y(image, images);
    copy_x(image, images);
  }

  /// Adds the products of `images` images that have been copied, or sets the sums to them.
  void add_products(std::int64_t images, bool adds) const {
    const std::int64_t steps = plan_.steps(images);
    for (std::int64_t c = first_; c < last_; c += kTapRows) {
      const std::uint16_t* x =
          copy_ + (c - first_) * plan_.copies.channel() + plan_.copies.origin();
      for (std::int64_t tap = first_tap_; tap < last_tap_; ++tap) {
        plan_.products({.a = reinterpret_cast<const std::byte*>(
                            x + plan_.tap_offsets[static_cast<std::size_t>(tap)]),
                        .a_row = plan_.copies.channel() * 2,
                        .a_offsets = plan_.a_offsets.data(),
                        .b = reinterpret_cast<const std::byte*>(turned_),
                        .b_row = plan_.padded_columns * 4,
                        .b_offsets = plan_.b_offsets.data(),
                        .steps = steps,
                        .sums = sums_ + (c * plan_.taps + tap) * plan_.padded_columns,
                        .sums_row = plan_.taps * plan_.padded_columns,
                        .rows = std::min(kTapRows, last_ - c),
                        .columns = plan_.padded_columns,
                        .adds = adds});
      }
    }
  }

  /// Writes the rows of w of this chunk, summed over all sets.
  void write() {
    const std::int64_t first = all_.first(plan_.rows());
    const std::int64_t last = all_.last(plan_.rows());
    if (first == last) return;
    const auto sums_of = [&](std::int64_t set) {
      return plan_.sums.in(plan_.set_scratch.in(args_[plan_.task.scratch], set)) +
             first * plan_.padded_columns;
    };
    float* sums = sums_of(0);
    for (std::int64_t other = 1; other < plan_.sets; ++other) {
      const float* from = sums_of(other);
      for (std::int64_t i = 0; i < (last - first) * plan_.padded_columns; ++i) sums[i] += from[i];
    }
    auto* spare = reinterpret_cast<float*>(rows_);  // y is no longer needed
    for (std::int64_t m = 0; m < plan_.columns; m += kConsumedChannels) {
      finish_weights<float>(plan_.task, args_,
                            {.from = sums + m,
                             .from_row = plan_.padded_columns,
                             .channel = m,
                             .channels = std::min(kConsumedChannels, plan_.columns - m),
                             .column = first,
                             .columns = last - first},
                            spare);
    }
  }

 private:
  /// Transposes y to VNNI layout [pair of windows, m], for this thread's blocks of m.
  void turn_y(std::int64_t image, std::int64_t images) {
    const std::int64_t blocks = plan_.padded_columns / kTapColumns;
    const std::int64_t length = plan_.steps(images) * kTapNumbers;
    // The gaps between windows are zeros; the windows themselves overwrite those of the last unit
    // or block.
    std::fill_n(rows_, kTapColumns * plan_.length, std::uint16_t{0});
    for (std::int64_t b = chunk_.first(blocks); b < chunk_.last(blocks); ++b) {
      const std::int64_t m = b * kTapColumns;
      const std::int64_t count = std::min(kTapColumns, plan_.columns - m);
      for (std::int64_t j = 0; j < kTapColumns; ++j) {
        std::uint16_t* row = rows_ + j * plan_.length;
        if (j >= count) {
          std::fill_n(row, length, std::uint16_t{0});
          continue;
        }
        for (std::int64_t i = 0; i < images; ++i) {
          copy_windows((image + i) * plan_.columns + m + j, row + i * plan_.copies.plane());
        }
      }
      device::gemm_target<float>(plan_.task.isa)
          .transpose(reinterpret_cast<const float*>(rows_), plan_.length / 2,
                     reinterpret_cast<float*>(turned_ + m), plan_.padded_columns, kTapColumns,
                     length / 2);
    }
  }

  /// Copies one plane of y with the row and plane pitch of x's copies.
  void copy_windows(std::int64_t plane, std::uint16_t* to) const {
    const auto& [depth, height, width] = plan_.windows;
    const std::uint16_t* from = halves(plan_.task.y) + plane * plan_.window_count();
    if (plan_.copies.row_pitch() == width && plan_.copies.depth_pitch() == height * width) {
      std::copy_n(from, plan_.window_count(), to);
      return;
    }
    for (std::int64_t d = 0; d < depth; ++d) {
      for (std::int64_t h = 0; h < height; ++h, from += width) {
        std::copy_n(from, width,
                    to + d * plan_.copies.depth_pitch() + h * plan_.copies.row_pitch());
      }
    }
  }

  const std::uint16_t* halves(int arg) const { return args_.at<const std::uint16_t>(arg); }

  void copy_x(std::int64_t image, std::int64_t images) {
    for (std::int64_t c = first_; c < last_; ++c) {
      std::uint16_t* to = copy_ + (c - first_) * plan_.copies.channel();
      for (std::int64_t i = 0; i < images; ++i) {
        const std::uint16_t* plane =
            halves(plan_.task.x) + ((image + i) * plan_.channels + c) * plan_.x_size;
        plan_.copies.for_rows(
            i, [&](std::int64_t at, std::int64_t first, std::int64_t count, std::int64_t step) {
              if (step == 1) {
                std::copy_n(plane + first, count, to + at);
                return;
              }
              for (std::int64_t k = 0; k < count; ++k) to[at + k] = plane[first + k * step];
            });
      }
    }
  }

  const Bf16WeightPlan& plan_;
  KernelArgs args_;
  device::Chunk all_, chunk_;
  std::uint32_t* turned_;
  float* sums_;
  std::uint16_t* copy_;
  std::uint16_t* rows_;
  std::int64_t first_ = 0, last_ = 0;  ///< channels
  std::int64_t first_tap_ = 0, last_tap_ = 0;
};

void run(const Bf16WeightPlan& plan, KernelArgs args) {
  const auto visit_images = [&](std::int64_t first, std::int64_t last, const auto& f) {
    for (std::int64_t image = first; image < last; image += plan.images) {
      f(image, std::min(plan.images, last - image), image == first);
    }
  };
  using device::Chunk;
  if (plan.splits_images) {
    device::on_threads(plan.threads, [&](const Chunk& chunk) {
      Worker worker(plan, args, chunk, {});
      visit_images(chunk.first(plan.batch), chunk.last(plan.batch),
                   [&](std::int64_t image, std::int64_t images, bool is_first) {
                     worker.copy(image, images, is_first);
                     worker.add_products(images, !is_first);
                   });
    });
  } else {
    visit_images(0, plan.batch, [&](std::int64_t image, std::int64_t images, bool is_first) {
      device::on_threads(plan.threads, [&](const Chunk& chunk) {
        Worker(plan, args, chunk, chunk).copy(image, images, is_first);
      });
      device::on_threads(plan.threads, [&](const Chunk& chunk) {
        Worker(plan, args, chunk, chunk).add_products(images, !is_first);
      });
    });
  }
  device::on_threads(plan.threads,
                     [&](const Chunk& chunk) { Worker(plan, args, chunk, chunk).write(); });
}

void set_taps(const ConvShape& shape, Bf16WeightPlan& plan) {
  const auto taps = [&](std::size_t i) { return forward_phase(shape.axes[i]).taps; };
  for (const AxisTap& d : taps(0)) {
    for (const AxisTap& h : taps(1)) {
      for (const AxisTap& w : taps(2)) {
        plan.tap_offsets.push_back(plan.copies.offset(d.offset, h.offset, w.offset));
      }
    }
  }
  for (std::int64_t s = 0; s < plan.length / kTapNumbers; ++s) {
    plan.a_offsets.push_back(static_cast<std::int32_t>(2 * s * kTapNumbers));
    plan.b_offsets.push_back(static_cast<std::int32_t>(4 * s * kTapVnni * plan.padded_columns));
  }
}

void place_scratch(Bf16WeightPlan& plan) {
  ScratchLayout set;
  plan.turned = set.reserve<std::uint32_t>(plan.length / 2 * plan.padded_columns);
  plan.sums = set.reserve<float>(plan.rows() * plan.padded_columns);
  plan.sets = plan.splits_images ? plan.threads : 1;
  const std::int64_t blocks = ceil_div(plan.channels, kTapColumns);
  const bool has_all = plan.splits_images || plan.splits_taps;
  const std::int64_t own = has_all ? plan.channels : ceil_div(blocks, plan.threads) * kTapColumns;
  const std::int64_t spare = plan.task.update == nullptr ? 0 : kConsumedChannels * kConsumedColumns;
  ScratchLayout thread;
  plan.copy = thread.reserve<std::uint16_t>(own * plan.copies.channel());
  plan.y_rows = thread.reserve<std::uint16_t>(std::max(kTapColumns * plan.length, 2 * spare));
  ScratchLayout all;
  plan.set_scratch = all.reserve_blocks(plan.sets, set);
  plan.thread_scratch = all.reserve_blocks(plan.threads, thread);
  plan.scratch_bytes = all.size_bytes();
}

}  // namespace

KernelOffer offer(const KernelRequest& request, const ConvTask& given) {
  const ConvTask task = in_one_row(given);
  const ConvShape& shape = task.shape;
  if (shape.out_channels < kFewestColumns) return KernelOffer::decline("few channels");
  auto plan = std::make_shared<Bf16WeightPlan>();
  plan->task = task;
  plan->products = device::cpu_options(request).amx->tap_gemms;
  plan->threads = request.threads;
  plan->batch = shape.batch;
  plan->channels = shape.in_channels;
  plan->columns = shape.out_channels;
  plan->padded_columns = round_up(plan->columns, kTapColumns);
  plan->taps = shape.kernel_size();
  plan->x_size = shape.input_size();
  plan->splits_images =
      plan->threads > 1 && plan->batch >= plan->threads &&
      plan->rows() * plan->padded_columns * std::int64_t{sizeof(float)} <= kOwnSumBytes;
  plan->splits_taps = !plan->splits_images && plan->channels <= kTapColumns * (plan->threads - 1);
  std::array<std::vector<AxisPhase>, 3> phases;
  std::array<std::int64_t, 3> sizes = {};
  for (std::size_t i = 0; i < 3; ++i) {
    phases[i] = {forward_phase(shape.axes[i])};
    sizes[i] = shape.axes[i].input;
    plan->windows[i] = shape.axes[i].output;
  }
  plan->copies = Copies(phases, sizes);
  const std::int64_t of_image = plan->copies.lines() * plan->copies.plane();
  if (of_image > kLargestPadding * (plan->x_size + plan->window_count()) + kPaddingAllowance) {
    return KernelOffer::decline("mostly padding");
  }
  const std::int64_t sharing = plan->splits_images ? 1 : plan->threads;
  const std::int64_t of_thread = plan->splits_images ? plan->batch / plan->threads : plan->batch;
  const std::int64_t image_bytes =
      2 * (plan->channels * of_image / sharing + plan->padded_columns * plan->copies.plane());
  plan->images =
      split_evenly(of_thread, std::clamp<std::int64_t>(kUnitBytes / image_bytes, 1, of_thread)).big;
  plan->copies.set_images(plan->images);
  plan->length = plan->steps(plan->images) * kTapNumbers;
  constexpr std::int64_t kMostBytes = std::numeric_limits<std::int32_t>::max();
  if (2 * plan->length * plan->padded_columns > kMostBytes) {
    return KernelOffer::decline("too large for its offsets");
  }
  set_taps(shape, *plan);
  place_scratch(*plan);
  const std::int64_t scratch = plan->scratch_bytes;
  const std::int64_t images = plan->images;
  return offer_of(kKernel<run>, std::move(plan), shape, images, scratch);
}

}  // namespace onnxgrad::ops::conv_bf16::weight
