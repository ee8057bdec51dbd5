#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "device/cpu/threads.h"
#include "device/cpu_options.h"
#include "onnxgrad/error.h"
#include "opdef/kernel.h"
#include "opdef/registry.h"
#include "ops/image/sample_taps_simd.h"
#include "ops/image/weighted_sums_simd.h"
#include "ops/kernel_support.h"

// Kernels of GridSample and its gradients. The points of an image are processed in blocks: the taps
// of a block and their weights are computed once for all channels. Points that read patches of 2 x
// 2 elements, as linear interpolation of images does, store one index each.

namespace onnxgrad::ops::grid_sample_cpu {
namespace {

constexpr std::int64_t kEntries = 1024;  // points times taps of a block, which stay in the L1 cache
constexpr std::int64_t kMaxBlock = 256;  // points, a multiple of sample::kPadding
constexpr std::int64_t kParallelElements = 1 << 14;

struct SampleTask {
  std::int64_t images = 0;
  std::int64_t channels = 0;
  std::int64_t points = 0;  // per image
  std::int64_t plane = 1;   // elements per channel
  std::size_t rank = 2;
  device::Isa isa = {};
  std::array<sample::Axis, 3> axes = {};  // outermost first
  std::int64_t taps = 1;
  std::int64_t block = 1;
  int threads = 1;

  bool has_patches() const {
    return rank == 2 && axes[0].mode == sample::Mode::kLinear && axes[0].size > 1 &&
           axes[1].size > 1;
  }
  std::int64_t blocks() const { return ceil_div(points, block); }
};

// Taps of one block of points.
template <class T>
class TapBlock {
 public:
  TapBlock(const SampleTask& task, bool with_slopes) : task_(task), with_slopes_(with_slopes) {}

  // Finds the taps of points [first, first + count) of one image, whose part of the grid is `grid`.
  void find(const T* grid, std::int64_t first, std::int64_t count) {
    const auto rank = static_cast<std::int64_t>(task_.rank);
    table_.split(grid + first * rank, rank, count, kMaxBlock, columns_.data());
    std::int64_t taps = 0;
    for (std::size_t a = 0; a < task_.rank; ++a) {
      // The grid stores the coordinate of the innermost axis first. The taps of the outermost axis
      // vary slowest.
      const T* column = columns_.data() + (rank - 1 - static_cast<std::int64_t>(a)) * kMaxBlock;
      const sample::Axis& axis = task_.axes[a];
      std::int32_t* indices = a == 0 ? indices_.data() : axis_indices_.data();
      T* weights = axis_weights_[a].data();
      table_.find(axis, column, count, task_.block, indices, weights,
                  with_slopes_ ? slopes_[a].data() : nullptr);
      const std::int64_t own = sample::taps_of(axis.mode);
      if (a == 0) {
        std::copy_n(weights, own * task_.block, weights_.data());
        taps = own;
        continue;
      }
      table_.combine(taps, indices, weights, own, axis.size, count, task_.block, indices_.data(),
                     weights_.data());
      taps *= own;
    }
  }

  // Computes y of one channel.
  void sample(const T* x, std::int64_t count, T* y) const {
    const sample::Axis& axis = task_.axes[0];
    if (task_.rank == 2 && axis.mode == sample::Mode::kCubic) {
      return table_.sum_cubic(x, indices_.data(), weights_.data(), axis_weights_[0].data(),
                              axis_weights_[1].data(), count, task_.block, y);
    }
    weighted::Taps<T> all = taps();
    const bool is_copy =
        axis.mode == sample::Mode::kNearest && axis.padding != sample::Padding::kZeros;
    if (is_copy) all.weights = nullptr;
    weighted::gather_sums(x, all, count, y);
  }

  // Adds the block's contribution to dx of one channel.
  void spread(const T* dy, std::int64_t count, T* dx) const {
    for (std::int64_t t = 0; t < task_.taps; ++t) {
      const std::int32_t* indices = indices_.data() + t * task_.block;
      const T* weights = weights_.data() + t * task_.block;
      for (std::int64_t p = 0; p < count; ++p) dx[indices[p]] += weights[p] * dy[p];
    }
  }

  // Sums over channels of dy * x at each tap.
  void clear_sums() { std::fill_n(sums_.begin(), task_.taps * task_.block, T(0)); }
  void add(const T* x, const T* dy, std::int64_t count) {
    weighted::add_gathered(x, taps(), dy, count, sums_.data());
  }

  // Computes dgrid of the block's points from the sums.
  void grid_gradient(std::int64_t count, T* dgrid) const {
    const auto rank = static_cast<std::int64_t>(task_.rank);
    for (std::int64_t a = 0; a < rank; ++a) {
      std::array<T, kMaxBlock> total{};
      for (std::int64_t t = 0; t < task_.taps; ++t) {
        std::array<const T*, 3> factors{};
        std::int64_t rest = t;
        for (std::int64_t b = rank - 1; b >= 0; --b) {
          const auto at = static_cast<std::size_t>(b);
          const std::int64_t taps = sample::taps_of(task_.axes[at].mode);
          const auto& source = a == b ? slopes_[at] : axis_weights_[at];
          factors[at] = source.data() + rest % taps * task_.block;
          rest /= taps;
        }
        table_.add_products(sums_.data() + t * task_.block, factors[0], factors[1], factors[2],
                            count, total.data());
      }
      for (std::int64_t p = 0; p < count; ++p) {
        dgrid[p * rank + (rank - 1 - a)] = total[static_cast<std::size_t>(p)];
      }
    }
  }

 private:
  weighted::Taps<T> taps() const {
    return {.indices = indices_.data(),
            .weights = weights_.data(),
            .taps = task_.taps,
            .stride = task_.block};
  }

  const SampleTask& task_;
  const sample::TapTable<T>& table_ = sample::tap_table<T>(task_.isa);
  bool with_slopes_;
  std::array<T, 3 * kMaxBlock> columns_;
  std::array<std::int32_t, 4 * kMaxBlock> axis_indices_;
  std::array<std::array<T, 4 * kMaxBlock>, 3> axis_weights_;
  std::array<std::array<T, 4 * kMaxBlock>, 3> slopes_;
  std::array<std::int32_t, kEntries> indices_;
  std::array<T, kEntries> weights_;
  std::array<T, kEntries> sums_;
};

// Patches of one block of points, for tasks with has_patches().
template <class T>
class PatchBlock {
 public:
  PatchBlock(const SampleTask& task, bool with_slopes) : task_(task) {
    patches_.slopes = with_slopes ? slopes_.data() : nullptr;
  }
  PatchBlock(const PatchBlock&) = delete;
  PatchBlock& operator=(const PatchBlock&) = delete;

  void find(const T* grid, std::int64_t first, std::int64_t count) {
    table_.split(grid + 2 * first, 2, count, kMaxBlock, columns_.data());
    table_.find_patches(task_.axes[0], task_.axes[1], columns_.data(), count, patches_);
  }

  void sample(const T* x, std::int64_t count, T* y) {
    read(x, count);
    if (count % sample::kPadding == 0) return table_.sum_patches(patches_, count, y);
    table_.sum_patches(patches_, count, space_.data());
    std::copy_n(space_.data(), count, y);
  }

  void spread(const T* dy, std::int64_t count, T* dx) {
    table_.share_patches(patches_, padded(dy, count), count, shares_.data());
    const std::int64_t width = task_.axes[1].size;
    for (std::int64_t p = 0; p < count; ++p) {
      T* upper = dx + first_[static_cast<std::size_t>(p)];
      T* lower = upper + width;
      const T* share = shares_.data() + 4 * p;
      upper[0] += share[0];
      upper[1] += share[1];
      lower[0] += share[2];
      lower[1] += share[3];
    }
  }

  void clear_sums() { shares_.fill(T(0)); }
  void add(const T* x, const T* dy, std::int64_t count) {
    read(x, count);
    table_.add_patches(patches_, padded(dy, count), count, shares_.data());
  }

  void grid_gradient(std::int64_t count, T* dgrid) {
    if (count % sample::kPadding == 0) {
      return table_.patch_slopes(patches_, shares_.data(), count, dgrid);
    }
    table_.patch_slopes(patches_, shares_.data(), count, space_.data());
    std::copy_n(space_.data(), 2 * count, dgrid);
  }

 private:
  void read(const T* x, std::int64_t count) {
    const std::int64_t width = task_.axes[1].size;
    for (std::int64_t p = 0; p < count; ++p) {
      const T* upper = x + first_[static_cast<std::size_t>(p)];
      std::memcpy(elements_.data() + 2 * p, upper, 2 * sizeof(T));
      std::memcpy(elements_.data() + 2 * (kMaxBlock + p), upper + width, 2 * sizeof(T));
    }
  }

  // Returns dy, copied if needed so that whole vectors can be read.
  const T* padded(const T* dy, std::int64_t count) {
    if (count % sample::kPadding == 0) return dy;
    std::copy_n(dy, count, space_.data());
    return space_.data();
  }

  const SampleTask& task_;
  const sample::TapTable<T>& table_ = sample::tap_table<T>(task_.isa);
  std::array<std::int32_t, kMaxBlock> first_ = {};
  std::array<T, 2 * kMaxBlock> columns_ = {};
  std::array<T, 2 * kMaxBlock> space_ = {};
  std::array<T, 4 * kMaxBlock> weights_ = {};
  std::array<T, 4 * kMaxBlock> slopes_ = {};
  std::array<T, 4 * kMaxBlock> elements_ = {};
  std::array<T, 4 * kMaxBlock> shares_ = {};  // weighted dy, or sums
  sample::Patches<T> patches_ = {.first = first_.data(),
                                 .weights = weights_.data(),
                                 .slopes = nullptr,
                                 .elements = elements_.data(),
                                 .stride = kMaxBlock};
};

// args: x, grid, y.
template <class T, class Block>
void run_sample(const SampleTask& task, KernelArgs args) {
  const T* x = args.at<T>(0);
  const T* grid = args.at<T>(1);
  T* y = args.at<T>(2);
  const std::int64_t blocks = task.blocks();
  device::parallel_ranges(
      task.threads, task.images * blocks, [&](std::int64_t begin, std::int64_t end) {
        Block block(task, false);
        for (std::int64_t i = begin; i < end; ++i) {
          const std::int64_t image = i / blocks;
          const std::int64_t first = i % blocks * task.block;
          const std::int64_t count = std::min(task.block, task.points - first);
          block.find(grid + image * task.points * static_cast<std::int64_t>(task.rank), first,
                     count);
          for (std::int64_t c = image * task.channels; c < (image + 1) * task.channels; ++c) {
            block.sample(x + c * task.plane, count, y + c * task.points + first);
          }
        }
      });
}

// args: dy, x (not read), grid, dx. Each thread has its own channels, so that no two threads add to
// one element.
template <class T, class Block>
void run_image_gradient(const SampleTask& task, KernelArgs args) {
  const T* dy = args.at<T>(0);
  const T* grid = args.at<T>(2);
  T* dx = args.at<T>(3);
  device::parallel_ranges(
      task.threads, task.images * task.channels, [&](std::int64_t begin, std::int64_t end) {
        Block block(task, false);
        std::fill(dx + begin * task.plane, dx + end * task.plane, T(0));
        while (begin < end) {
          const std::int64_t image = begin / task.channels;
          const std::int64_t stop = std::min(end, (image + 1) * task.channels);
          for (std::int64_t first = 0; first < task.points; first += task.block) {
            const std::int64_t count = std::min(task.block, task.points - first);
            block.find(grid + image * task.points * static_cast<std::int64_t>(task.rank), first,
                       count);
            for (std::int64_t c = begin; c < stop; ++c) {
              block.spread(dy + c * task.points + first, count, dx + c * task.plane);
            }
          }
          begin = stop;
        }
      });
}

// args: dy, x, grid, dgrid.
template <class T, class Block>
void run_grid_gradient(const SampleTask& task, KernelArgs args) {
  const T* dy = args.at<T>(0);
  const T* x = args.at<T>(1);
  const T* grid = args.at<T>(2);
  T* dgrid = args.at<T>(3);
  const std::int64_t blocks = task.blocks();
  const auto rank = static_cast<std::int64_t>(task.rank);
  if (task.axes[0].mode == sample::Mode::kNearest) {  // piecewise constant
    std::fill_n(dgrid, task.images * task.points * rank, T(0));
    return;
  }
  device::parallel_ranges(
      task.threads, task.images * blocks, [&](std::int64_t begin, std::int64_t end) {
        Block block(task, true);
        for (std::int64_t i = begin; i < end; ++i) {
          const std::int64_t image = i / blocks;
          const std::int64_t first = i % blocks * task.block;
          const std::int64_t count = std::min(task.block, task.points - first);
          block.find(grid + image * task.points * rank, first, count);
          block.clear_sums();
          for (std::int64_t c = image * task.channels; c < (image + 1) * task.channels; ++c) {
            block.add(x + c * task.plane, dy + c * task.points + first, count);
          }
          block.grid_gradient(count, dgrid + (image * task.points + first) * rank);
        }
      });
}

[[noreturn]] void refuse(const KernelRequest& request, const Dims& x, const Dims& grid) {
  throw ShapeError(
      {.what = fmt::format("grid {} does not fit input {}", grid.to_string(), x.to_string()),
       .where = {.node = request.node.name, .op_type = request.node.op_type},
       .hint = "Give [N, C, H, W] a grid [N, H_out, W_out, 2], or [N, C, D, H, W] a "
               "grid [N, D_out, H_out, W_out, 3]; neither image may be empty."});
}

SampleTask make_task(const KernelRequest& request, const Dims& x, const Dims& grid) {
  constexpr std::int64_t kMaxPlane = std::int64_t{1} << 30;
  const std::size_t rank = x.rank() - 2;
  const bool fits = (rank == 2 || rank == 3) && grid.rank() == x.rank() && grid[0] == x[0] &&
                    grid[rank + 1] == static_cast<std::int64_t>(rank);
  if (!fits) refuse(request, x, grid);
  SampleTask task{.images = x[0],
                  .channels = x[1],
                  .points = grid.product(1, rank + 1),
                  .plane = x.product(2, x.rank()),
                  .rank = rank,
                  .isa = device::isa_of(request)};
  const std::string mode = request.node.string_attribute("mode");
  const std::string padding = request.node.string_attribute("padding_mode");
  for (std::size_t a = 0; a < rank; ++a) {
    sample::Axis& axis = task.axes[a];
    axis.size = x[a + 2];
    axis.mode = mode == "nearest"  ? sample::Mode::kNearest
                : mode == "linear" ? sample::Mode::kLinear
                                   : sample::Mode::kCubic;
    axis.padding = padding == "zeros"    ? sample::Padding::kZeros
                   : padding == "border" ? sample::Padding::kBorder
                                         : sample::Padding::kReflection;
    axis.align_corners = request.node.int_attribute("align_corners") != 0;
    task.taps *= sample::taps_of(axis.mode);
    if (axis.size >= 1 << 24) refuse(request, x, grid);
  }
  const bool has_work = task.images * task.channels * task.points > 0;
  if ((has_work && task.plane == 0) || task.plane > kMaxPlane) refuse(request, x, grid);
  task.block = std::min(kMaxBlock, kEntries / task.taps);
  const double work = static_cast<double>(task.images) * static_cast<double>(task.points) *
                      static_cast<double>(task.taps * (task.channels + 4));
  task.threads = work < kParallelElements ? 1 : request.threads;
  return task;
}

// Kernels for general taps and for patches.
template <class T>
struct Kernels {
  opdef::KernelFn any;
  opdef::KernelFn patches;
};

KernelOffer offer_task(const KernelRequest& request, std::size_t x, std::size_t grid,
                       const Kernels<float>& of_float, const Kernels<double>& of_double) {
  const DataType dtype = request.inputs[x].dtype;
  if (request.inputs[grid].dtype != dtype) {
    return KernelOffer::decline("input and grid have different types");
  }
  if (dtype != DataType::kFloat32 && dtype != DataType::kFloat64) {
    return decline_dtype(request, dtype);
  }
  SampleTask task = make_task(request, request.inputs[x].dims, request.inputs[grid].dims);
  std::string label = fmt::format("{} taps, blocks of {} points", task.taps, task.block);
  const auto choose = [&](const auto& kernels) {
    return prepared(task.has_patches() ? kernels.patches : kernels.any, task, std::move(label));
  };
  return dtype == DataType::kFloat32 ? choose(of_float) : choose(of_double);
}

KernelOffer offer_sample(const KernelRequest& request) {
  return offer_task(
      request, 0, 1,
      {kKernel<run_sample<float, TapBlock<float>>>, kKernel<run_sample<float, PatchBlock<float>>>},
      {kKernel<run_sample<double, TapBlock<double>>>,
       kKernel<run_sample<double, PatchBlock<double>>>});
}
KernelOffer offer_image_gradient(const KernelRequest& request) {
  return offer_task(request, 1, 2,
                    {kKernel<run_image_gradient<float, TapBlock<float>>>,
                     kKernel<run_image_gradient<float, PatchBlock<float>>>},
                    {kKernel<run_image_gradient<double, TapBlock<double>>>,
                     kKernel<run_image_gradient<double, PatchBlock<double>>>});
}
KernelOffer offer_grid_gradient(const KernelRequest& request) {
  return offer_task(request, 1, 2,
                    {kKernel<run_grid_gradient<float, TapBlock<float>>>,
                     kKernel<run_grid_gradient<float, PatchBlock<float>>>},
                    {kKernel<run_grid_gradient<double, TapBlock<double>>>,
                     kKernel<run_grid_gradient<double, PatchBlock<double>>>});
}

}  // namespace

void register_grid_sample_cpu(opdef::KernelRegistry& registry) {
  registry.add("", "GridSample", 0, offer_sample);
  registry.add(ir::kFunctionDomain, "GridSampleImageGrad", 0, offer_image_gradient);
  registry.add(ir::kFunctionDomain, "GridSampleGridGrad", 0, offer_grid_gradient);
}

}  // namespace onnxgrad::ops::grid_sample_cpu
