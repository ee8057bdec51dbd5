#include "ops/tensor/strided_copy_cpu.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "device/cpu/gemm_tile.h"
#include "device/cpu/threads.h"
#include "device/cpu_options.h"
#include "onnxgrad/dims.h"
#include "ops/kernel_support.h"

namespace onnxgrad::ops {
namespace {

using Axis = CopyPlan::Axis;

constexpr std::int64_t kThreadBytes = 1 << 17;  // minimum per thread
constexpr std::int64_t kTile = 16;              // rows and columns of a transposed tile

// Drops axes of size 1 and merges two adjacent axes that both sides traverse with one stride.
std::vector<Axis> merge_axes(const CopyRequest& request) {
  std::vector<Axis> merged;
  for (std::size_t i = 0; i < request.sizes.size(); ++i) {
    if (request.sizes[i] == 1) continue;
    const Axis axis{request.sizes[i], request.source_strides[i] * request.element_bytes,
                    request.target_strides[i] * request.element_bytes};
    if (!merged.empty()) {
      Axis& outer = merged.back();
      if (outer.source_stride == axis.source_stride * axis.size &&
          outer.target_stride == axis.target_stride * axis.size) {
        outer = {outer.size * axis.size, axis.source_stride, axis.target_stride};
        continue;
      }
    }
    merged.push_back(axis);
  }
  return merged;
}

bool is_element(std::int64_t bytes) { return bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8; }

// If the target is dense along its last axis and the source along another one, that axis becomes
// the second to last, and both are traversed in tiles that stay in the L1 cache. Blocks of several
// elements are moved as one, if they lie at multiples of their size.
bool arrange_tiles(CopyPlan& plan) {
  if (plan.axes.size() < 2 || !is_element(plan.block_bytes)) return false;
  const auto is_whole = [&](std::int64_t bytes) { return bytes % plan.block_bytes == 0; };
  const bool are_whole = std::ranges::all_of(plan.axes, [&](const Axis& axis) {
    return is_whole(axis.source_stride) && is_whole(axis.target_stride);
  });
  if (!are_whole || !is_whole(plan.source_offset) || !is_whole(plan.target_offset)) return false;
  if (plan.axes.back().target_stride != plan.block_bytes) return false;
  for (std::size_t i = 0; i + 1 < plan.axes.size(); ++i) {
    if (plan.axes[i].source_stride != plan.block_bytes) continue;
    const Axis dense_source = plan.axes[i];
    plan.axes.erase(plan.axes.begin() + static_cast<std::ptrdiff_t>(i));
    plan.axes.insert(plan.axes.end() - 1, dense_source);
    return true;
  }
  return false;
}

template <class T>
void fill_elements(const std::byte* source, std::byte* target, std::int64_t size) {
  T element;
  std::memcpy(&element, source, sizeof(T));
  std::fill_n(reinterpret_cast<T*>(target), size, element);
}

template <class T>
void copy_elements(const std::byte* source, std::byte* target, const Axis& axis) {
  for (std::int64_t i = 0; i < axis.size; ++i) {
    T element;  // through memcpy: the types of the two sides are not known here
    std::memcpy(&element, source + i * axis.source_stride, sizeof(T));
    std::memcpy(target + i * axis.target_stride, &element, sizeof(T));
  }
}

void copy_axis(const std::byte* source, std::byte* target, const Axis& axis,
               std::int64_t block_bytes) {
  if (is_element(block_bytes)) {
    const bool is_fill = axis.source_stride == 0 && axis.target_stride == block_bytes;
    with_element_type(block_bytes, [&](auto element) {
      using T = decltype(element);
      if (is_fill) return fill_elements<T>(source, target, axis.size);
      copy_elements<T>(source, target, axis);
    });
    return;
  }
  constexpr std::int64_t kPrefetchDistance = 2;  // prefetch distance in blocks
  constexpr std::int64_t kLongest = 4096;  // longer blocks are left to the hardware prefetcher
  for (std::int64_t i = 0; i < axis.size; ++i) {
    const std::byte* from = source + i * axis.source_stride;
    for (std::int64_t line = 0; line < block_bytes && block_bytes <= kLongest; line += 64) {
      __builtin_prefetch(from + kPrefetchDistance * axis.source_stride + line);
    }
    std::memcpy(target + i * axis.target_stride, from, static_cast<std::size_t>(block_bytes));
  }
}

// Transposes with SIMD; Number is a type of the size of an element.
template <class Number>
void transpose_numbers(device::Isa isa, const std::byte* source, std::byte* target,
                       const Axis& rows, const Axis& columns) {
  constexpr auto kBytes = static_cast<std::int64_t>(sizeof(Number));
  device::gemm_target<Number>(isa).transpose(
      reinterpret_cast<const Number*>(source), columns.source_stride / kBytes,
      reinterpret_cast<Number*>(target), rows.target_stride / kBytes, columns.size, rows.size);
}

template <class T>
void copy_tiles(device::Isa isa, const std::byte* source, std::byte* target, const Axis& rows,
                const Axis& columns) {
  if constexpr (sizeof(T) == 4) return transpose_numbers<float>(isa, source, target, rows, columns);
  if constexpr (sizeof(T) == 8)
    return transpose_numbers<double>(isa, source, target, rows, columns);
  for (std::int64_t r = 0; r < rows.size; r += kTile) {
    const std::int64_t last_row = std::min(r + kTile, rows.size);
    for (std::int64_t c = 0; c < columns.size; c += kTile) {
      const Axis part{std::min(kTile, columns.size - c), columns.source_stride,
                      columns.target_stride};
      const std::byte* from = source + c * columns.source_stride;
      std::byte* to = target + c * columns.target_stride;
      for (std::int64_t i = r; i < last_row; ++i) {
        copy_elements<T>(from + i * rows.source_stride, to + i * rows.target_stride, part);
      }
    }
  }
}

}  // namespace

std::vector<std::int64_t> dense_strides(std::span<const std::int64_t> dims) {
  std::vector<std::int64_t> strides(dims.size(), 1);
  for (std::size_t i = dims.size(); i-- > 1;) {
    strides[i - 1] = strides[i] * std::max<std::int64_t>(dims[i], 1);
  }
  return strides;
}

CopyPlan plan_copy(const CopyRequest& request, device::Isa isa, int threads) {
  CopyPlan plan{.isa = isa};
  if (std::ranges::find(request.sizes, 0) != request.sizes.end()) return plan;
  plan.source_offset = request.source_offset * request.element_bytes;
  plan.target_offset = request.target_offset * request.element_bytes;
  plan.block_bytes = request.element_bytes;
  plan.axes = merge_axes(request);
  if (!plan.axes.empty() && plan.axes.back().source_stride == plan.block_bytes &&
      plan.axes.back().target_stride == plan.block_bytes) {
    plan.block_bytes *= plan.axes.back().size;
    plan.axes.pop_back();
  }
  plan.is_tiled = arrange_tiles(plan);
  std::int64_t bytes = plan.block_bytes;
  for (const Axis& axis : plan.axes) bytes *= axis.size;
  if (!plan.axes.empty()) {
    const std::int64_t most = std::min(plan.axes[0].size, bytes / kThreadBytes);
    plan.threads = static_cast<int>(std::clamp<std::int64_t>(most, 1, threads));
  }
  return plan;
}

namespace {

// Copies `count` indices of the outermost axis.
void copy_some(const CopyPlan& plan, std::int64_t count, const std::byte* source,
               std::byte* target) {
  const auto axis_at = [&](std::size_t i) {
    Axis axis = plan.axes[i];
    if (i == 0) axis.size = count;
    return axis;
  };
  const std::size_t inner = plan.is_tiled ? 2 : 1;
  const std::size_t outer = plan.axes.size() - inner;
  std::array<std::int64_t, Dims::kMaxRank * 2> position;
  std::fill_n(position.begin(), outer, 0);
  while (true) {
    if (plan.is_tiled) {
      with_element_type(plan.block_bytes, [&](auto element) {
        copy_tiles<decltype(element)>(plan.isa, source, target, axis_at(outer),
                                      plan.axes[outer + 1]);
      });
    } else {
      copy_axis(source, target, axis_at(outer), plan.block_bytes);
    }
    std::size_t axis = outer;
    while (axis > 0) {
      const Axis step = axis_at(axis - 1);
      source += step.source_stride;
      target += step.target_stride;
      if (++position[axis - 1] < step.size) break;
      source -= step.source_stride * step.size;
      target -= step.target_stride * step.size;
      position[axis - 1] = 0;
      --axis;
    }
    if (axis == 0) return;
  }
}

}  // namespace

void run_copy(const CopyPlan& plan, const std::byte* source, std::byte* target) {
  if (plan.block_bytes == 0) return;
  source += plan.source_offset;
  target += plan.target_offset;
  if (plan.axes.empty()) {
    std::memcpy(target, source, static_cast<std::size_t>(plan.block_bytes));
    return;
  }
  const Axis& outermost = plan.axes[0];
  device::parallel_ranges(plan.threads, outermost.size, [&](std::int64_t first, std::int64_t last) {
    copy_some(plan, last - first, source + first * outermost.source_stride,
              target + first * outermost.target_stride);
  });
}

namespace {

struct ViewData {
  CopyPlan copy;
  std::size_t output = 1;
};

void run_view(const ViewData& view, KernelArgs args) {
  run_copy(view.copy, args[0], args[view.output]);
}

}  // namespace

KernelOffer offer_view(const KernelRequest& request, const CopyRequest& copy) {
  if (copy.element_bytes == 0) return decline_dtype(request, request.inputs[0].dtype);
  return prepared<run_view>(
      ViewData{plan_copy(copy, device::isa_of(request), request.threads), request.inputs.size()},
      "strided copy");
}

}  // namespace onnxgrad::ops
