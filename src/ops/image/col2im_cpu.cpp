#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "device/cpu/threads.h"
#include "onnxgrad/error.h"
#include "opdef/kernel.h"
#include "ops/kernel_support.h"
#include "ops/nn/window.h"

// Col2Im and its gradient visit the same rows: for each tap of the blocks, contiguous runs of
// columns along the last axis and their positions in the image.

namespace onnxgrad::ops::col2im_cpu {
namespace {

constexpr std::int64_t kParallelElements = 1 << 15;

// Run of `count` elements: contiguous in the columns from `column` on, and in the image from
// `pixel` on with the stride of the last axis.
struct Row {
  std::int64_t column = 0;
  std::int64_t pixel = 0;
  std::int64_t count = 0;
};

struct Col2ImTask {
  std::int64_t planes = 0;   // batch size times channels
  std::int64_t columns = 0;  // elements of the columns, per plane
  std::int64_t pixels = 0;   // pixels per plane
  std::int64_t stride = 1;   // stride of the last axis
  std::vector<Row> rows = {};
  int threads = 1;
};

template <class F>
void visit_planes(const Col2ImTask& task, F&& f) {
  device::parallel_for(task.threads, task.planes, f);
}

// args: columns, image_shape, block_shape, image.
template <class T>
void run_col2im(const Col2ImTask& task, KernelArgs args) {
  visit_planes(task, [&](std::int64_t plane) {
    const T* columns = args.at<T>(0) + plane * task.columns;
    T* image = args.at<T>(3) + plane * task.pixels;
    std::fill_n(image, task.pixels, T(0));
    for (const Row& row : task.rows) {
      const T* from = columns + row.column;
      T* to = image + row.pixel;
      if (task.stride == 1) {
        for (std::int64_t i = 0; i < row.count; ++i) to[i] = static_cast<T>(to[i] + from[i]);
      } else {
        for (std::int64_t i = 0; i < row.count; ++i) {
          to[i * task.stride] = static_cast<T>(to[i * task.stride] + from[i]);
        }
      }
    }
  });
}

// args: image, image_shape, block_shape, columns.
template <class T>
void run_col2im_grad(const Col2ImTask& task, KernelArgs args) {
  visit_planes(task, [&](std::int64_t plane) {
    const T* image = args.at<T>(0) + plane * task.pixels;
    T* columns = args.at<T>(3) + plane * task.columns;
    std::fill_n(columns, task.columns, T(0));
    for (const Row& row : task.rows) {
      const T* from = image + row.pixel;
      T* to = columns + row.column;
      for (std::int64_t i = 0; i < row.count; ++i) to[i] = from[i * task.stride];
    }
  });
}

// Converts a row-major position to indices along axes of these sizes.
std::vector<std::int64_t> unravel(std::int64_t position, const std::vector<std::int64_t>& sizes) {
  std::vector<std::int64_t> numbers(sizes.size());
  for (std::size_t i = sizes.size(); i-- > 0;) {
    numbers[i] = position % sizes[i];
    position /= sizes[i];
  }
  return numbers;
}

// Finds the runs of all taps. The windows inside the image are consecutive along the last axis.
void find_rows(const std::vector<WindowAxis>& axes, Col2ImTask& task) {
  const std::size_t last = axes.size() - 1;
  std::vector<std::int64_t> kernel;
  std::vector<std::int64_t> outputs;
  for (const WindowAxis& axis : axes) {
    kernel.push_back(axis.kernel);
    outputs.push_back(axis.output);
  }
  const std::int64_t windows = std::exchange(outputs.back(), 1);
  const auto product = [](const std::vector<std::int64_t>& sizes) {
    return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>());
  };
  const std::int64_t taps = product(kernel);
  const std::int64_t lines = product(outputs);
  task.columns = taps * lines * windows;
  task.stride = axes[last].stride;
  for (std::int64_t t = 0; t < taps; ++t) {
    const auto tap = unravel(t, kernel);
    const std::int64_t shift = tap[last] * axes[last].dilation - axes[last].pad_begin;
    // Windows o with 0 <= o * stride + shift < input.
    const std::int64_t first = shift >= 0 ? 0 : ceil_div(-shift, task.stride);
    const std::int64_t room = axes[last].input - 1 - shift;
    const std::int64_t end = room < 0 ? 0 : std::min(windows, room / task.stride + 1);
    if (first >= end) continue;
    for (std::int64_t line = 0; line < lines; ++line) {
      const auto window = unravel(line, outputs);
      std::int64_t pixel = 0;
      bool is_inside = true;
      for (std::size_t i = 0; i < last; ++i) {
        const std::int64_t place =
            window[i] * axes[i].stride + tap[i] * axes[i].dilation - axes[i].pad_begin;
        is_inside = is_inside && place >= 0 && place < axes[i].input;
        pixel = (pixel + place) * axes[i + 1].input;
      }
      if (!is_inside) continue;
      task.rows.push_back({.column = (t * lines + line) * windows + first,
                           .pixel = pixel + first * task.stride + shift,
                           .count = end - first});
    }
  }
}

KernelOffer offer(const KernelRequest& request, const Dims& image, const Dims& columns,
                  bool is_grad) {
  const auto sizes = planned_ints(request, 1);
  const auto block = planned_ints(request, 2);
  if (!sizes || !block)
    return KernelOffer::decline("its shapes are not known before the step runs");
  const WindowAttrs attrs = WindowAttrs::read(request.node, sizes->size());
  const auto refuse = [&](std::string what) {
    throw ShapeError(
        problem_at(request.node, std::move(what), {},
                   "Give input [N, C * block size, number of blocks], with image_shape "
                   "and block_shape of one number per axis of the image."));
  };
  if (sizes->empty() || block->size() != sizes->size()) refuse("its shapes have other axes");
  const auto axes = resolve_window(request.node, attrs, *sizes, *block);
  auto wanted = static_cast<double>(image[1]);  // sizes in a file may overflow an integer
  for (const WindowAxis& axis : axes) {
    wanted *= static_cast<double>(axis.kernel) * static_cast<double>(axis.output);
  }
  if (columns.rank() != 3 || columns[0] != image[0] ||
      static_cast<double>(columns[1]) * static_cast<double>(columns[2]) != wanted) {
    refuse(fmt::format("columns of shape {} do not fit an image of shape {}", columns.to_string(),
                       image.to_string()));
  }
  Col2ImTask task;
  task.planes = image.product(0, 2);
  if (task.planes > 0) find_rows(axes, task);  // without planes the axes may be of any size
  task.pixels = image.product(2, image.rank());
  task.threads = task.planes * task.columns < kParallelElements ? 1 : request.threads;
  const DataType dtype = request.inputs[0].dtype;
  const auto typed = [&]<class T>(T) {
    return prepared(is_grad ? kKernel<run_col2im_grad<T>> : kKernel<run_col2im<T>>, std::move(task),
                    "rows");
  };
  if (dtype == DataType::kFloat32) return typed(float{});
  if (dtype == DataType::kFloat64) return typed(double{});
  if (dtype == DataType::kBool) return typed(bool{});  // a sum is true where a term is
  if (!is_integer(dtype)) return decline_dtype(request, dtype);
  std::optional<KernelOffer> whole;  // signed sums have the bits of unsigned ones
  with_element_type(element_bytes(dtype), [&](auto element) { whole = typed(element); });
  return *std::move(whole);
}

KernelOffer offer_col2im(const KernelRequest& request) {
  return offer(request, request.outputs[0].dims, request.inputs[0].dims, false);
}
KernelOffer offer_col2im_grad(const KernelRequest& request) {
  return offer(request, request.inputs[0].dims, request.outputs[0].dims, true);
}

}  // namespace

void register_col2im_cpu(opdef::KernelRegistry& registry) {
  registry.add("", "Col2Im", 0, offer_col2im);
  registry.add(ir::kFunctionDomain, "Col2ImGrad", 0, offer_col2im_grad);
}

}  // namespace onnxgrad::ops::col2im_cpu
