#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <concepts>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "device/cpu/threads.h"
#include "device/cpu_options.h"
#include "opdef/fused.h"
#include "ops/kernel_support.h"
#include "ops/nn/max_pool_planes_simd.h"
#include "ops/nn/pool.h"

// Kernels of MaxPool, AveragePool, their gradients, GlobalMaxPool and GlobalAveragePool: reference
// kernels, and for float32 MaxPool two SIMD kernels: for non-overlapping 2 x 2 windows, and for any
// windows by a table.

namespace onnxgrad::ops::pool_cpu {

namespace {

struct PoolTask {
  PoolShape shape = {};
  bool include_pad = false;
  bool has_indices = false;
  bool column_major = false;  ///< indices within a plane run along the first spatial axis
  int dx = 0;                 ///< argument of dx, which differs with and without the pool's input
  std::string node;
  int threads = 1;
  device::Isa isa = {};
  std::vector<std::int32_t> taps = {};  ///< table of taps, see planes::TapTable
  std::int64_t row = 1;  ///< contiguous elements per window position, for kernels with rows
};

// Minimum number of elements read for a second thread.
constexpr std::int64_t kParallelElements = 1 << 16;  // per thread

// Splits the planes among the threads: calls f(first plane, number of planes) for each chunk.
template <class F>
void visit_chunks(const PoolTask& task, F&& f) {
  const PoolShape& shape = task.shape;
  device::parallel_ranges(
      device::useful_threads(shape.planes * shape.input_size(), kParallelElements, task.threads),
      shape.planes, [&](std::int64_t first, std::int64_t end) { f(first, end - first); });
}

// Calls f(position in the plane) for all taps of window (o0, o1, o2) inside the input, in row-major
// order.
template <class F>
void visit_window(const PoolShape& shape, const std::array<std::int64_t, 3>& o, F&& f) {
  const auto& [a0, a1, a2] = shape.axes;
  visit_taps(a0, o[0], [&](std::int64_t, std::int64_t i0) {
    visit_taps(a1, o[1], [&](std::int64_t, std::int64_t i1) {
      visit_taps(a2, o[2],
                 [&](std::int64_t, std::int64_t i2) { f((i0 * a1.input + i1) * a2.input + i2); });
    });
  });
}

// Calls f(window, index of the window in its plane) for all windows of a plane.
template <class F>
void visit_windows(const PoolShape& shape, F&& f) {
  std::int64_t number = 0;
  for (std::int64_t o0 = 0; o0 < shape.axes[0].output; ++o0) {
    for (std::int64_t o1 = 0; o1 < shape.axes[1].output; ++o1) {
      for (std::int64_t o2 = 0; o2 < shape.axes[2].output; ++o2) {
        f(std::array<std::int64_t, 3>{o0, o1, o2}, number++);
      }
    }
  }
}

std::int64_t to_column_major(const PoolShape& shape, std::int64_t position) {
  const auto& [a0, a1, a2] = shape.axes;
  const std::int64_t i2 = position % a2.input;
  const std::int64_t i1 = position / a2.input % a1.input;
  const std::int64_t i0 = position / a2.input / a1.input;
  return i0 + a0.input * (i1 + a1.input * i2);
}

std::int64_t to_row_major(const PoolShape& shape, std::int64_t position) {
  const auto& [a0, a1, a2] = shape.axes;
  const std::int64_t i0 = position % a0.input;
  const std::int64_t i1 = position / a0.input % a1.input;
  const std::int64_t i2 = position / a0.input / a1.input;
  return (i0 * a1.input + i1) * a2.input + i2;
}

template <class T>
bool is_nan(T number) {
  if constexpr (std::is_floating_point_v<T>)
    return std::isnan(number);
  else
    return false;
}

// args: x, y, and indices if there are any.
template <class T>
void run_max_pool(const PoolTask& task, KernelArgs args) {
  const PoolShape& shape = task.shape;
  const T* x = args.at<T>(0);
  T* y = args.at<T>(1);
  auto* indices = task.has_indices ? args.at<std::int64_t>(2) : nullptr;
  for (std::int64_t plane = 0; plane < shape.planes; ++plane) {
    const T* input = x + plane * shape.input_size();
    visit_windows(shape, [&](const auto& window, std::int64_t number) {
      std::int64_t best = -1;
      visit_window(shape, window, [&](std::int64_t i) {
        if (best < 0 || input[i] > input[best] || (is_nan(input[i]) && !is_nan(input[best]))) {
          best = i;
        }
      });
      const std::int64_t o = plane * shape.output_size() + number;
      if (y != nullptr) y[o] = input[best];
      if (indices == nullptr) return;
      const std::int64_t within = task.column_major ? to_column_major(shape, best) : best;
      indices[o] = plane * shape.input_size() + within;
    });
  }
}

[[noreturn]] void throw_index_range(const PoolTask& task, std::int64_t index) {
  throw DataError({.what = fmt::format("index {} is out of range", index),
                   .where = {.node = task.node, .value = "indices"},
                   .detail = fmt::format("There are {} elements to scatter to.",
                                         task.shape.planes * task.shape.input_size()),
                   .hint = "Give the indices that MaxPool returned for an input of this shape."});
}

// args: dy, indices, perhaps x (not read), dx.
template <std::floating_point T>
void run_max_pool_grad(const PoolTask& task, KernelArgs args) {
  const PoolShape& shape = task.shape;
  const T* dy = args.at<T>(0);
  const auto* indices = args.at<std::int64_t>(1);
  T* dx = args.at<T>(task.dx);
  const std::int64_t count = shape.planes * shape.input_size();
  std::fill_n(dx, count, T{0});
  for (std::int64_t o = 0; o < shape.planes * shape.output_size(); ++o) {
    std::int64_t index = indices[o];
    if (index < 0 || index >= count) throw_index_range(task, index);
    if (task.column_major) {
      const std::int64_t plane = index / shape.input_size();
      index = plane * shape.input_size() + to_row_major(shape, index % shape.input_size());
    }
    dx[index] += dy[o];
  }
}

bool is_halving(const PoolShape& shape) {
  const auto halves = [](const WindowAxis& axis) {
    return axis.kernel == 2 && axis.stride == 2 && axis.dilation == 1 && axis.pad_begin == 0 &&
           axis.output == axis.input / 2;
  };
  return shape.axes[0].input == 1 && shape.axes[0].kernel == 1 && halves(shape.axes[1]) &&
         halves(shape.axes[2]);
}

planes::HalvedPlanes halved(const PoolShape& shape, std::int64_t first, std::int64_t count) {
  return {
      .first = first, .count = count, .height = shape.axes[1].input, .width = shape.axes[2].input};
}

template <class T>
T* at(T* pointer, std::int64_t offset) {
  return pointer == nullptr ? nullptr : pointer + offset;
}

// Operands of MaxPool's kernels.
struct MaxPoolArgs {
  const float* x;
  float* y;
  std::int64_t* indices;

  MaxPoolArgs(const PoolTask& task, KernelArgs args)
      : x(args.at<const float>(0)),
        y(args.at<float>(1)),
        indices(task.has_indices ? args.at<std::int64_t>(2) : nullptr) {}
};

void run_max_pool_halved(const PoolTask& task, KernelArgs args) {
  const PoolShape& shape = task.shape;
  const MaxPoolArgs pool(task, args);
  visit_chunks(task, [&](std::int64_t first, std::int64_t count) {
    planes::max_pool_halved(
        task.isa, halved(shape, first, count), pool.x + first * shape.input_size(),
        at(pool.y, first * shape.output_size()), at(pool.indices, first * shape.output_size()));
  });
}

void run_max_pool_taps(const PoolTask& task, KernelArgs args) {
  const PoolShape& shape = task.shape;
  const MaxPoolArgs pool(task, args);
  const planes::TapTable table{
      .positions = task.taps.data(),
      .taps = static_cast<std::int64_t>(task.taps.size()) / shape.output_size(),
      .windows = shape.output_size(),
      .plane_size = shape.input_size()};
  visit_chunks(task, [&](std::int64_t first, std::int64_t count) {
    planes::max_pool_taps(task.isa, table, first, count, pool.x + first * shape.input_size(),
                          at(pool.y, first * shape.output_size()),
                          at(pool.indices, first * shape.output_size()));
  });
}

void run_max_pool_halved_grad(const PoolTask& task, KernelArgs args) {
  const PoolShape& shape = task.shape;
  const auto* dy = args.at<float>(0);
  const auto* indices = args.at<std::int64_t>(1);
  auto* dx = args.at<float>(task.dx);
  std::atomic<bool> is_done{true};
  visit_chunks(task, [&](std::int64_t first, std::int64_t count) {
    const std::int64_t output = first * shape.output_size();
    if (!planes::max_pool_halved_grad(task.isa, halved(shape, first, count), dy + output,
                                      indices + output, dx + first * shape.input_size())) {
      is_done = false;
    }
  });
  // Falls back for indices that are not from this pool, which may be any position.
  if (!is_done) run_max_pool_grad<float>(task, args);
}

std::int64_t divisor(const PoolTask& task, const std::array<std::int64_t, 3>& window) {
  std::int64_t count = 1;
  for (std::size_t i = 0; i < 3; ++i) {
    count *= count_taps(task.shape.axes[i], window[i], task.include_pad);
  }
  return count;
}

// args: x, y.
template <std::floating_point T>
void run_average_pool(const PoolTask& task, KernelArgs args) {
  const PoolShape& shape = task.shape;
  const T* x = args.at<T>(0);
  T* y = args.at<T>(1);
  for (std::int64_t plane = 0; plane < shape.planes; ++plane) {
    const T* input = x + plane * shape.input_size();
    visit_windows(shape, [&](const auto& window, std::int64_t number) {
      T sum = 0;
      visit_window(shape, window, [&](std::int64_t i) { sum += input[i]; });
      y[plane * shape.output_size() + number] = sum / static_cast<T>(divisor(task, window));
    });
  }
}

// args: dy, perhaps x (not read), dx.
template <std::floating_point T>
void run_average_pool_grad(const PoolTask& task, KernelArgs args) {
  const PoolShape& shape = task.shape;
  const T* dy = args.at<T>(0);
  T* dx = args.at<T>(task.dx);
  std::fill_n(dx, shape.planes * shape.input_size(), T{0});
  for (std::int64_t plane = 0; plane < shape.planes; ++plane) {
    T* result = dx + plane * shape.input_size();
    visit_windows(shape, [&](const auto& window, std::int64_t number) {
      const T chunk =
          dy[plane * shape.output_size() + number] / static_cast<T>(divisor(task, window));
      visit_window(shape, window, [&](std::int64_t i) { result[i] += chunk; });
    });
  }
}

// Merges the last axes that the pool does not change into one row: windows over rows, whose
// elements are summed by contiguous vectors.
void merge_rows(PoolTask& task) {
  for (std::size_t i = 3; i-- > 0;) {
    WindowAxis& axis = task.shape.axes[i];
    const bool is_kept =
        axis.kernel == 1 && axis.stride == 1 && axis.pad_begin == 0 && axis.output == axis.input;
    if (!is_kept) return;
    task.row *= axis.input;
    axis = WindowAxis{};
  }
}

// args: x, y.
template <std::floating_point T>
void run_average_pool_rows(const PoolTask& task, KernelArgs args) {
  const PoolShape& shape = task.shape;
  const T* x = args.at<T>(0);
  T* y = args.at<T>(1);
  visit_chunks(task, [&](std::int64_t first, std::int64_t count) {
    for (std::int64_t plane = first; plane < first + count; ++plane) {
      const T* input = x + plane * shape.input_size() * task.row;
      visit_windows(shape, [&](const auto& window, std::int64_t number) {
        T* row = y + (plane * shape.output_size() + number) * task.row;
        std::fill_n(row, task.row, T{0});
        visit_window(shape, window, [&](std::int64_t i) {
          for (std::int64_t k = 0; k < task.row; ++k) row[k] += input[i * task.row + k];
        });
        const T chunk = T{1} / static_cast<T>(divisor(task, window));
        for (std::int64_t k = 0; k < task.row; ++k) row[k] *= chunk;
      });
    }
  });
}

// args: dy, perhaps x (not read), dx.
template <std::floating_point T>
void run_average_pool_rows_grad(const PoolTask& task, KernelArgs args) {
  const PoolShape& shape = task.shape;
  const T* dy = args.at<T>(0);
  T* dx = args.at<T>(task.dx);
  visit_chunks(task, [&](std::int64_t first, std::int64_t count) {
    for (std::int64_t plane = first; plane < first + count; ++plane) {
      T* result = dx + plane * shape.input_size() * task.row;
      std::fill_n(result, shape.input_size() * task.row, T{0});
      visit_windows(shape, [&](const auto& window, std::int64_t number) {
        const T* row = dy + (plane * shape.output_size() + number) * task.row;
        const T chunk = T{1} / static_cast<T>(divisor(task, window));
        visit_window(shape, window, [&](std::int64_t i) {
          for (std::int64_t k = 0; k < task.row; ++k) result[i * task.row + k] += chunk * row[k];
        });
      });
    }
  });
}

struct PlaneTask {
  std::int64_t planes = 0;
  std::int64_t size = 0;
};

template <std::floating_point T>
void run_global_average(const PlaneTask& task, KernelArgs args) {
  const T* x = args.at<T>(0);
  T* y = args.at<T>(1);
  for (std::int64_t plane = 0; plane < task.planes; ++plane, x += task.size) {
    // Four sums, so that additions do not wait for each other.
    std::array<T, 4> sums{};
    std::int64_t i = 0;
    for (; i + 4 <= task.size; i += 4) {
      for (std::int64_t k = 0; k < 4; ++k) sums[static_cast<std::size_t>(k)] += x[i + k];
    }
    for (; i < task.size; ++i) sums[0] += x[i];
    y[plane] = ((sums[0] + sums[1]) + (sums[2] + sums[3])) / static_cast<T>(task.size);
  }
}

template <std::floating_point T>
void run_global_max(const PlaneTask& task, KernelArgs args) {
  const T* x = args.at<T>(0);
  T* y = args.at<T>(1);
  for (std::int64_t plane = 0; plane < task.planes; ++plane, x += task.size) {
    T most = x[0];
    for (std::int64_t i = 1; i < task.size; ++i) {
      if (x[i] > most || is_nan(x[i])) most = x[i];
    }
    y[plane] = most;
  }
}

// Checks that a tensor has the shape of the pool's output, or that of a tensor indexed like it.
void check_dims(const KernelRequest& request, const Dims& given, const Dims& expected,
                std::string_view name) {
  if (given == expected) return;
  throw ShapeError(problem_at(
      request.node,
      fmt::format("{} has shape {}, expected {}", name, given.to_string(), expected.to_string()),
      {}, "Give it the shape determined by the input and the attributes."));
}

Dims output_dims(const Dims& x, const PoolShape& shape) {
  std::vector<std::int64_t> dims{x[0], x[1]};
  for (std::size_t i = 3 - shape.spatial_rank; i < 3; ++i) dims.push_back(shape.axes[i].output);
  return Dims(std::move(dims));
}

// Reads the task. `x` and `y` are the indices of the tensors with the shapes of the pool's input
// and output, inputs first. A gradient without the pool's input has its output in place of it.
std::optional<PoolTask> pool_task(const KernelRequest& request, std::size_t x,
                                  std::initializer_list<std::size_t> ys) {
  const auto desc = [&](std::size_t i) -> const TensorDesc& {
    return i < request.inputs.size() ? request.inputs[i]
                                     : request.outputs[i - request.inputs.size()];
  };
  PoolTask task{.shape = pool_shape(request.node, desc(x).dims),
                .include_pad = request.node.int_attribute("count_include_pad", 0) != 0,
                .column_major = request.node.int_attribute("storage_order", 0) != 0,
                .dx = static_cast<int>(request.inputs.size()),
                .node = request.node.name,
                .threads = request.threads,
                .isa = device::isa_of(request)};
  if (task.shape.spatial_rank > 3) return std::nullopt;
  const Dims expected = output_dims(desc(x).dims, task.shape);
  for (const std::size_t y : ys) {
    const bool is_there =
        y < request.inputs.size() + request.outputs.size() && desc(y).is_present();
    if (is_there) check_dims(request, desc(y).dims, expected, "an operand of the output's shape");
  }
  return task;
}

template <auto kFloat, auto kDouble, class Task>
KernelOffer offer_typed(const KernelRequest& request, Task task) {
  const DataType dtype = request.inputs[0].dtype;
  if (dtype == DataType::kFloat32) return prepared<kFloat>(std::move(task), "reference");
  if (dtype == DataType::kFloat64) return prepared<kDouble>(std::move(task), "reference");
  return decline_dtype(request, dtype);
}

const char* const kTooManyAxes = "more than three spatial axes";
constexpr std::int64_t kMaxPlane = std::int64_t{1} << 30;  // positions fit into int32 with margin
constexpr std::int64_t kMaxTable = std::int64_t{1} << 18;  // entries, 1 MB

KernelOffer offer_max_pool(const KernelRequest& request) {
  auto task = pool_task(request, 0, {1, 2});
  if (!task) return KernelOffer::decline(kTooManyAxes);
  task->has_indices = request.has_output(1);
  return offer_for_types<float, double, std::int8_t, std::uint8_t>(
      request, request.inputs[0].dtype,
      [&]<class T>(T) { return prepared<run_max_pool<T>>(std::move(*task), "reference"); });
}

// Returns, for each tap of the kernel, the position that it reads in each window; taps in the
// padding repeat the first tap inside.
std::vector<std::int32_t> tap_table(const PoolShape& shape) {
  const auto& [a0, a1, a2] = shape.axes;
  const std::int64_t taps = a0.kernel * a1.kernel * a2.kernel;
  std::vector<std::int32_t> table(static_cast<std::size_t>(taps * shape.output_size()));
  visit_windows(shape, [&](const auto& window, std::int64_t number) {
    std::int64_t tap = 0;
    std::int64_t first = 0;
    const auto set = [&](std::int64_t position) {
      table[static_cast<std::size_t>(tap++ * shape.output_size() + number)] =
          static_cast<std::int32_t>(position);
    };
    visit_window(shape, window, [&](std::int64_t position) {
      if (tap == 0) first = position;
      set(position);
    });
    while (tap < taps) set(first);
  });
  return table;
}

KernelOffer offer_max_pool_simd(const KernelRequest& request) {
  if (request.inputs[0].dtype != DataType::kFloat32) return KernelOffer::decline("float32 only");
  auto task = pool_task(request, 0, {1, 2});
  if (!task) return KernelOffer::decline(kTooManyAxes);
  if (task->column_major) return KernelOffer::decline("only indices in row-major order");
  task->has_indices = request.has_output(1);
  const PoolShape& shape = task->shape;
  if (shape.input_size() > kMaxPlane) return KernelOffer::decline("planes above 2^30 elements");
  if (is_halving(shape)) return prepared<run_max_pool_halved>(std::move(*task), "simd 2x2");
  const std::int64_t taps = shape.axes[0].kernel * shape.axes[1].kernel * shape.axes[2].kernel;
  if (taps > kMaxTable / shape.output_size()) {
    return KernelOffer::decline("the table of windows would be larger than the cache");
  }
  task->taps = tap_table(shape);
  return prepared<run_max_pool_taps>(std::move(*task), "simd table");
}

KernelOffer offer_max_pool_grad_simd(const KernelRequest& request) {
  if (request.inputs[0].dtype != DataType::kFloat32) return KernelOffer::decline("float32 only");
  auto task = pool_task(request, 2, {0, 1});
  if (!task) return KernelOffer::decline(kTooManyAxes);
  const bool fits =
      !task->column_major && is_halving(task->shape) && task->shape.input_size() <= kMaxPlane;
  if (!fits) return KernelOffer::decline("only adjacent 2 x 2 windows");
  return prepared<run_max_pool_halved_grad>(std::move(*task), "simd 2x2");
}

KernelOffer offer_max_pool_grad(const KernelRequest& request) {
  auto task = pool_task(request, 2, {0, 1});
  if (!task) return KernelOffer::decline(kTooManyAxes);
  return offer_typed<run_max_pool_grad<float>, run_max_pool_grad<double>>(request,
                                                                          std::move(*task));
}

const char* const kShortRows = "the pool leaves no long rows as they are";
constexpr std::int64_t kLongRow = 8;

KernelOffer offer_average_pool_rows(const KernelRequest& request) {
  auto task = pool_task(request, 0, {1});
  if (!task) return KernelOffer::decline(kTooManyAxes);
  merge_rows(*task);
  if (task->row < kLongRow) return KernelOffer::decline(kShortRows);
  return offer_typed<run_average_pool_rows<float>, run_average_pool_rows<double>>(request,
                                                                                  std::move(*task));
}
KernelOffer offer_average_pool_rows_grad(const KernelRequest& request) {
  auto task = pool_task(request, 1, {0});
  if (!task) return KernelOffer::decline(kTooManyAxes);
  merge_rows(*task);
  if (task->row < kLongRow) return KernelOffer::decline(kShortRows);
  return offer_typed<run_average_pool_rows_grad<float>, run_average_pool_rows_grad<double>>(
      request, std::move(*task));
}

KernelOffer offer_average_pool(const KernelRequest& request) {
  auto task = pool_task(request, 0, {1});
  if (!task) return KernelOffer::decline(kTooManyAxes);
  return offer_typed<run_average_pool<float>, run_average_pool<double>>(request, std::move(*task));
}

KernelOffer offer_average_pool_grad(const KernelRequest& request) {
  auto task = pool_task(request, 1, {0});
  if (!task) return KernelOffer::decline(kTooManyAxes);
  return offer_typed<run_average_pool_grad<float>, run_average_pool_grad<double>>(request,
                                                                                  std::move(*task));
}

template <auto kFloat, auto kDouble>
KernelOffer offer_global(const KernelRequest& request) {
  const Dims& x = request.inputs[0].dims;
  if (x.rank() < 2 || x.product(2, x.rank()) == 0) {
    throw ShapeError(
        problem_at(request.node,
                   "input X has shape " + x.to_string() + ", expected [N, C, D...] with D above 0",
                   {}, "Reshape it, or give a larger input."));
  }
  return offer_typed<kFloat, kDouble>(
      request, PlaneTask{.planes = x.product(0, 2), .size = x.product(2, x.rank())});
}

}  // namespace

void register_pool_cpu(opdef::KernelRegistry& registry) {
  registry.add("", "MaxPool", 0, offer_max_pool);
  registry.add("", "MaxPool", 10, offer_max_pool_simd);
  registry.add("", "AveragePool", 0, offer_average_pool);
  registry.add("", "AveragePool", 1, offer_average_pool_rows);
  for (const std::string_view domain : {ir::kFunctionDomain, ir::kFusedDomain}) {
    registry.add(domain, opdef::kMaxPoolGrad, 10, offer_max_pool_grad_simd);
    registry.add(domain, opdef::kMaxPoolGrad, 0, offer_max_pool_grad);
    registry.add(domain, opdef::kAveragePoolGrad, 0, offer_average_pool_grad);
    registry.add(domain, opdef::kAveragePoolGrad, 1, offer_average_pool_rows_grad);
  }
  registry.add("", "GlobalAveragePool", 0,
               offer_global<run_global_average<float>, run_global_average<double>>);
  registry.add("", "GlobalMaxPool", 0, offer_global<run_global_max<float>, run_global_max<double>>);
}

}  // namespace onnxgrad::ops::pool_cpu
