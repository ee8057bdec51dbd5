#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <vector>

#include "device/cpu/gemm_tile.h"
#include "device/cpu/threads.h"
#include "ops/kernel_support.h"
#include "ops/nn/conv/conv_source_cpu.h"
#include "ops/nn/conv/conv_units_cpu.h"
#include "ops/nn/conv/depthwise_tiles_simd.h"

// Depthwise convolutions: every channel is a separate group. A vector of channels is computed at
// once: their planes are transposed to pixels of that many channels, padded by zeros, in bands that
// stay in the L2 cache. Start reading at Band::read, Results::run and Sums::run.

namespace onnxgrad::ops::depth {
namespace {

// Size of the source and result pixels of a band.
constexpr std::int64_t kBandBytes = std::int64_t{192} * 1024;

/// Results that share their taps; see AxisPhase. Places are element offsets, for a full band.
struct Phase {
  std::vector<std::int64_t> taps = {};     ///< positions in the kernel
  std::vector<std::int32_t> offsets = {};  ///< [taps], in source pixels
  std::vector<std::int32_t> places = {};   ///< pixel that the first tap reads
  std::vector<std::int32_t> results = {};  ///< result pixel
  std::int64_t axis_count = 0;             ///< positions along the axis of the bands
  std::int64_t inner = 0;                  ///< positions per position on that axis
};

struct Extent {
  std::array<std::int64_t, 3> size = {};   ///< size of the tensor
  std::array<std::int64_t, 3> low = {};    ///< first position of the first band
  std::array<std::int64_t, 3> count = {};  ///< positions of a band
  std::int64_t band_step = 0;              ///< positions from one band to the next

  std::int64_t plane() const { return size[0] * size[1] * size[2]; }
  std::int64_t pixels() const { return count[0] * count[1] * count[2]; }
};

struct DepthwisePlan {
  ConvTask task;
  int threads = 1;
  std::int64_t batch = 0, channels = 0, lanes = 1, taps = 0;
  std::size_t axis = 0;    ///< axis along which bands are split
  std::int64_t block = 0;  ///< positions of every phase per band
  std::int64_t bands = 1;
  Extent source, result;
  std::vector<Phase> phases;
  std::int64_t parts = 1;  ///< parts of the batch, for sums
  // Arrays of T in scratch.
  ScratchArray<std::byte> sums = {};  ///< [parts, blocks, taps, lanes]
  ScratchBlocks thread_scratch = {};
  ScratchArray<std::byte> source_pixels = {}, result_pixels = {}, weights = {};
  std::int64_t scratch_bytes = 0;

  bool is_sum() const { return task.pass == ConvTask::Pass::kBackwardWeight; }
  bool is_forward() const { return task.pass != ConvTask::Pass::kBackwardData; }
  std::int64_t blocks() const { return ceil_div(channels, lanes); }
  std::int64_t width(std::int64_t block_index) const {
    return std::min(lanes, channels - block_index * lanes);
  }
};

template <class T>
T* array(ScratchArray<std::byte> place, std::byte* block) {
  return reinterpret_cast<T*>(place.in(block));
}

/// Pixels of one band, for a vector of channels.
template <class T>
class Band {
 public:
  Band(const DepthwisePlan& plan, const Extent& extent, T* pixels)
      : plan_(plan), extent_(extent), pixels_(pixels) {
    clear();
  }

  const T* pixels() const { return pixels_; }

  /// Reads a band; `planes` points to channel 0 of the image.
  void read(const T* planes, std::int64_t channel, std::int64_t channels, std::int64_t band) {
    if (plan_.bands > 1 && is_padded()) clear();  // each band has its padding in other places
    visit_rows(band, [&](std::int64_t plane_at, std::int64_t pixel_at, std::int64_t count) {
      device::gemm_target<T>(plan_.task.isa)
          .transpose(planes + channel * extent_.plane() + plane_at, extent_.plane(),
                     pixels_ + pixel_at * plan_.lanes, plan_.lanes, channels, count);
    });
  }
  void write(T* planes, std::int64_t channel, std::int64_t channels, std::int64_t band) const {
    visit_rows(band, [&](std::int64_t plane_at, std::int64_t pixel_at, std::int64_t count) {
      device::gemm_target<T>(plan_.task.isa)
          .transpose(pixels_ + pixel_at * plan_.lanes, plan_.lanes,
                     planes + channel * extent_.plane() + plane_at, extent_.plane(), count,
                     channels);
    });
  }

 private:
  void clear() { std::fill_n(pixels_, extent_.pixels() * plan_.lanes, T(0)); }
  bool is_padded() const {
    for (std::size_t i = 0; i < 3; ++i) {
      if (extent_.low[i] < 0 || extent_.low[i] + extent_.count[i] > extent_.size[i]) return true;
    }
    return (plan_.bands - 1) * extent_.band_step + extent_.low[plan_.axis] +
               extent_.count[plan_.axis] >
           extent_.size[plan_.axis];
  }

  /// Calls f(offset in a plane, pixel, count) for runs of positions inside the tensor.
  template <class F>
  void visit_rows(std::int64_t band, F&& f) const {
    std::array<std::int64_t, 3> low = extent_.low;
    low[plan_.axis] += band * extent_.band_step;
    std::array<std::int64_t, 3> begin = {};
    std::array<std::int64_t, 3> end = {};
    for (std::size_t i = 0; i < 3; ++i) {
      begin[i] = std::max<std::int64_t>(low[i], 0);
      end[i] = std::min(low[i] + extent_.count[i], extent_.size[i]);
      if (begin[i] >= end[i]) return;
    }
    const auto& [depth, height, width] = extent_.size;
    const bool whole_rows = low[2] == 0 && extent_.count[2] == width;
    const std::int64_t rows = whole_rows ? end[1] - begin[1] : 1;
    for (std::int64_t d = begin[0]; d < end[0]; ++d) {
      for (std::int64_t h = begin[1]; h < end[1]; h += rows) {
        const std::int64_t pixel =
            ((d - low[0]) * extent_.count[1] + h - low[1]) * extent_.count[2] + begin[2] - low[2];
        f((d * height + h) * width + begin[2], pixel, rows * (end[2] - begin[2]));
      }
    }
  }

  const DepthwisePlan& plan_;
  const Extent& extent_;
  T* pixels_;
};

/// Returns the number of positions of a phase in a band.
std::int64_t positions(const DepthwisePlan& plan, const Phase& phase, std::int64_t band) {
  return std::clamp<std::int64_t>(phase.axis_count - band * plan.block, 0, plan.block) *
         phase.inner;
}

/// Worker that computes y from x, or x from y.
template <class T>
class Results {
 public:
  Results(const DepthwisePlan& plan, KernelArgs args, std::byte* own)
      : plan_(plan),
        args_(args),
        from_(args.at<T>(plan.is_forward() ? plan.task.x : plan.task.y)),
        to_(args.at<T>(plan.is_forward() ? plan.task.y : plan.task.x)),
        w_(args.at<T>(plan.task.w)),
        bias_(args.find<const T>(plan.task.bias)),
        weights_(array<T>(plan.weights, own)),
        source_(plan, plan.source, array<T>(plan.source_pixels, own)),
        result_(plan, plan.result, array<T>(plan.result_pixels, own)),
        result_pixels_(array<T>(plan.result_pixels, own)) {}

  /// Computes units [first, last), whose parts are vectors of channels and whose blocks are bands.
  void run(const ConvUnits& units, std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) {
      const ConvUnits::Unit unit = units.at(i);
      const std::int64_t image = unit.image;
      const std::int64_t band = unit.block;
      const std::int64_t channel = unit.part * plan_.lanes;
      const std::int64_t channels = plan_.width(unit.part);
      if (i == first || (band == 0 && image == 0)) pack(channel, channels);
      source_.read(from_ + image * plan_.channels * plan_.source.plane(), channel, channels, band);
      const T* weights = weights_ + (plan_.taps + 1) * plan_.lanes;
      for (const Phase& phase : plan_.phases) {
        const auto taps = static_cast<std::int64_t>(phase.taps.size());
        add_results(plan_.task.isa, DepthResults<T>{.source = source_.pixels(),
                                                    .places = phase.places.data(),
                                                    .offsets = phase.offsets.data(),
                                                    .weights = weights,
                                                    .taps = taps,
                                                    .start = weights_ + plan_.taps * plan_.lanes,
                                                    .result = result_pixels_,
                                                    .result_places = phase.results.data(),
                                                    .count = positions(plan_, phase, band)});
        weights += taps * plan_.lanes;
      }
      result_.write(to_ + image * plan_.channels * plan_.result.plane(), channel, channels, band);
      const Extent& extent = plan_.result;
      const std::int64_t inner = extent.plane() / extent.size[plan_.axis];
      const std::int64_t begin = band * extent.band_step;
      finish_results<T>(
          plan_.task, args_, (image * plan_.channels + channel) * extent.plane() + begin * inner,
          channels, extent.plane(),
          std::min(extent.count[plan_.axis], extent.size[plan_.axis] - begin) * inner);
    }
  }

 private:
  /// Packs the weights as pixels: all taps, the bias, then the taps of one phase after another.
  void pack(std::int64_t channel, std::int64_t channels) {
    const std::int64_t lanes = plan_.lanes;
    T* bias = weights_ + plan_.taps * lanes;
    std::fill(weights_, bias + lanes, T(0));
    device::gemm_target<T>(plan_.task.isa)
        .transpose(w_ + channel * plan_.taps, plan_.taps, weights_, lanes, channels, plan_.taps);
    if (bias_ != nullptr) std::copy_n(bias_ + channel, channels, bias);
    T* to = bias + lanes;
    for (const Phase& phase : plan_.phases) {
      for (const std::int64_t tap : phase.taps) to = std::copy_n(weights_ + tap * lanes, lanes, to);
    }
  }

  const DepthwisePlan& plan_;
  KernelArgs args_;
  const T* from_;
  T* to_;
  const T* w_;
  const T* bias_;
  T* weights_;
  Band<T> source_;
  Band<T> result_;
  T* result_pixels_;
};

/// Worker that computes w from x and y.
template <class T>
class Sums {
 public:
  Sums(const DepthwisePlan& plan, KernelArgs args, std::byte* own)
      : plan_(plan),
        x_(args.at<T>(plan.task.x)),
        y_(args.at<T>(plan.task.y)),
        w_(args.at<T>(plan.task.w)),
        sums_(array<T>(plan.sums, args[plan.task.scratch])),
        x_pixels_(plan, plan.source, array<T>(plan.source_pixels, own)),
        y_pixels_(plan, plan.result, array<T>(plan.result_pixels, own)) {}

  /// Computes units [first, last): parts of the batch and vectors of channels.
  void run(std::int64_t first, std::int64_t last) {
    const Phase& phase = plan_.phases.front();
    for (std::int64_t unit = first; unit < last; ++unit) {
      const std::int64_t part = unit / plan_.blocks();
      const std::int64_t block = unit % plan_.blocks();
      const std::int64_t channel = block * plan_.lanes;
      const std::int64_t channels = plan_.width(block);
      T* sums = sums_ + unit * plan_.taps * plan_.lanes;
      std::fill_n(sums, plan_.taps * plan_.lanes, T(0));
      const std::int64_t end = plan_.batch * (part + 1) / plan_.parts;
      for (std::int64_t n = plan_.batch * part / plan_.parts; n < end; ++n) {
        for (std::int64_t band = 0; band < plan_.bands; ++band) {
          x_pixels_.read(x_ + n * plan_.channels * plan_.source.plane(), channel, channels, band);
          y_pixels_.read(y_ + n * plan_.channels * plan_.result.plane(), channel, channels, band);
          add_sums(plan_.task.isa, DepthSums<T>{.source = x_pixels_.pixels(),
                                                .places = phase.places.data(),
                                                .offsets = phase.offsets.data(),
                                                .y = y_pixels_.pixels(),
                                                .count = positions(plan_, phase, band),
                                                .taps = plan_.taps,
                                                .sums = sums});
        }
      }
    }
  }

  /// Writes the weights of the vectors of channels [first, last), adding the parts in order.
  void write(std::int64_t first, std::int64_t last) {
    const std::int64_t count = plan_.taps * plan_.lanes;
    for (std::int64_t block = first; block < last; ++block) {
      T* sums = sums_ + block * count;
      for (std::int64_t part = 1; part < plan_.parts; ++part) {
        const T* more = sums + part * plan_.blocks() * count;
        for (std::int64_t i = 0; i < count; ++i) sums[i] += more[i];
      }
      device::gemm_target<T>(plan_.task.isa)
          .transpose(sums, plan_.lanes, w_ + block * plan_.lanes * plan_.taps, plan_.taps,
                     plan_.taps, plan_.width(block));
    }
  }

 private:
  const DepthwisePlan& plan_;
  const T* x_;
  const T* y_;
  T* w_;
  T* sums_;
  Band<T> x_pixels_;
  Band<T> y_pixels_;
};

template <class T>
void run(const DepthwisePlan& plan, KernelArgs args) {
  const auto own = [&](const device::Chunk& chunk) {
    return plan.thread_scratch.in(args[plan.task.scratch], chunk.thread);
  };
  if (!plan.is_sum()) {
    const ConvUnits units{.batch = plan.batch, .blocks = plan.bands, .parts = plan.blocks()};
    const std::int64_t count = units.count();
    device::on_threads(
        plan.threads, device::chunks_of(plan.threads, count), [&](const device::Chunk& chunk) {
          Results<T>(plan, args, own(chunk)).run(units, chunk.first(count), chunk.last(count));
        });
    return;
  }
  const std::int64_t units = plan.parts * plan.blocks();
  device::on_threads(plan.threads, device::chunks_of(plan.threads, units),
                     [&](const device::Chunk& chunk) {
                       Sums<T>(plan, args, own(chunk)).run(chunk.first(units), chunk.last(units));
                     });
  device::on_threads(plan.threads, [&](const device::Chunk& chunk) {
    Sums<T>(plan, args, own(chunk)).write(chunk.first(plan.blocks()), chunk.last(plan.blocks()));
  });
}

/// Sets the positions that a band of `block` positions reads and writes.
void set_extents(DepthwisePlan& plan, const std::vector<AxisPhases>& phases, std::int64_t block) {
  const std::size_t axis = plan.axis;
  std::array<SourceAxis, 3> covered;
  for (const AxisPhases& axes : phases) {
    for (std::size_t i = 0; i < 3; ++i) {
      AxisPhase phase = axes[i];
      if (i == axis) phase.count = block;
      covered[i].cover(phase);
    }
  }
  const AxisPhase& along = phases.front()[axis];
  plan.block = block;
  plan.bands = ceil_div(along.count, block);
  for (std::size_t i = 0; i < 3; ++i) {
    plan.source.low[i] = covered[i].low;
    plan.source.count[i] = covered[i].padded();
    plan.result.low[i] = 0;
    plan.result.count[i] = plan.result.size[i];
  }
  plan.source.band_step = along.source_step * block;
  plan.result.count[axis] = std::min(along.step * block, plan.result.size[axis]);
  plan.result.band_step = along.step * block;
}

void set_tables(DepthwisePlan& plan, const std::vector<AxisPhases>& phases) {
  const auto place = [&](const Extent& extent, std::int64_t d, std::int64_t h, std::int64_t w) {
    return static_cast<std::int32_t>(((d * extent.count[1] + h) * extent.count[2] + w) *
                                     plan.lanes);
  };
  const auto& kernel = plan.task.shape.axes;
  for (const AxisPhases& axes : phases) {
    Phase phase;
    for (const AxisTap& d : axes[0].taps) {
      for (const AxisTap& h : axes[1].taps) {
        for (const AxisTap& w : axes[2].taps) {
          phase.taps.push_back((d.tap * kernel[1].kernel + h.tap) * kernel[2].kernel + w.tap);
          phase.offsets.push_back(place(plan.source, d.offset - plan.source.low[0],
                                        h.offset - plan.source.low[1],
                                        w.offset - plan.source.low[2]));
        }
      }
    }
    std::array<std::int64_t, 3> count = {axes[0].count, axes[1].count, axes[2].count};
    phase.axis_count = count[plan.axis];
    count[plan.axis] = std::min(plan.block, phase.axis_count);
    phase.inner = count[0] * count[1] * count[2] / std::max<std::int64_t>(count[plan.axis], 1);
    const auto source = [&](std::size_t i, std::int64_t q) { return q * axes[i].source_step; };
    const auto result = [&](std::size_t i, std::int64_t q) {
      return axes[i].first + q * axes[i].step;
    };
    for (std::int64_t d = 0; d < count[0]; ++d) {
      for (std::int64_t h = 0; h < count[1]; ++h) {
        for (std::int64_t w = 0; w < count[2]; ++w) {
          phase.places.push_back(place(plan.source, source(0, d), source(1, h), source(2, w)));
          phase.results.push_back(place(plan.result, result(0, d), result(1, h), result(2, w)));
        }
      }
    }
    plan.phases.push_back(std::move(phase));
  }
}

/// Plans the convolution; nullptr if the work on padding would outweigh everything else.
std::shared_ptr<DepthwisePlan> make_plan(const ConvTask& task, int threads, std::int64_t lanes,
                                         std::int64_t element_bytes) {
  auto plan = std::make_shared<DepthwisePlan>();
  const ConvShape& shape = task.shape;
  const std::vector<AxisPhases> phases = phases_of(task);
  if (phases.empty()) return nullptr;
  plan->task = task;
  plan->threads = threads;
  plan->batch = shape.batch;
  plan->channels = shape.groups;
  plan->lanes = lanes;
  plan->taps = shape.kernel_size();
  for (std::size_t i = 0; i < 3; ++i) {
    const auto& [input, output] = std::pair(shape.axes[i].input, shape.axes[i].output);
    plan->source.size[i] = plan->is_forward() ? input : output;
    plan->result.size[i] = plan->is_forward() ? output : input;
  }
  while (plan->axis < 2 && plan->result.size[plan->axis] == 1) ++plan->axis;
  const std::int64_t all = phases.front()[plan->axis].count;
  set_extents(*plan, phases, all);
  const auto bytes = [&] {
    return (plan->source.pixels() + plan->result.pixels()) * lanes * element_bytes;
  };
  if (plan->source.pixels() >
      kLargestPadding * (plan->source.plane() + plan->result.plane()) + kPaddingAllowance) {
    return nullptr;
  }
  for (std::int64_t bands = 2; bytes() > kBandBytes && plan->block > 1; ++bands) {
    set_extents(*plan, phases, ceil_div(all, bands));
  }
  if (plan->source.pixels() * lanes > std::numeric_limits<std::int32_t>::max()) return nullptr;
  set_tables(*plan, phases);
  if (plan->is_sum()) {
    plan->parts = std::clamp<std::int64_t>(ceil_div(threads, plan->blocks()), 1, plan->batch);
  }
  const std::int64_t pixel_bytes = lanes * element_bytes;
  ScratchLayout scratch, own;
  plan->sums = scratch.reserve<std::byte>(
      plan->is_sum() ? plan->parts * plan->blocks() * plan->taps * pixel_bytes : 0);
  plan->source_pixels = own.reserve<std::byte>(plan->source.pixels() * pixel_bytes);
  plan->result_pixels = own.reserve<std::byte>(plan->result.pixels() * pixel_bytes);
  // All taps, the bias, and the taps of all phases.
  plan->weights = own.reserve<std::byte>((2 * plan->taps + 1) * pixel_bytes);
  plan->thread_scratch = scratch.reserve_blocks(threads, own);
  plan->scratch_bytes = scratch.size_bytes();
  return plan;
}

template <class T>
KernelOffer offer(const KernelRequest& request, const ConvTask& task) {
  auto plan = make_plan(task, request.threads, depth_lanes<T>(task.isa), sizeof(T));
  if (plan == nullptr) return KernelOffer::decline("mostly padding");
  opdef::PreparedKernel kernel;
  kernel.fn = kKernel<run<T>>;
  kernel.scratch_bytes = plan->scratch_bytes;
  kernel.label = "depthwise";
  kernel.flops = task.shape.flops();
  kernel.data = std::move(plan);
  return {.kernel = std::move(kernel), .declined = {}};
}

}  // namespace
}  // namespace onnxgrad::ops::depth

namespace onnxgrad::ops {

KernelOffer offer_depthwise(const KernelRequest& request, const ConvTask& task) {
  const ConvShape& shape = task.shape;
  if (shape.groups == 1 || shape.in_channels != 1 || shape.out_channels != 1) {
    return KernelOffer::decline("channels chunk results");
  }
  if (shape.flops() == 0) return KernelOffer::decline("an empty tensor");
  return request.outputs[0].dtype == DataType::kFloat32 ? depth::offer<float>(request, task)
                                                        : depth::offer<double>(request, task);
}

}  // namespace onnxgrad::ops
