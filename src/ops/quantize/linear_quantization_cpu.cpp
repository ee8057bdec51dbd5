#include <algorithm>
#include <cmath>
#include <optional>
#include <tuple>
#include <utility>

#include "device/cpu/threads.h"
#include "device/cpu_options.h"
#include "onnxgrad/error.h"
#include "opdef/kernel.h"
#include "ops/kernel_support.h"
#include "ops/quantize/quantize_runs_simd.h"
#include "ops/quantize/small_types.h"

// Kernels of QuantizeLinear and DequantizeLinear. A tensor is split into runs of elements along
// which the scale is constant, or advances with the elements. Scales and zero points are converted
// to float32 once per call.

namespace onnxgrad::ops::linear_quantization_cpu {
namespace {

struct Run {
  std::int64_t first = 0;  // index of the first element
  std::int64_t count = 0;
  std::int64_t scale = 0;  // index of the first element's scale
  bool moves = false;      // the scale advances with the elements
};

// View of x as [outer, size, inner] around the axis; the scale has one element, [size], or [outer,
// blocks, inner].
struct Layout {
  enum class Kind : std::uint8_t { kSingle, kAxis, kBlocks };
  Kind kind = Kind::kSingle;
  std::int64_t outer = 1;
  std::int64_t size = 1;
  std::int64_t inner = 1;
  std::int64_t block = 1;
  std::int64_t num_scales = 1;

  static constexpr std::int64_t kChunk = 1 << 14;

  std::int64_t elements() const { return outer * size * inner; }
  std::int64_t blocks() const { return ceil_div(size, block); }

  std::int64_t num_runs() const {
    if (elements() == 0) return 0;
    if (kind == Kind::kSingle) return ceil_div(elements(), kChunk);
    if (inner > 1) return outer * size;
    return kind == Kind::kAxis ? outer : outer * blocks();
  }

  Run run(std::int64_t i) const {
    if (kind == Kind::kSingle) {
      return {.first = i * kChunk, .count = std::min(kChunk, elements() - i * kChunk)};
    }
    if (kind == Kind::kAxis) {
      if (inner == 1) return {.first = i * size, .count = size, .scale = 0, .moves = true};
      return {.first = i * inner, .count = inner, .scale = i % size};
    }
    if (inner == 1) {
      const std::int64_t b = i % blocks();
      return {.first = i / blocks() * size + b * block,
              .count = std::min(block, size - b * block),
              .scale = i};
    }
    return {.first = i * inner,
            .count = inner,
            .scale = (i / size * blocks() + i % size / block) * inner,
            .moves = true};
  }
};

[[noreturn]] void refuse_scale(const KernelRequest& request) {
  throw ShapeError(
      {.what = "a scale of shape " + request.inputs[1].dims.to_string() +
               " for an input of shape " + request.inputs[0].dims.to_string(),
       .where = {.node = request.node.name, .op_type = request.node.op_type},
       .hint = "Give one scale, one per element of the axis, or, with block_size, one per block."});
}

Layout layout_of(const KernelRequest& request) {
  const Dims& x = request.inputs[0].dims;
  const Dims& scale = request.inputs[1].dims;
  const std::int64_t block = request.node.int_attribute("block_size");
  // A single scale applies to all elements, whatever the axis, which need not exist in x.
  if (scale.rank() == 0 || (scale.rank() == 1 && scale[0] == 1 && block == 0)) {
    return {.kind = Layout::Kind::kSingle, .outer = 1, .size = x.num_elements(), .inner = 1};
  }
  if (x.rank() == 0) {
    if (scale.num_elements() != 1) refuse_scale(request);
    return {};
  }
  const auto axis =
      static_cast<std::size_t>(normalize_axis(request.node.int_attribute("axis"), x.rank()));
  Layout layout{.kind = block > 0 ? Layout::Kind::kBlocks : Layout::Kind::kAxis,
                .outer = x.product(0, axis),
                .size = x[axis],
                .inner = x.product(axis + 1, x.rank()),
                .block = std::max<std::int64_t>(block, 1),
                .num_scales = scale.num_elements()};
  bool fits = true;
  if (block > 0) {
    fits = scale.rank() == x.rank();
    for (std::size_t i = 0; fits && i < x.rank(); ++i) {
      fits = scale[i] == (i == axis ? layout.blocks() : x[i]);
    }
  } else {
    fits = scale.rank() == 1 && scale[0] == layout.size;
  }
  if (!fits) refuse_scale(request);
  return layout;
}

struct Task {
  Layout layout;
  DataType x = DataType::kFloat32;
  DataType scale = DataType::kFloat32;
  DataType y = DataType::kFloat32;
  bool has_zero_point = false;
  std::size_t num_inputs = 2;
  bool saturate = true;
  int threads = 1;
  device::Isa isa = {};
};

// Scales and zero points as float32, in the scratch block.
struct Factors {
  const float* scale = nullptr;
  const float* zero = nullptr;
};

Factors load_factors(const Task& task, DataType zero_type, KernelArgs args) {
  auto* scratch = args.at<float>(task.num_inputs + 1);
  const std::int64_t count = task.layout.num_scales;
  for (std::int64_t i = 0; i < count; ++i) {
    scratch[i] = load_small(task.scale, args[1], i);
    scratch[count + i] = task.has_zero_point ? load_small(zero_type, args[2], i) : 0.0F;
  }
  return {.scale = scratch, .zero = scratch + count};
}

// Calls the functions of `table` for runs with one scale and for runs with a scale per element.
template <class Table, class X, class Y>
void run_table(const Table& table, const Task& task, const Factors& factors, const X* x, Y* y) {
  const int threads = task.layout.elements() > Layout::kChunk ? task.threads : 1;
  device::parallel_for(threads, task.layout.num_runs(), [&](std::int64_t r) {
    const Run run = task.layout.run(r);
    const float* scale = factors.scale + run.scale;
    const float* zero = factors.zero + run.scale;
    if (run.moves) {
      table.each(x + run.first, scale, zero, y + run.first, run.count);
    } else {
      table.run(x + run.first, *scale, *zero, y + run.first, run.count);
    }
  });
}

template <class T>
void run_quantize(const Task& task, KernelArgs args) {
  run_table(std::get<quantize::QuantizeTable<T>>(quantize::run_tables(task.isa)), task,
            load_factors(task, task.y, args), args.at<float>(0), args.at<T>(task.num_inputs));
}

// Quantizes any types, in order: elements may share bytes.
void run_quantize_any(const Task& task, KernelArgs args) {
  const Factors factors = load_factors(task, task.y, args);
  const bool is_float = is_small_float(task.y);
  const std::int64_t runs = task.layout.num_runs();
  for (std::int64_t r = 0; r < runs; ++r) {
    const Run run = task.layout.run(r);
    for (std::int64_t i = 0; i < run.count; ++i) {
      const std::int64_t s = run.scale + (run.moves ? i : 0);
      float steps = load_small(task.x, args[0], run.first + i) / factors.scale[s];
      if (!is_float) steps = std::nearbyint(steps) + factors.zero[s];
      store_small(task.y, args[task.num_inputs], run.first + i, steps, task.saturate);
    }
  }
}

template <class T>
void run_dequantize(const Task& task, KernelArgs args) {
  run_table(std::get<quantize::DequantizeTable<T>>(quantize::run_tables(task.isa)), task,
            load_factors(task, task.x, args), args.at<T>(0), args.at<float>(task.num_inputs));
}

void run_dequantize_any(const Task& task, KernelArgs args) {
  const Factors factors = load_factors(task, task.x, args);
  const std::int64_t runs = task.layout.num_runs();
  for (std::int64_t r = 0; r < runs; ++r) {
    const Run run = task.layout.run(r);
    for (std::int64_t i = 0; i < run.count; ++i) {
      const std::int64_t s = run.scale + (run.moves ? i : 0);
      const float x = load_small(task.x, args[0], run.first + i);
      store_small(task.y, args[task.num_inputs], run.first + i,
                  (x - factors.zero[s]) * factors.scale[s], true);
    }
  }
}

KernelOffer make_offer(opdef::KernelFn fn, Task task) {
  const std::int64_t scales = std::max<std::int64_t>(task.layout.num_scales, 1);
  KernelOffer offer = prepared(fn, task, "runs of one scale");
  offer.kernel.scratch_bytes = 2 * scales * static_cast<std::int64_t>(sizeof(float));
  return offer;
}

std::optional<DataType> unknown_type(const KernelRequest& request) {
  for (const DataType dtype :
       {request.inputs[0].dtype, request.inputs[1].dtype, request.outputs[0].dtype}) {
    if (!is_small_type(dtype)) return dtype;
  }
  return std::nullopt;
}

Task task_of(const KernelRequest& request) {
  return {.layout = layout_of(request),
          .x = request.inputs[0].dtype,
          .scale = request.inputs[1].dtype,
          .y = request.outputs[0].dtype,
          .has_zero_point = request.has_input(2),
          .num_inputs = request.inputs.size(),
          .threads = request.threads,
          .isa = device::isa_of(request)};
}

KernelOffer offer_quantize(const KernelRequest& request) {
  if (const auto dtype = unknown_type(request)) return decline_dtype(request, *dtype);
  Task task = task_of(request);
  task.saturate = request.node.int_attribute("saturate") != 0;
  opdef::KernelFn fn = kKernel<run_quantize_any>;
  if (task.x == DataType::kFloat32) {
    if (task.y == DataType::kInt8) fn = kKernel<run_quantize<std::int8_t>>;
    if (task.y == DataType::kUint8) fn = kKernel<run_quantize<std::uint8_t>>;
    if (task.y == DataType::kInt16) fn = kKernel<run_quantize<std::int16_t>>;
    if (task.y == DataType::kUint16) fn = kKernel<run_quantize<std::uint16_t>>;
  }
  return make_offer(fn, task);
}

KernelOffer offer_dequantize(const KernelRequest& request) {
  if (const auto dtype = unknown_type(request)) return decline_dtype(request, *dtype);
  Task task = task_of(request);
  opdef::KernelFn fn = kKernel<run_dequantize_any>;
  if (task.y == DataType::kFloat32) {
    if (task.x == DataType::kInt8) fn = kKernel<run_dequantize<std::int8_t>>;
    if (task.x == DataType::kUint8) fn = kKernel<run_dequantize<std::uint8_t>>;
    if (task.x == DataType::kInt16) fn = kKernel<run_dequantize<std::int16_t>>;
    if (task.x == DataType::kUint16) fn = kKernel<run_dequantize<std::uint16_t>>;
    if (task.x == DataType::kInt32) fn = kKernel<run_dequantize<std::int32_t>>;
  }
  return make_offer(fn, task);
}

}  // namespace

void register_linear_quantization_cpu(opdef::KernelRegistry& registry) {
  registry.add("", "QuantizeLinear", 0, offer_quantize);
  registry.add("", "DequantizeLinear", 0, offer_dequantize);
}

}  // namespace onnxgrad::ops::linear_quantization_cpu
