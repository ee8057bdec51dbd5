#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ir/builder.h"
#include "onnxgrad/error.h"
#include "opdef/fused.h"
#include "ops/kernel_support_cuda.h"
#include "ops/nn/pool.h"
#include "ops/nn/pool_dnn_cuda.h"
#include "ops/nn/window_text_cuda.h"

// Pools as texts, beside cuDNN's for large ones: a thread for each result. A gradient is the sum
// over the windows that read a position, in their order, as on the CPU, which adds to the positions
// window by window.

namespace onnxgrad::ops::pool_cuda {
namespace {

using device::cuda::TextKernel;
using device::cuda::Word;
using opdef::Layout;

// Words: two operands and up to two results, elements, whether pads are counted, whether indices
// are in column-major order; input, output, kernel, stride, dilation, begin and end of the padding
// of three axes; channels. og_last: images have the channels last.
constexpr int kFirstAxis = 7;

constexpr const char* kPrelude = R"(
struct og_pool {
  og_axis d, h, w;
  og_i64 input, output, channels;
};
template <class Words>
OG_FUNCTION og_pool og_pool_of(const Words& a) {
  og_pool p;
  p.d = og_axis_at(a, 7);
  p.h = og_axis_at(a, 14);
  p.w = og_axis_at(a, 21);
  p.input = (og_i64)p.d.input * p.h.input * p.w.input;
  p.output = (og_i64)p.d.output * p.h.output * p.w.output;
  p.channels = a.integer(28);
  return p;
}
// The place of element `i` of images of this size, behind its plane.
OG_FUNCTION og_place og_split(const og_pool& p, og_i64 i, int d, int h, int w) {
  if (!og_last) return og_split(i, d, h, w);
  og_place at = og_split(i / p.channels, d, h, w);
  at.outer = at.outer * p.channels + i % p.channels;
  return at;
}
// The element of a plane of this size at a position.
OG_FUNCTION og_i64 og_element(const og_pool& p, og_i64 plane, og_i64 size, og_i64 position) {
  return og_last ? (plane / p.channels * size + position) * p.channels + plane % p.channels
                 : plane * size + position;
}
// How many of the first taps of a window read positions below `bound`.
OG_FUNCTION int og_taps_below(const og_axis& axis, int window, int bound) {
  const int first = window * axis.stride - axis.pad;
  const int taps = bound <= first ? 0 : (bound - first - 1) / axis.dilation + 1;
  return taps < axis.kernel ? taps : axis.kernel;
}
OG_FUNCTION int og_first_tap(const og_axis& axis, int window) {
  return og_taps_below(axis, window, 0);
}
OG_FUNCTION int og_end_tap(const og_axis& axis, int window) {
  return og_taps_below(axis, window, axis.input);
}
OG_FUNCTION int og_position(const og_axis& axis, int window, int tap) {
  return window * axis.stride - axis.pad + tap * axis.dilation;
}
// The windows that may read a position.
OG_FUNCTION int og_first_window(const og_axis& axis, int position) {
  const int start = position + axis.pad - (axis.kernel - 1) * axis.dilation;
  return start <= 0 ? 0 : (start + axis.stride - 1) / axis.stride;
}
OG_FUNCTION int og_end_window(const og_axis& axis, int position) {
  const int end = (position + axis.pad) / axis.stride + 1;
  return end < axis.output ? end : axis.output;
}
OG_FUNCTION bool og_reads(const og_axis& axis, int window, int position) {
  return (position + axis.pad - window * axis.stride) % axis.dilation == 0;
}
OG_FUNCTION og_i64 og_count(const og_axis& axis, int window, bool counts_pads) {
  return og_taps_below(axis, window, axis.input + (counts_pads ? axis.pad_end : 0)) -
         og_taps_below(axis, window, counts_pads ? -axis.pad : 0);
}
OG_FUNCTION og_i64 og_divisor(const og_pool& p, int d, int h, int w, bool counts_pads) {
  return og_count(p.d, d, counts_pads) * og_count(p.h, h, counts_pads) *
         og_count(p.w, w, counts_pads);
}
)";

constexpr const char* kMaxPool = R"(
OG_KERNEL(og_max_pool, 29) {
  const og_t* const x = a.pointer<og_t>(0);
  const og_pool p = og_pool_of(a);
  for (og_i64 i = og_first(); i < a.integer(4); i += og_stride()) {
    const og_place o = og_split(p, i, p.d.output, p.h.output, p.w.output);
    og_i64 best = -1;
    int best_d = 0, best_h = 0, best_w = 0;
    og_t most = 0;
    for (int j = og_first_tap(p.d, o.d); j < og_end_tap(p.d, o.d); ++j) {
      const int d = og_position(p.d, o.d, j);
      for (int k = og_first_tap(p.h, o.h); k < og_end_tap(p.h, o.h); ++k) {
        const int h = og_position(p.h, o.h, k);
        for (int l = og_first_tap(p.w, o.w); l < og_end_tap(p.w, o.w); ++l) {
          const int w = og_position(p.w, o.w, l);
          const og_i64 at = ((og_i64)d * p.h.input + h) * p.w.input + w;
          const og_t value = x[og_element(p, o.outer, p.input, at)];
          if (best < 0 || value > most || (value != value && most == most)) {
            best = at;
            best_d = d;
            best_h = h;
            best_w = w;
            most = value;
          }
        }
      }
    }
    if (a.integer(2) != 0) a.pointer<og_t>(2)[i] = most;
    if (a.integer(3) == 0) continue;
    if (a.integer(6) != 0) best = best_d + p.d.input * (best_h + (og_i64)p.h.input * best_w);
    a.pointer<og_i64>(3)[i] = o.outer * p.input + best;
  }
}
)";

// A position takes from the windows that read it whose index it is.
constexpr const char* kMaxPoolGrad = R"(
OG_KERNEL(og_max_pool_grad, 29) {
  const og_t* const dy = a.pointer<og_t>(0);
  const og_i64* const indices = a.pointer<og_i64>(1);
  const og_pool p = og_pool_of(a);
  for (og_i64 i = og_first(); i < a.integer(4); i += og_stride()) {
    const og_place at = og_split(p, i, p.d.input, p.h.input, p.w.input);
    og_i64 index = ((og_i64)at.d * p.h.input + at.h) * p.w.input + at.w;
    if (a.integer(6) != 0) index = at.d + p.d.input * (at.h + (og_i64)p.h.input * at.w);
    index += at.outer * p.input;
    og_t sum = 0;
    for (int d = og_first_window(p.d, at.d); d < og_end_window(p.d, at.d); ++d) {
      for (int h = og_first_window(p.h, at.h); h < og_end_window(p.h, at.h); ++h) {
        for (int w = og_first_window(p.w, at.w); w < og_end_window(p.w, at.w); ++w) {
          const og_i64 window = ((og_i64)d * p.h.output + h) * p.w.output + w;
          const og_i64 o = og_element(p, at.outer, p.output, window);
          if (indices[o] == index) sum = sum + dy[o];
        }
      }
    }
    a.pointer<og_t>(2)[i] = sum;
  }
}
)";

constexpr const char* kAveragePool = R"(
OG_KERNEL(og_average_pool, 29) {
  const og_t* const x = a.pointer<og_t>(0);
  const og_pool p = og_pool_of(a);
  for (og_i64 i = og_first(); i < a.integer(4); i += og_stride()) {
    const og_place o = og_split(p, i, p.d.output, p.h.output, p.w.output);
    og_t sum = 0;
    for (int j = og_first_tap(p.d, o.d); j < og_end_tap(p.d, o.d); ++j) {
      const og_i64 d = og_position(p.d, o.d, j);
      for (int k = og_first_tap(p.h, o.h); k < og_end_tap(p.h, o.h); ++k) {
        const og_i64 row = (d * p.h.input + og_position(p.h, o.h, k)) * p.w.input;
        for (int l = og_first_tap(p.w, o.w); l < og_end_tap(p.w, o.w); ++l) {
          sum = sum + x[og_element(p, o.outer, p.input, row + og_position(p.w, o.w, l))];
        }
      }
    }
    a.pointer<og_t>(2)[i] = sum / (og_t)og_divisor(p, o.d, o.h, o.w, a.integer(5) != 0);
  }
}
)";

constexpr const char* kAveragePoolGrad = R"(
OG_KERNEL(og_average_pool_grad, 29) {
  const og_t* const dy = a.pointer<og_t>(0);
  const og_pool p = og_pool_of(a);
  for (og_i64 i = og_first(); i < a.integer(4); i += og_stride()) {
    const og_place at = og_split(p, i, p.d.input, p.h.input, p.w.input);
    og_t sum = 0;
    for (int d = og_first_window(p.d, at.d); d < og_end_window(p.d, at.d); ++d) {
      if (!og_reads(p.d, d, at.d)) continue;
      for (int h = og_first_window(p.h, at.h); h < og_end_window(p.h, at.h); ++h) {
        if (!og_reads(p.h, h, at.h)) continue;
        for (int w = og_first_window(p.w, at.w); w < og_end_window(p.w, at.w); ++w) {
          if (!og_reads(p.w, w, at.w)) continue;
          const og_i64 window = ((og_i64)d * p.h.output + h) * p.w.output + w;
          const og_i64 o = og_element(p, at.outer, p.output, window);
          sum = sum + dy[o] / (og_t)og_divisor(p, d, h, w, a.integer(5) != 0);
        }
      }
    }
    a.pointer<og_t>(2)[i] = sum;
  }
}
)";

// A block for each plane.
constexpr const char* kGlobal = R"(
OG_FUNCTION og_t og_fold(og_t left, og_t right) {
  return og_is_max ? og_max(right, left) : left + right;
}
OG_KERNEL(og_global, 4) {
  OG_SHARED og_t folded[256];
  const og_i64 planes = a.integer(2), size = a.integer(3);
  for (og_i64 plane = blockIdx.x; plane < planes; plane += gridDim.x) {
    const og_t* const x = a.pointer<og_t>(0) + plane * size;
    og_t value = og_is_max ? x[threadIdx.x < size ? threadIdx.x : 0] : (og_t)0;
    for (og_i64 i = threadIdx.x; i < size; i += 256) value = og_fold(value, x[i]);
    folded[threadIdx.x] = value;
    __syncthreads();
    for (unsigned half = 128; half > 0; half /= 2) {
      if (threadIdx.x < half) {
        folded[threadIdx.x] = og_fold(folded[threadIdx.x], folded[threadIdx.x + half]);
      }
      __syncthreads();
    }
    if (threadIdx.x == 0) {
      a.pointer<og_t>(1)[plane] = og_is_max ? folded[0] : folded[0] / (og_t)size;
    }
    __syncthreads();
  }
}
)";

std::string_view element_type(DataType dtype) {
  switch (dtype) {
    case DataType::kFloat32:
      return "float";
    case DataType::kFloat64:
      return "double";
    case DataType::kInt8:
      return "og_i8";
    case DataType::kUint8:
      return "og_u8";
    default:
      return "";
  }
}

const opdef::TensorDesc& argument(const opdef::KernelRequest& request, std::size_t i) {
  return i < request.inputs.size() ? request.inputs[i] : request.outputs[i - request.inputs.size()];
}

bool is_channels_last(const opdef::TensorDesc& desc) {
  return desc.layout.kind == Layout::Kind::kChannelsLast;
}

/// Text and operands of a kernel of a pool; -1: it has no such operand.
struct PoolKernel {
  const char* text;
  const char* name;
  std::vector<int> args;                               ///< of the first four words
  std::size_t result = 0;                              ///< argument with a thread for each element
  std::optional<PoolOperands> library = std::nullopt;  ///< for cuDNN
};

// `x` and `ys`: arguments with the shapes of the pool's input and output.
opdef::KernelOffer offer_pool(const opdef::KernelRequest& request, std::size_t x,
                              const std::vector<std::size_t>& ys, const PoolKernel& kernel) {
  const Dims& dims = argument(request, x).dims;
  const PoolShape shape = pool_shape(request.node, dims);
  if (shape.spatial_rank > 3) return opdef::KernelOffer::decline("more than three spatial axes");
  std::vector<std::int64_t> expected{dims[0], dims[1]};
  for (std::size_t i = 3 - shape.spatial_rank; i < 3; ++i) {
    expected.push_back(shape.axes[i].output);
  }
  for (const std::size_t y : ys) {
    const opdef::TensorDesc& desc = argument(request, y);
    if (!desc.is_present() || desc.dims == Dims(expected)) continue;
    throw ShapeError(
        problem_at(request.node,
                   fmt::format("an operand of the output's shape has shape {}, expected {}",
                               desc.dims.to_string(), Dims(expected).to_string()),
                   {}, "Give it the shape determined by the input and the attributes."));
  }
  std::vector<Word> words;
  for (const int arg : kernel.args) {
    const bool is_there = arg >= 0 && argument(request, static_cast<std::size_t>(arg)).is_present();
    words.push_back(is_there ? Word::argument(arg) : Word::of(std::int64_t{0}));
  }
  const std::int64_t elements = argument(request, kernel.result).dims.num_elements();
  words.push_back(Word::of(elements));
  words.push_back(Word::of(request.node.int_attribute("count_include_pad", 0)));
  words.push_back(Word::of(request.node.int_attribute("storage_order", 0)));
  for (const WindowAxis& axis : shape.axes) {
    for (const std::int64_t number : {axis.input, axis.output, axis.kernel, axis.stride,
                                      axis.dilation, axis.pad_begin, axis.pad_end}) {
      constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max() / 4;
      if (number > kMost) return opdef::KernelOffer::decline("more than 2^29 positions");
    }
    append_window(words, axis);
  }
  words.push_back(Word::of(std::max<std::int64_t>(dims[1], 1)));
  static_assert(kFirstAxis == 7);
  const bool has_channels_last = std::ranges::any_of(request.inputs, is_channels_last);
  const std::string text = fmt::format(
      "typedef {} og_t;\nenum {{ og_last = {} }};\n{}{}{}", element_type(request.inputs[0].dtype),
      has_channels_last ? 1 : 0, window_text(), kPrelude, kernel.text);
  opdef::KernelOffer offer;
  if (elements == 0) {
    offer.kernel = prepared(std::vector<TextKernel>(), "nothing to compute");
    return offer;
  }
  TextKernel made = text_kernel_over(request, elements, text, kernel.name, std::move(words));
  if (kernel.library && !has_channels_last) {
    offer = offer_pool_dnn(request, shape, *kernel.library, made);
    if (offer.kernel.fn != nullptr) return offer;
  }
  offer.kernel = prepared(std::move(made),
                          fmt::format("text of {} windows", shape.planes * shape.output_size()));
  if (has_channels_last) {  // everything that it reads and writes
    constexpr Layout kLast{.kind = Layout::Kind::kChannelsLast};
    offer.kernel.input_layouts.assign(request.inputs.size(), kLast);
    offer.kernel.output_layouts.assign(request.outputs.size(), kLast);
  }
  return offer;
}

bool is_float(const opdef::KernelRequest& request) {
  const DataType dtype = request.inputs[0].dtype;
  return dtype == DataType::kFloat32 || dtype == DataType::kFloat64;
}

const char* const kFloatsOnly = "float32 and float64 only";

opdef::KernelOffer offer_max_pool(const opdef::KernelRequest& request) {
  if (element_type(request.inputs[0].dtype).empty()) {
    return opdef::KernelOffer::decline("no text for this type");
  }
  const bool has_indices = request.has_output(1);
  std::vector<std::size_t> ys{1};
  if (has_indices) ys.push_back(2);
  PoolKernel kernel{.text = kMaxPool,
                    .name = "og_max_pool",
                    .args = {0, -1, 1, has_indices ? 2 : -1},
                    .result = request.has_output(0) ? std::size_t{1} : std::size_t{2}};
  if (is_float(request) && !has_indices) kernel.library = PoolOperands();
  return offer_pool(request, 0, ys, kernel);
}

opdef::KernelOffer offer_max_pool_grad(const opdef::KernelRequest& request) {
  if (!is_float(request)) return opdef::KernelOffer::decline(kFloatsOnly);
  const std::size_t dx = request.inputs.size();
  return offer_pool(request, 2, {0, 1},
                    {.text = kMaxPoolGrad,
                     .name = "og_max_pool_grad",
                     .args = {0, 1, static_cast<int>(dx), -1},
                     .result = dx});
}

opdef::KernelOffer offer_average_pool(const opdef::KernelRequest& request) {
  if (!is_float(request)) return opdef::KernelOffer::decline(kFloatsOnly);
  return offer_pool(request, 0, {1},
                    {.text = kAveragePool,
                     .name = "og_average_pool",
                     .args = {0, -1, 1, -1},
                     .result = 1,
                     .library = PoolOperands{.kind = PoolOperands::Kind::kAverage}});
}

opdef::KernelOffer offer_average_pool_grad(const opdef::KernelRequest& request) {
  if (!is_float(request)) return opdef::KernelOffer::decline(kFloatsOnly);
  const std::size_t dx = request.inputs.size();
  return offer_pool(
      request, 1, {0},
      {.text = kAveragePoolGrad,
       .name = "og_average_pool_grad",
       .args = {0, -1, static_cast<int>(dx), -1},
       .result = dx,
       .library = PoolOperands{
           .kind = PoolOperands::Kind::kAverageGradient, .x = static_cast<int>(dx), .y = 0}});
}

opdef::KernelOffer offer_global(const opdef::KernelRequest& request, bool is_max) {
  if (!is_float(request)) return opdef::KernelOffer::decline(kFloatsOnly);
  const Dims& x = request.inputs[0].dims;
  if (x.rank() < 2 || x.product(2, x.rank()) == 0) {
    throw ShapeError(problem_at(
        request.node, "input X has shape " + x.to_string() + ", expected [N, C, D...] with D > 0",
        {}, "Reshape it, or give a larger input."));
  }
  const std::int64_t planes = x.product(0, 2);
  const std::int64_t size = x.product(2, x.rank());
  const std::string text =
      fmt::format("typedef {} og_t;\nenum {{ og_is_max = {} }};\n{}",
                  element_type(request.inputs[0].dtype), is_max ? 1 : 0, kGlobal);
  TextKernel kernel =
      text_kernel(request, text, "og_global",
                  {Word::argument(0), Word::argument(1), Word::of(planes), Word::of(size)});
  kernel.block[0] = 256;
  kernel.grid[0] = planes == 0 ? 0 : device::cuda::num_blocks(planes, 1);
  opdef::KernelOffer offer;
  offer.kernel = prepared(std::move(kernel), fmt::format("text of {} planes", planes));
  return offer;
}

opdef::KernelOffer offer_global_average(const opdef::KernelRequest& request) {
  return offer_global(request, false);
}
opdef::KernelOffer offer_global_max(const opdef::KernelRequest& request) {
  return offer_global(request, true);
}

}  // namespace

void register_pool_cuda(opdef::KernelRegistry& registry) {
  registry.add("", "MaxPool", 0, offer_max_pool);
  registry.add("", "AveragePool", 0, offer_average_pool);
  for (const std::string_view domain : {ir::kFunctionDomain, ir::kFusedDomain}) {
    registry.add(domain, opdef::kMaxPoolGrad, 0, offer_max_pool_grad);
    registry.add(domain, opdef::kAveragePoolGrad, 0, offer_average_pool_grad);
  }
  registry.add("", "GlobalAveragePool", 0, offer_global_average);
  registry.add("", "GlobalMaxPool", 0, offer_global_max);
}

}  // namespace onnxgrad::ops::pool_cuda
