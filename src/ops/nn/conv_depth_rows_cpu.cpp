#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "ops/nn/conv_tiles_cpu.h"
#include "ops/nn/depth_rows.h"

// Depthwise convolutions plane by plane (depth_rows.h): y from x with strides up to 2 along rows,
// and x from y without strides. Start reading at make_plan.

namespace onnxgrad::ops::depth_rows {
namespace {

using opdef::KernelOffer;
using opdef::KernelRequest;
using opdef::Launch;

// Of a padded plane, which stays in the L2 cache.
constexpr std::int64_t kCopyBytes = std::int64_t{256} * 1024;
// Of several, which stay in the L1 cache.
constexpr std::int64_t kCopiesBytes = std::int64_t{12} * 1024;
constexpr std::int64_t kMostCopies = 16;

struct Plan {
  ConvTask task;
  int threads = 1;
  std::int64_t batch = 0, channels = 0;
  depth::PlaneRows rows = {};
  std::vector<std::int32_t> offsets;
  std::int64_t copies = 1;         ///< that are made at once
  std::int64_t copy_elements = 0;  ///< of all of them

  bool is_forward() const { return task.pass == ConvTask::Pass::kForward; }
};

template <class T>
T* pointer(std::byte* const* args, int index) {
  return index < 0 ? nullptr : reinterpret_cast<T*>(args[index]);
}

/// Planes [first, last) of all images.
template <class T>
void run_planes(const Plan& plan, std::byte* const* args, std::int64_t first, std::int64_t last,
                T* copy) {
  const depth::PlaneRows& rows = plan.rows;
  const auto* from = pointer<const T>(args, plan.is_forward() ? plan.task.x : plan.task.y);
  auto* to = pointer<T>(args, plan.is_forward() ? plan.task.y : plan.task.x);
  const auto* weights = pointer<const T>(args, plan.task.w);
  const auto* bias = pointer<const T>(args, plan.task.bias);
  const auto* residual = pointer<const T>(args, plan.task.residual);
  const std::int64_t size = rows.result_slices * rows.result_rows * rows.result_columns;
  std::fill_n(copy, plan.copy_elements, T(0));
  while (first < last) {
    const std::int64_t channel = first % plan.channels;
    const std::int64_t count = std::min(plan.channels - channel, last - first);
    convolve_planes(
        rows, depth::Planes<T>{.from = from + first * rows.from_plane,
                               .weights = weights + channel * rows.taps,
                               .bias = bias == nullptr ? nullptr : bias + channel,
                               .residual = residual == nullptr ? nullptr : residual + first * size,
                               .to = to + first * size,
                               .copy = copy,
                               .copies = plan.copies,
                               .count = count});
    first += count;
  }
}

template <class T>
void run(const void* data, std::byte* const* args, const Launch& /*launch*/) {
  const auto& plan = *static_cast<const Plan*>(data);
  const std::int64_t planes = plan.batch * plan.channels;
  run_on_threads(plan.threads, [&](std::int64_t thread, std::int64_t threads, const auto&) {
    run_planes(plan, args, planes * thread / threads, planes * (thread + 1) / threads,
               pointer<T>(args, plan.task.scratch) + thread * plan.copy_elements);
  });
}

/// What is read of each axis; one phase of results per axis.
std::array<SourceAxis, 3> covered(const std::array<AxisPhase, 3>& axes,
                                  const std::array<std::int64_t, 3>& size) {
  std::array<SourceAxis, 3> source;
  for (std::size_t i = 0; i < 3; ++i) {
    source[i].size = size[i];
    source[i].cover(axes[i]);
  }
  return source;
}

void set_copy(const std::array<SourceAxis, 3>& source, std::int64_t phases, Plan& plan) {
  depth::PlaneRows& rows = plan.rows;
  const auto begin = [&](std::size_t i) { return std::max<std::int64_t>(source[i].low, 0); };
  const auto count = [&](std::size_t i) {
    return std::max<std::int64_t>(std::min(source[i].high, source[i].size) - begin(i), 0);
  };
  rows.from_row = source[2].size;
  rows.from_slice = source[1].size * rows.from_row;
  rows.from_plane = source[0].size * rows.from_slice;
  rows.from_first = begin(0) * rows.from_slice + begin(1) * rows.from_row + begin(2);
  rows.slices = count(0);
  rows.rows = count(1);
  rows.columns = count(2);
  rows.phases = phases;
  rows.phase_columns = (source[2].padded() + phases - 1) / phases;
  rows.copy_row = phases * rows.phase_columns;
  rows.copy_slice = source[1].padded() * rows.copy_row;
  rows.copy_first =
      (begin(0) - source[0].low) * rows.copy_slice + (begin(1) - source[1].low) * rows.copy_row;
  rows.left = begin(2) - source[2].low;
  rows.copy_plane = whole_lines<float>(source[0].padded() * rows.copy_slice + depth::kCopySlack);
  plan.copies = std::clamp<std::int64_t>(
      kCopiesBytes / static_cast<std::int64_t>(sizeof(float)) / rows.copy_plane, 1, kMostCopies);
  plan.copy_elements = plan.copies * rows.copy_plane;
}

void set_taps(const std::array<AxisPhase, 3>& axes, const std::array<SourceAxis, 3>& source,
              Plan& plan) {
  depth::PlaneRows& rows = plan.rows;
  for (const AxisTap& d : axes[0].taps) {
    for (const AxisTap& h : axes[1].taps) {
      for (const AxisTap& w : axes[2].taps) {
        const std::int64_t column = w.offset - source[2].low;
        plan.offsets.push_back(static_cast<std::int32_t>(
            (d.offset - source[0].low) * rows.copy_slice +
            (h.offset - source[1].low) * rows.copy_row + column % rows.phases * rows.phase_columns +
            column / rows.phases));
      }
    }
  }
  rows.taps = static_cast<std::int64_t>(plan.offsets.size());
  const WindowAxis& height = plan.task.shape.axes[1];
  const std::int64_t width = plan.task.shape.axes[2].kernel;
  if (axes[0].taps.size() == 1 && height.kernel == width && height.dilation == 1 &&
      (width == 3 || width == 5)) {
    rows.square = width;
    rows.is_turned = !plan.is_forward();
    if (rows.is_turned) std::ranges::reverse(plan.offsets);
  }
  rows.offsets = plan.offsets.data();
}

/// nullptr: strides that the kernel does not have, or a plane that is too large.
std::shared_ptr<Plan> make_plan(const ConvTask& task, int threads, std::int64_t element_bytes) {
  const ConvShape& shape = task.shape;
  auto plan = std::make_shared<Plan>();
  plan->task = task;
  plan->threads = threads;
  plan->batch = shape.batch;
  plan->channels = shape.groups;
  std::array<AxisPhase, 3> axes;
  std::array<std::int64_t, 3> size = {};
  for (std::size_t i = 0; i < 3; ++i) {
    const WindowAxis& axis = shape.axes[i];
    if (!plan->is_forward() && axis.stride > 1) return nullptr;
    axes[i] = plan->is_forward() ? forward_phase(axis) : backward_phases(axis).front();
    size[i] = plan->is_forward() ? axis.input : axis.output;
  }
  if (axes[2].source_step > depth::kMostRowPhases) return nullptr;
  const auto source = covered(axes, size);
  std::int64_t padded = element_bytes;
  for (const SourceAxis& axis : source) padded *= std::min(axis.padded(), kCopyBytes);
  if (padded > kCopyBytes) return nullptr;
  set_copy(source, axes[2].source_step, *plan);
  set_taps(axes, source, *plan);
  depth::PlaneRows& rows = plan->rows;
  rows.result_slices = axes[0].count;
  rows.result_rows = axes[1].count;
  rows.result_columns = axes[2].count;
  rows.slice_step = axes[0].source_step * rows.copy_slice;
  rows.row_step = axes[1].source_step * rows.copy_row;
  rows.finishes = task.finishes();
  rows.low = task.low;
  rows.high = task.high;
  return plan;
}

template <class T>
KernelOffer offer(const KernelRequest& request, const ConvTask& task) {
  auto plan = make_plan(task, request.threads, sizeof(T));
  if (plan == nullptr) return KernelOffer::decline("strides beyond 2, or planes beyond the cache");
  opdef::PreparedKernel kernel;
  kernel.fn = run<T>;
  kernel.scratch_bytes = plan->copy_elements * plan->threads * static_cast<std::int64_t>(sizeof(T));
  kernel.label = "depthwise rows";
  kernel.flops = task.shape.flops();
  kernel.data = std::move(plan);
  return {.kernel = std::move(kernel), .declined = {}};
}

}  // namespace
}  // namespace onnxgrad::ops::depth_rows

namespace onnxgrad::ops {

opdef::KernelOffer offer_depth_rows(const opdef::KernelRequest& request, const ConvTask& task) {
  const ConvShape& shape = task.shape;
  if (shape.groups == 1 || shape.in_channels != 1 || shape.out_channels != 1) {
    return opdef::KernelOffer::decline("channels share results");
  }
  if (shape.flops() == 0) return opdef::KernelOffer::decline("an empty tensor");
  if (task.pass == ConvTask::Pass::kBackwardWeight) {
    return opdef::KernelOffer::decline("sums for weights are taken by channels");
  }
  if (shape.batch * shape.groups < request.threads) {
    return opdef::KernelOffer::decline("fewer planes than threads");
  }
  const bool forward = task.pass == ConvTask::Pass::kForward;
  if ((forward ? shape.axes[2].output : shape.axes[2].input) < 2) {
    return opdef::KernelOffer::decline("rows of one pixel");
  }
  return request.outputs[0].dtype == DataType::kFloat32 ? depth_rows::offer<float>(request, task)
                                                        : depth_rows::offer<double>(request, task);
}

}  // namespace onnxgrad::ops
