#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "device/cpu/threads.h"
#include "device/cpu_options.h"
#include "ir/builder.h"
#include "opdef/kernel.h"
#include "ops/image/resize_table.h"
#include "ops/image/weighted_sums_simd.h"
#include "ops/kernel_support.h"

// Kernels of Resize and its gradient: one pass per axis that changes, the innermost first. A plane
// is the sub-tensor at one index of the axes before the first of them. The rows of a plane that a
// stripe of the output needs are resized along the inner axes into scratch memory, which stays in
// the cache, and from there, along the first axis, into the output. Selections (mode nearest) copy
// bytes; sums of rows use SIMD.

namespace onnxgrad::ops::resize_cpu {
namespace {

constexpr std::int64_t kStripeBytes = 192 << 10;  // scratch memory within the L2 cache
constexpr std::int64_t kParallelElements = 1 << 15;

// Pass over one axis: x [input, inner_in] -> y [output, inner_out]; inner_in == inner_out in the
// innermost pass.
template <class T>
struct Pass {
  device::Isa isa = {};
  std::int64_t input = 0;
  std::int64_t output = 0;
  std::int64_t inner_in = 1;
  std::int64_t inner_out = 1;
  std::vector<std::int32_t> starts = {};   // first entry of each output
  std::vector<std::int32_t> indices = {};  // input of each entry
  std::vector<T> weights = {};             // empty: a selection
  // Entries transposed for gathers: [taps, output], with weight 0 where an output has fewer
  // entries.
  std::int64_t taps = 0;
  std::vector<std::int32_t> lane_indices = {};
  std::vector<T> lane_weights = {};
  std::vector<std::int32_t> without_entries = {};
  std::vector<std::uint8_t> is_read = {};  // per input
  std::int64_t slabs = 1;                  // slabs adjacent in a row of the previous pass
  // Integer factors: output o is input o / repeats, or the sum of the inputs from o * sums on.
  std::int64_t repeats = 0;
  std::int64_t sums = 0;

  std::int64_t count(std::int64_t o) const {
    return starts[static_cast<std::size_t>(o) + 1] - starts[static_cast<std::size_t>(o)];
  }
};

template <class T>
struct ResizePlan {
  std::int64_t planes = 1;
  std::vector<Pass<T>> passes = {};  // outermost axis first
  std::int64_t stripe = 1;           // outputs of the first axis per stripe
  std::int64_t stripes = 1;
  std::vector<std::int64_t> scratch_offsets = {};  // elements, per pass but the last
  std::int64_t scratch = 0;                        // elements per thread
  T outside = T(0);
  int threads = 1;

  std::int64_t plane_in() const { return passes[0].input * passes[0].inner_in; }
  std::int64_t plane_out() const { return passes[0].output * passes[0].inner_out; }
};

// Repeats each of `count` elements kFactor times (0: `factor` times).
template <int kFactor, class T>
void repeat_elements(const T* x, std::int64_t count, std::int64_t factor, T* y) {
  const std::int64_t times = kFactor > 0 ? kFactor : factor;
  for (std::int64_t i = 0; i < count; ++i) {
    for (std::int64_t k = 0; k < times; ++k) y[i * times + k] = x[i];
  }
}

// Computes `count` sums of kFactor (0: `factor`) adjacent elements.
template <int kFactor, class T>
void sum_neighbours(const T* x, std::int64_t count, std::int64_t factor, T* y) {
  const std::int64_t terms = kFactor > 0 ? kFactor : factor;
  for (std::int64_t i = 0; i < count; ++i) {
    T sum = x[i * terms];
    for (std::int64_t k = 1; k < terms; ++k) sum += x[i * terms + k];
    y[i] = sum;
  }
}

// Computes resize_row() for an integer factor, with contiguous elements. Returns false for other
// passes.
template <class T>
bool resize_row_by_factor(const Pass<T>& pass, std::int64_t first, std::int64_t end, const T* x,
                          T* y) {
  if (const std::int64_t f = pass.repeats; f > 0 && first % f == 0 && end % f == 0) {
    const std::int64_t count = (end - first) / f;
    x += first / f;
    if (f == 2) {
      repeat_elements<2>(x, count, f, y);
    } else if (f == 4) {
      repeat_elements<4>(x, count, f, y);
    } else {
      repeat_elements<0>(x, count, f, y);
    }
    return true;
  }
  if constexpr (std::is_floating_point_v<T>) {
    if (const std::int64_t f = pass.sums; f > 0) {
      x += first * f;
      if (f == 2) {
        sum_neighbours<2>(x, end - first, f, y);
      } else if (f == 4) {
        sum_neighbours<4>(x, end - first, f, y);
      } else {
        sum_neighbours<0>(x, end - first, f, y);
      }
      return true;
    }
  }
  return false;
}

// Computes y[o] for o in [first, end) of one row of the innermost axis.
template <class T>
void resize_row(const Pass<T>& pass, std::int64_t first, std::int64_t end, T outside, const T* x,
                T* y) {
  if (resize_row_by_factor(pass, first, end, x, y)) return;
  const std::int32_t* indices = pass.lane_indices.data() + first;
  const std::int64_t count = end - first;
  if constexpr (std::is_floating_point_v<T>) {
    if (!pass.weights.empty()) {
      const weighted::Taps<T> taps{.indices = indices,
                                   .weights = pass.lane_weights.data() + first,
                                   .taps = pass.taps,
                                   .stride = pass.output};
      weighted::gather_sums(x, taps, count, y);
    }
  }
  if (pass.weights.empty()) {
    for (std::int64_t o = 0; o < count; ++o) y[o] = x[indices[o]];
  }
  for (const std::int32_t o : pass.without_entries) {
    if (o >= first && o < end) y[o - first] = outside;
  }
}

// Computes y[o] for o in [first, end), rows of inner_out elements. Row r of x is at x + (r - row0)
// * inner_out.
template <class T>
void combine_rows(const Pass<T>& pass, std::int64_t first, std::int64_t end, T outside, const T* x,
                  std::int64_t row0, T* y) {
  constexpr std::int64_t kMaxOffsets = 64;
  const std::int64_t length = pass.inner_out;
  for (std::int64_t o = first; o < end; ++o, y += length) {
    const auto start = static_cast<std::size_t>(pass.starts[static_cast<std::size_t>(o)]);
    const std::int64_t count = pass.count(o);
    if (count == 0) {
      std::fill_n(y, length, outside);
      continue;
    }
    const auto row = [&](std::int64_t t) {
      return (pass.indices[start + static_cast<std::size_t>(t)] - row0) * length;
    };
    if (pass.weights.empty()) {
      std::memcpy(y, x + row(0), static_cast<std::size_t>(length) * sizeof(T));
      continue;
    }
    if constexpr (std::is_floating_point_v<T>) {
      // Sums over very many rows are computed in parts.
      for (std::int64_t t = 0; t < count; t += kMaxOffsets) {
        std::int64_t offsets[kMaxOffsets + 1];
        T weights[kMaxOffsets + 1];
        std::int64_t n = 0;
        if (t > 0) {
          offsets[n] = y - x;
          weights[n++] = T(1);
        }
        for (std::int64_t k = t; k < std::min(count, t + kMaxOffsets); ++k, ++n) {
          offsets[n] = row(k);
          weights[n] = pass.weights[start + static_cast<std::size_t>(k)];
        }
        weighted::sum_rows(pass.isa, x, offsets, weights, n, length, y);
      }
    }
  }
}

template <class T>
void resize_slab(const ResizePlan<T>& plan, std::size_t level, const T* x, T* y, T* scratch);

// Resizes one row of the pass before `level`.
template <class T>
void resize_slabs(const ResizePlan<T>& plan, std::size_t level, const T* x, T* y, T* scratch) {
  const Pass<T>& pass = plan.passes[level];
  for (std::int64_t k = 0; k < pass.slabs; ++k) {
    resize_slab(plan, level, x, y, scratch);
    x += pass.input * pass.inner_in;
    y += pass.output * pass.inner_out;
  }
}

// Runs pass `level` and the passes after it on one slab.
template <class T>
void resize_slab(const ResizePlan<T>& plan, std::size_t level, const T* x, T* y, T* scratch) {
  const Pass<T>& pass = plan.passes[level];
  if (level + 1 == plan.passes.size()) {
    if (pass.inner_out == 1) return resize_row(pass, 0, pass.output, plan.outside, x, y);
    return combine_rows(pass, 0, pass.output, plan.outside, x, 0, y);
  }
  T* rows = scratch + plan.scratch_offsets[level];
  for (std::int64_t r = 0; r < pass.input; ++r) {
    if (pass.is_read[static_cast<std::size_t>(r)] == 0) continue;
    resize_slabs(plan, level + 1, x + r * pass.inner_in, rows + r * pass.inner_out, scratch);
  }
  combine_rows(pass, 0, pass.output, plan.outside, rows, 0, y);
}

// Returns the first and the last row that outputs [first, end) read; {0, -1} if none.
template <class T>
std::pair<std::int64_t, std::int64_t> rows_read(const Pass<T>& pass, std::int64_t first,
                                                std::int64_t end) {
  const auto from = pass.indices.begin() + pass.starts[static_cast<std::size_t>(first)];
  const auto to = pass.indices.begin() + pass.starts[static_cast<std::size_t>(end)];
  if (from == to) return {0, -1};
  const auto [least, most] = std::minmax_element(from, to);
  return {*least, *most};
}

// Selects rows: each is resized along the inner axes directly into the output; repeated ones are
// copied.
template <class T>
void select_rows(const ResizePlan<T>& plan, std::int64_t first, std::int64_t end, const T* x, T* y,
                 T* scratch) {
  const Pass<T>& pass = plan.passes[0];
  std::int64_t last = -1;
  for (std::int64_t o = first; o < end; ++o, y += pass.inner_out) {
    if (pass.count(o) == 0) {
      std::fill_n(y, pass.inner_out, plan.outside);
      last = -1;
      continue;
    }
    const std::int64_t row =
        pass.indices[static_cast<std::size_t>(pass.starts[static_cast<std::size_t>(o)])];
    if (row == last) {
      std::memcpy(y, y - pass.inner_out, static_cast<std::size_t>(pass.inner_out) * sizeof(T));
    } else {
      resize_slabs(plan, 1, x + row * pass.inner_in, y, scratch);
    }
    last = row;
  }
}

template <class T>
void resize_stripe(const ResizePlan<T>& plan, std::int64_t task, const T* x, T* y, T* scratch) {
  const Pass<T>& pass = plan.passes[0];
  const std::int64_t plane = task / plan.stripes;
  const std::int64_t first = task % plan.stripes * plan.stripe;
  const std::int64_t end = std::min(first + plan.stripe, pass.output);
  x += plane * plan.plane_in();
  y += plane * plan.plane_out() + first * pass.inner_out;
  if (plan.passes.size() == 1) {
    if (pass.inner_out == 1) return resize_row(pass, first, end, plan.outside, x, y);
    return combine_rows(pass, first, end, plan.outside, x, 0, y);
  }
  if (pass.weights.empty()) return select_rows(plan, first, end, x, y, scratch);
  const auto [least, most] = rows_read(pass, first, end);
  T* rows = scratch + plan.scratch_offsets[0];
  for (std::int64_t r = least; r <= most; ++r) {
    if (pass.is_read[static_cast<std::size_t>(r)] == 0) continue;
    resize_slabs(plan, 1, x + r * pass.inner_in, rows + (r - least) * pass.inner_out, scratch);
  }
  combine_rows(pass, first, end, plan.outside, rows, least, y);
}

// Runs a plan; args: kInputs inputs, y, scratch.
template <class T, int kInputs>
void run_resize(const ResizePlan<T>& plan, KernelArgs args) {
  const T* x = args.at<T>(0);
  T* y = args.at<T>(kInputs);
  T* scratch = args.at<T>(kInputs + 1);
  const std::int64_t tasks = plan.planes * plan.stripes;
  device::on_threads(
      plan.threads, device::chunks_of(plan.threads, tasks), [&](const device::Chunk& chunk) {
        for (std::int64_t task = chunk.first(tasks); task < chunk.last(tasks); ++task) {
          resize_stripe(plan, task, x, y, scratch + chunk.thread * plan.scratch);
        }
      });
}

template <class T>
Pass<T> make_pass(const ResizeTable& table, bool is_selection) {
  Pass<T> pass{.input = table.input, .output = table.output};
  pass.starts = table.starts;
  pass.indices = table.indices;
  pass.is_read.assign(static_cast<std::size_t>(table.input), 0);
  for (const std::int32_t i : table.indices) pass.is_read[static_cast<std::size_t>(i)] = 1;
  if constexpr (std::is_floating_point_v<T>) {
    if (!is_selection) {
      for (const double weight : table.weights) pass.weights.push_back(static_cast<T>(weight));
    }
  }
  return pass;
}

// Transposes the entries of the innermost axis, so that entry t of all outputs is contiguous.
template <class T>
void set_lanes(Pass<T>& pass) {
  for (std::int64_t o = 0; o < pass.output; ++o) pass.taps = std::max(pass.taps, pass.count(o));
  pass.taps = std::max<std::int64_t>(pass.taps, 1);
  const auto size = static_cast<std::size_t>(pass.taps * pass.output);
  pass.lane_indices.assign(size, 0);
  if (!pass.weights.empty()) pass.lane_weights.assign(size, T(0));
  for (std::int64_t o = 0; o < pass.output; ++o) {
    const auto start = static_cast<std::size_t>(pass.starts[static_cast<std::size_t>(o)]);
    const std::int64_t count = pass.count(o);
    if (count == 0) pass.without_entries.push_back(static_cast<std::int32_t>(o));
    for (std::int64_t t = 0; t < pass.taps && count > 0; ++t) {
      const auto lane = static_cast<std::size_t>(t * pass.output + o);
      const std::size_t entry = start + static_cast<std::size_t>(std::min(t, count - 1));
      pass.lane_indices[lane] = pass.indices[entry];
      if (!pass.weights.empty() && t < count) pass.lane_weights[lane] = pass.weights[entry];
    }
  }
}

// Finds an integer factor of the innermost axis.
template <class T>
void set_factor(Pass<T>& pass) {
  if (pass.input == 0 || pass.output == 0 || !pass.without_entries.empty()) return;
  const auto holds = [&](std::int64_t count, const auto& index_of) {
    for (std::int64_t o = 0; o < pass.output; ++o) {
      if (pass.count(o) != count) return false;
      for (std::int64_t t = 0; t < count; ++t) {
        const auto entry = static_cast<std::size_t>(pass.starts[static_cast<std::size_t>(o)] + t);
        if (pass.indices[entry] != index_of(o, t)) return false;
      }
    }
    return std::ranges::all_of(pass.weights, [](T weight) { return weight == T(1); });
  };
  const std::int64_t more = pass.output / pass.input;
  const std::int64_t fewer = pass.input / pass.output;
  if (more > 1 && more * pass.input == pass.output) {
    if (holds(1, [&](std::int64_t o, std::int64_t) { return o / more; })) pass.repeats = more;
  } else if (fewer > 1 && fewer * pass.output == pass.input && !pass.weights.empty()) {
    if (holds(fewer, [&](std::int64_t o, std::int64_t t) { return o * fewer + t; })) {
      pass.sums = fewer;
    }
  }
}

// Determines the number and length of the scratch rows that the stripes need.
template <class T>
void set_stripes(ResizePlan<T>& plan) {
  const Pass<T>& pass = plan.passes[0];
  plan.stripe = std::max<std::int64_t>(pass.output, 1);
  const std::int64_t parts = plan.planes >= plan.threads ? 1 : 2 * plan.threads;
  plan.stripe = ceil_div(plan.stripe, parts);
  if (plan.passes.size() > 1) {
    const double rows_per_output = static_cast<double>(pass.input) /
                                   static_cast<double>(std::max<std::int64_t>(pass.output, 1));
    const double row_bytes = static_cast<double>(pass.inner_out) * sizeof(T) * rows_per_output;
    const auto fitting = static_cast<std::int64_t>(kStripeBytes / std::max(row_bytes, 1.0));
    plan.stripe = std::clamp<std::int64_t>(fitting, 1, plan.stripe);
  }
  plan.stripes = ceil_div(pass.output, plan.stripe);
  std::int64_t rows = 0;
  for (std::int64_t s = 0; s < plan.stripes; ++s) {
    const auto [least, most] =
        rows_read(pass, s * plan.stripe, std::min((s + 1) * plan.stripe, pass.output));
    rows = std::max(rows, most - least + 1);
  }
  for (std::size_t level = 0; level + 1 < plan.passes.size(); ++level) {
    plan.scratch_offsets.push_back(plan.scratch);
    plan.scratch += (level == 0 ? rows : plan.passes[level].input) * plan.passes[level].inner_out;
  }
  plan.scratch = round_up(plan.scratch, 16);  // threads do not share a cache line
}

// Plans the resize of x to y along all axes with these tables; nullptr stands for the identity.
template <class T>
ResizePlan<T> make_plan(const std::vector<ResizeTable>& tables, bool is_selection, T outside,
                        int threads) {
  ResizePlan<T> plan{.outside = outside};
  std::size_t first = 0;
  while (first + 1 < tables.size() && tables[first].is_identity()) {
    plan.planes *= tables[first++].input;
  }
  std::int64_t in = 1;
  std::int64_t out = 1;
  auto work = static_cast<double>(plan.planes);
  for (std::size_t axis = tables.size(); axis-- > first;) {
    const ResizeTable& table = tables[axis];
    if (axis > first && table.is_identity()) {
      in *= table.input;
      out *= table.output;
      continue;
    }
    Pass<T> pass = make_pass<T>(table, is_selection);
    pass.inner_in = in;
    pass.inner_out = out;
    in *= table.input;
    out *= table.output;
    plan.passes.push_back(std::move(pass));
  }
  if (plan.passes.front().inner_out == 1) {
    set_lanes(plan.passes.front());
    set_factor(plan.passes.front());
  }
  std::ranges::reverse(plan.passes);
  for (std::size_t i = 1; i < plan.passes.size(); ++i) {
    Pass<T>& pass = plan.passes[i];
    const std::int64_t slab = pass.input * pass.inner_in;
    if (slab > 0) pass.slabs = plan.passes[i - 1].inner_in / slab;
  }
  work *= static_cast<double>(std::max(in, out));
  plan.threads = work < kParallelElements ? 1 : threads;
  set_stripes(plan);
  return plan;
}

template <class T, int kInputs>
KernelOffer offer_plan(const std::vector<ResizeTable>& tables, bool is_selection, T outside,
                       const KernelRequest& request) {
  ResizePlan<T> plan = make_plan<T>(tables, is_selection, outside, request.threads);
  for (Pass<T>& pass : plan.passes) pass.isa = device::isa_of(request);
  const std::int64_t bytes =
      plan.scratch * static_cast<std::int64_t>(sizeof(T)) * std::max(plan.threads, 1);
  std::string label = fmt::format("{} along {} axes", is_selection ? "selection" : "weighted sums",
                                  plan.passes.size());
  KernelOffer offer = prepared<run_resize<T, kInputs>>(std::move(plan), std::move(label));
  offer.kernel.scratch_bytes = bytes;
  return offer;
}

// Returns the extrapolation value as the bytes of an element.
template <class Bits>
Bits outside_bits(const KernelRequest& request) {
  const DataType dtype = request.inputs[0].dtype;
  const float value = request.node.float_attribute("extrapolation_value");
  Bits bits = 0;
  if (dtype == DataType::kString || value == 0) return bits;
  const Tensor element = Tensor::scalar(value).cast(dtype);
  std::memcpy(&bits, element.raw(), sizeof(Bits));
  return bits;
}

KernelOffer copy_offer(const KernelRequest& request, int output) {
  struct Copy {
    std::size_t bytes = 0;
    int output = 0;
  };
  const std::int64_t bytes =
      request.inputs[0].dims.num_elements() * element_bytes(request.inputs[0].dtype);
  return prepared(
      [](const void* data, KernelArgs args, const Launch&) {
        const auto& copy = *static_cast<const Copy*>(data);
        std::memcpy(args[copy.output], args[0], copy.bytes);
      },
      Copy{.bytes = static_cast<std::size_t>(bytes), .output = output}, "copy");
}

// Offers a kernel for an empty result, whose axes may have any size; a table is as long as its
// axis.
std::optional<KernelOffer> offer_nothing(const KernelRequest& request) {
  if (request.outputs[0].dims.num_elements() > 0) return std::nullopt;
  struct Nothing {};
  return prepared([](const void*, KernelArgs, const Launch&) {}, Nothing{}, "nothing");
}

bool are_identities(const std::vector<ResizeTable>& tables) {
  return std::ranges::all_of(tables, [](const ResizeTable& t) { return t.is_identity(); });
}

KernelOffer offer_resize(const KernelRequest& request) {
  constexpr int kInputs = 4;
  const DataType dtype = request.inputs[0].dtype;
  const ResizeAttrs attrs = ResizeAttrs::read(request.node);
  const auto inputs = resize_inputs(request);
  const auto axes =
      resolve_resize(request.node, request.inputs[0].dims, request.outputs[0].dims, inputs);
  if (auto nothing = offer_nothing(request)) return *std::move(nothing);
  std::vector<ResizeTable> tables;
  for (const ResizeAxis& axis : axes) tables.push_back(make_resize_table(attrs, axis));
  const int num_inputs = static_cast<int>(request.inputs.size());
  if (num_inputs != kInputs && num_inputs != kInputs - 1) {
    return KernelOffer::decline("neither scales nor sizes are given");
  }
  if (element_bytes(dtype) != 0 && are_identities(tables)) return copy_offer(request, num_inputs);
  const bool is_selection =
      std::ranges::all_of(tables, [](const ResizeTable& t) { return t.is_selection(); });
  const float outside = request.node.float_attribute("extrapolation_value");
  const auto with_inputs = [&](auto count) {
    constexpr int kCount = decltype(count)::value;
    if (is_selection) {
      const std::int64_t bytes = element_bytes(dtype);
      if (bytes == 1) {
        return offer_plan<std::uint8_t, kCount>(tables, true, outside_bits<std::uint8_t>(request),
                                                request);
      }
      if (bytes == 2) {
        return offer_plan<std::uint16_t, kCount>(tables, true, outside_bits<std::uint16_t>(request),
                                                 request);
      }
      if (bytes == 4) {
        return offer_plan<std::uint32_t, kCount>(tables, true, outside_bits<std::uint32_t>(request),
                                                 request);
      }
      if (bytes == 8) {
        return offer_plan<std::uint64_t, kCount>(tables, true, outside_bits<std::uint64_t>(request),
                                                 request);
      }
      return decline_dtype(request, dtype);
    }
    if (dtype == DataType::kFloat32) {
      return offer_plan<float, kCount>(tables, false, outside, request);
    }
    if (dtype == DataType::kFloat64) {
      return offer_plan<double, kCount>(tables, false, static_cast<double>(outside), request);
    }
    return decline_dtype(request, dtype);
  };
  return num_inputs == kInputs ? with_inputs(std::integral_constant<int, kInputs>{})
                               : with_inputs(std::integral_constant<int, kInputs - 1>{});
}

// inputs: dy, x (not read), scales or sizes, roi if it is read.
KernelOffer offer_resize_grad(const KernelRequest& request) {
  const auto inputs = resize_grad_inputs(request);
  if (!inputs.scales && !inputs.sizes) {
    return KernelOffer::decline("scales or sizes are not known before the step runs");
  }
  const ResizeAttrs attrs = ResizeAttrs::read(request.node);
  const auto axes =
      resolve_resize(request.node, request.inputs[1].dims, request.inputs[0].dims, inputs);
  if (auto nothing = offer_nothing(request)) return *std::move(nothing);
  std::vector<ResizeTable> tables;
  for (const ResizeAxis& axis : axes) {
    tables.push_back(make_resize_table(attrs, axis).transposed());
  }
  const auto num_inputs = static_cast<int>(request.inputs.size());
  if (are_identities(tables) && element_bytes(request.inputs[0].dtype) != 0) {
    return copy_offer(request, num_inputs);
  }
  const auto offer = [&]<class T>(T zero) {
    return num_inputs == 3 ? offer_plan<T, 3>(tables, false, zero, request)
                           : offer_plan<T, 4>(tables, false, zero, request);
  };
  if (request.inputs[0].dtype == DataType::kFloat32) return offer(0.0F);
  if (request.inputs[0].dtype == DataType::kFloat64) return offer(0.0);
  return decline_dtype(request, request.inputs[0].dtype);
}

}  // namespace

void register_resize_cpu(opdef::KernelRegistry& registry) {
  registry.add("", "Resize", 0, offer_resize);
  registry.add(ir::kFunctionDomain, "ResizeGrad", 0, offer_resize_grad);
}

}  // namespace onnxgrad::ops::resize_cpu
