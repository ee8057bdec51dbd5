#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "ir/builder.h"
#include "ops/index_walk_cuda.h"
#include "ops/tensor/sorted_scatter_cuda.h"

// GridSample and its gradients: a thread for each point finds the elements that it reads and their
// weights, for all channels. The formulas are those of the CPU (sample_taps_simd.cpp). The image's
// gradient is a sorted scatter of all taps.

namespace onnxgrad::ops::grid_sample_cuda {
namespace {

using device::cuda::TextKernel;
using device::cuda::Word;

// Words of all kernels: x, grid, dy, result, targets; images, channels, points, elements of a
// channel, axes, then size, mode (0: nearest, 1: linear, 2: cubic), padding (0: zeros, 1: border,
// 2: reflection) and align_corners of three axes, the outermost first.
constexpr const char* kTaps = R"(
struct og_line {
  int mode, padding;
  og_T size, last, scale, low, high;
};
template <class W>
OG_FUNCTION og_line og_line_of(const W& a, int axis) {
  const int w = 10 + 4 * axis;
  const bool aligns = a.integer(w + 3) != 0;
  og_line line;
  line.mode = (int)a.integer(w + 1);
  line.padding = (int)a.integer(w + 2);
  line.size = (og_T)a.integer(w);
  line.last = line.size - (og_T)1;
  line.scale = (aligns ? line.last : line.size) / (og_T)2;
  line.low = aligns ? (og_T)0 : (og_T)-0.5;
  line.high = aligns ? line.last : line.last + (og_T)0.5;
  return line;
}

// What is no number becomes `low`.
OG_FUNCTION og_T og_bounded(og_T x, og_T low, og_T high) {
  x = x > low ? x : low;
  return x < high ? x : high;
}
OG_FUNCTION og_T og_reflected(const og_line& line, og_T x, og_T& sign) {
  const og_T range = line.high - line.low, distance = x - line.low;
  og_T turns = 0, rest = 0;
  if (line.high > line.low) {
    turns = og_floor(og_abs(distance) / range);
    rest = og_fma(-turns, range, og_abs(distance));
  }
  const bool is_back = turns * (og_T)0.5 != og_floor(turns * (og_T)0.5);
  if (is_back != (distance < 0)) sign = -sign;
  return is_back ? line.high - rest : line.low + rest;
}

struct og_tap {
  og_i64 at;
  og_T weight, slope;
};
// Tap k of a point.
OG_FUNCTION og_tap og_tap_of(const og_line& line, og_T grid, int k) {
  og_T slope = line.scale;
  og_T x = og_fma(grid, slope, line.last / (og_T)2);
  if (line.mode == 0) x = og_round(x);
  const bool is_inside = x >= line.low && x <= line.high;
  if (!is_inside && line.padding == 1 && line.mode != 2) {
    x = og_bounded(x, (og_T)0, line.last);
    slope = 0;
  } else if (!is_inside && line.padding == 2) {
    x = og_bounded(og_reflected(line, x, slope), line.low, line.high);
  }
  x = og_bounded(x, (og_T)-4, line.last + (og_T)4);
  og_T first = line.mode == 0 ? x : og_floor(x);
  const og_T fraction = x - first;
  og_tap tap;
  tap.weight = 1;
  tap.slope = 0;
  if (line.mode == 1) {
    tap.weight = k == 0 ? (og_T)1 - fraction : fraction;
    tap.slope = k == 0 ? -slope : slope;
    first = first + (og_T)k;
  } else if (line.mode == 2) {
    const og_T sign = k < 2 ? (og_T)1 : (og_T)-1;
    const og_T d = sign * (fraction - (og_T)(k - 1));
    if (k == 1 || k == 2) {
      tap.weight = og_fma(og_fma((og_T)1.25, d, (og_T)-2.25) * d, d, (og_T)1);
      tap.slope = og_fma((og_T)3.75, d, (og_T)-4.5) * d;
    } else {
      tap.weight = og_fma(og_fma(og_fma((og_T)-0.75, d, (og_T)3.75), d, (og_T)-6), d, (og_T)3);
      tap.slope = og_fma(og_fma((og_T)-2.25, d, (og_T)7.5), d, (og_T)-6);
    }
    tap.slope = sign * tap.slope * slope;
    first = first + (og_T)(k - 1);
  }
  const bool is_in_image = first >= 0 && first <= line.last;
  if (line.padding == 1) {
    first = og_bounded(first, (og_T)0, line.last);
  } else if (!is_in_image && line.padding == 0) {
    tap.weight = tap.slope = first = 0;
  } else if (!is_in_image) {
    og_T unused = 0;
    first = og_bounded(og_round(og_reflected(line, first, unused)), (og_T)0, line.last);
  }
  tap.at = (og_i64)first;
  return tap;
}

// The taps of a point along each axis.
struct og_taps {
  int rank, own;
  og_i64 size[3];
  og_tap tap[3][4];
  OG_FUNCTION_MEMBER int count() const { return rank == 2 ? own * own : own * own * own; }
  // Tap t, with the slope along axis `along` in place of the weight.
  OG_FUNCTION_MEMBER og_tap at(int t, int along) const {
    og_tap all;
    all.at = 0;
    all.weight = 1;
    all.slope = 0;
    int rest = t;
    og_i64 scale = 1;
    for (int axis = rank - 1; axis >= 0; --axis) {
      const og_tap& one = tap[axis][rest % own];
      rest /= own;
      all.at += one.at * scale;
      scale *= size[axis];
      all.weight = all.weight * (axis == along ? one.slope : one.weight);
    }
    return all;
  }
};
template <class W>
OG_FUNCTION og_taps og_taps_of(const W& a, og_i64 point) {
  og_taps taps;
  taps.rank = (int)a.integer(9);
  const int mode = (int)a.integer(11);
  taps.own = mode == 0 ? 1 : mode == 1 ? 2 : 4;
  const og_T* const grid = a.template pointer<const og_T>(1) + point * taps.rank;
  for (int axis = 0; axis < taps.rank; ++axis) {
    const og_line line = og_line_of(a, axis);
    taps.size[axis] = a.integer(10 + 4 * axis);
    // The grid has the coordinate of the innermost axis first.
    for (int k = 0; k < taps.own; ++k) {
      taps.tap[axis][k] = og_tap_of(line, grid[taps.rank - 1 - axis], k);
    }
  }
  return taps;
}
)";

constexpr const char* kSample = R"(
OG_KERNEL(og_sample, 22) {
  const og_i64 channels = a.integer(6), points = a.integer(7), plane = a.integer(8);
  for (og_i64 i = og_first(); i < a.integer(5) * points; i += og_stride()) {
    const og_taps taps = og_taps_of(a, i);
    const og_i64 first = i / points * channels;
    for (og_i64 c = first; c < first + channels; ++c) {
      og_T sum = 0;
      for (int t = 0; t < taps.count(); ++t) {
        const og_tap tap = taps.at(t, -1);
        sum = og_fma(tap.weight, a.pointer<const og_T>(0)[c * plane + tap.at], sum);
      }
      a.pointer<og_T>(3)[c * points + i % points] = sum;
    }
  }
}

OG_KERNEL(og_grid_back, 22) {
  const og_i64 channels = a.integer(6), points = a.integer(7), plane = a.integer(8);
  for (og_i64 i = og_first(); i < a.integer(5) * points; i += og_stride()) {
    const og_taps taps = og_taps_of(a, i);
    const og_i64 first = i / points * channels;
    og_T sums[3];
    for (int axis = 0; axis < 3; ++axis) sums[axis] = 0;
    for (int t = 0; t < taps.count(); ++t) {
      og_T sum = 0;
      const og_i64 at = taps.at(t, -1).at;
      for (og_i64 c = first; c < first + channels; ++c) {
        sum = og_fma(a.pointer<const og_T>(2)[c * points + i % points],
                     a.pointer<const og_T>(0)[c * plane + at], sum);
      }
      for (int axis = 0; axis < taps.rank; ++axis) {
        sums[axis] = og_fma(sum, taps.at(t, axis).weight, sums[axis]);
      }
    }
    for (int axis = 0; axis < taps.rank; ++axis) {
      a.pointer<og_T>(3)[i * taps.rank + taps.rank - 1 - axis] = sums[axis];
    }
  }
}

// Weight and target of each tap; -1 if it adds nothing.
OG_KERNEL(og_find_taps, 22) {
  const og_i64 points = a.integer(7), image = a.integer(6) * a.integer(8);
  for (og_i64 i = og_first(); i < a.integer(5) * points; i += og_stride()) {
    const og_taps taps = og_taps_of(a, i);
    const int count = taps.count();
    for (int t = 0; t < count; ++t) {
      const og_tap tap = taps.at(t, -1);
      a.pointer<og_T>(3)[i * count + t] = tap.weight;
      a.pointer<og_i64>(4)[i * count + t] = tap.weight == 0 ? -1 : i / points * image + tap.at;
    }
  }
}
)";

// Words of og_target: targets. Of the others: weights, dy; taps of a point, points, channels,
// elements of a channel.
constexpr const char* kSpread = R"(
template <class W>
OG_FUNCTION og_i64 og_target(const W& a, int w, og_i64 t) {
  return a.template pointer<const og_i64>(w)[t];
}
template <class W>
OG_FUNCTION og_T og_update(const W& a, int w, og_i64 t, og_i64 column) {
  const og_i64 point = t / a.integer(w + 2), points = a.integer(w + 3);
  return a.template pointer<const og_T>(w)[t] *
         a.template pointer<const og_T>(w + 1)
             [(point / points * a.integer(w + 4) + column) * points + point % points];
}
template <class W>
OG_FUNCTION og_i64 og_element(const W& a, int w, og_i64 target, og_i64 column) {
  return target + column * a.integer(w + 5);
}
OG_FUNCTION og_T og_reduce(og_T a, og_T b) { return a + b; }
template <class W>
OG_FUNCTION og_T og_finish(const W& a, int w, og_T old, og_T total) {
  return old + total;
}
)";

constexpr const char* kZeros = R"(
OG_KERNEL(og_zeros, 2) {
  for (og_i64 i = og_first(); i < a.integer(1); i += og_stride()) a.pointer<og_T>(0)[i] = 0;
}
)";

struct Sampling {
  std::int64_t images = 0, channels = 0, points = 0, plane = 0, taps = 1;
  std::vector<Word> numbers = {};
  std::string type = {};
  std::string declined = {};
};

Sampling sampling_of(const KernelRequest& request, std::size_t x, std::size_t grid) {
  const Dims& dims = request.inputs[x].dims;
  const Dims& grid_dims = request.inputs[grid].dims;
  const DataType dtype = request.inputs[x].dtype;
  if (dtype != DataType::kFloat32 && dtype != DataType::kFloat64) {
    return {.declined = "float32 and float64 only"};
  }
  const std::size_t rank = dims.rank() - 2;
  const bool fits = (rank == 2 || rank == 3) && grid_dims.rank() == dims.rank() &&
                    grid_dims[0] == dims[0] &&
                    grid_dims[rank + 1] == static_cast<std::int64_t>(rank);
  if (!fits || request.inputs[grid].dtype != dtype) return {.declined = "a grid that does not fit"};
  Sampling made{.images = dims[0],
                .channels = dims[1],
                .points = grid_dims.product(1, rank + 1),
                .plane = dims.product(2, dims.rank()),
                .type = walk_type(dtype)};
  constexpr std::int64_t kLongest = std::int64_t{1} << 24;
  const std::string mode = request.node.string_attribute("mode");
  const std::string padding = request.node.string_attribute("padding_mode");
  const std::int64_t mode_number = mode == "nearest" ? 0 : mode == "linear" ? 1 : 2;
  for (const std::int64_t number : {made.images, made.channels, made.points, made.plane}) {
    made.numbers.push_back(Word::of(number));
  }
  made.numbers.push_back(Word::of(static_cast<std::int64_t>(rank)));
  for (std::size_t axis = 0; axis < 3; ++axis) {
    const std::int64_t size = axis < rank ? dims[axis + 2] : 1;
    if (size == 0 || size >= kLongest) return {.declined = "axes of such sizes"};
    if (axis < rank) made.taps *= mode_number == 0 ? 1 : mode_number == 1 ? 2 : 4;
    for (const std::int64_t number : {size, mode_number,
                                      std::int64_t{padding == "zeros"    ? 0
                                                   : padding == "border" ? 1
                                                                         : 2},
                                      request.node.int_attribute("align_corners")}) {
      made.numbers.push_back(Word::of(number));
    }
  }
  return made;
}

TextKernel kernel_of(const KernelRequest& request, const Sampling& sampling, const char* name,
                     std::vector<Word> words) {
  words.insert(words.end(), sampling.numbers.begin(), sampling.numbers.end());
  return text_kernel_over(request, sampling.images * sampling.points,
                          typed_text(sampling.type) + kTaps + kSample, name, std::move(words));
}

std::string label_of(const Sampling& sampling) { return fmt::format("{} taps", sampling.taps); }

KernelOffer offer_sample(const KernelRequest& request) {
  const Sampling sampling = sampling_of(request, 0, 1);
  if (!sampling.declined.empty()) return KernelOffer::decline(sampling.declined);
  const Word none = Word::of(std::int64_t{0});
  KernelOffer offer;
  offer.kernel =
      prepared(kernel_of(request, sampling, "og_sample",
                         {Word::argument(0), Word::argument(1), none, Word::argument(2), none}),
               label_of(sampling));
  return offer;
}

KernelOffer offer_grid_gradient(const KernelRequest& request) {
  const Sampling sampling = sampling_of(request, 1, 2);
  if (!sampling.declined.empty()) return KernelOffer::decline(sampling.declined);
  KernelOffer offer;
  offer.kernel = prepared(kernel_of(request, sampling, "og_grid_back",
                                    {Word::argument(1), Word::argument(2), Word::argument(0),
                                     Word::argument(3), Word::of(std::int64_t{0})}),
                          label_of(sampling));
  return offer;
}

KernelOffer offer_image_gradient(const KernelRequest& request) {
  const Sampling sampling = sampling_of(request, 1, 2);
  if (!sampling.declined.empty()) return KernelOffer::decline(sampling.declined);
  constexpr std::int64_t kScratch = 4;  // the argument
  const std::int64_t bytes = element_bytes(request.inputs[1].dtype);
  const std::int64_t count = sampling.images * sampling.points * sampling.taps;
  const std::int64_t weight_bytes = round_up(count * bytes, std::int64_t{64});
  const Word weights = Word::argument(kScratch);
  const Word targets = Word::argument(kScratch, weight_bytes);
  const std::int64_t elements = sampling.images * sampling.channels * sampling.plane;
  const std::string types = typed_text(sampling.type);
  std::vector<TextKernel> launches;
  launches.push_back(text_kernel_over(request, elements, types + kZeros, "og_zeros",
                                      {Word::argument(3), Word::of(elements)}));
  launches.push_back(
      kernel_of(request, sampling, "og_find_taps",
                {Word::argument(1), Word::argument(2), Word::argument(0), weights, targets}));
  const std::int64_t scratch =
      append_scatter(request,
                     {.count = count,
                      .block = sampling.channels,
                      .element_bytes = bytes,
                      .text = types + kSpread,
                      .target_words = {targets},
                      .apply_words = {weights, Word::argument(0), Word::of(sampling.taps),
                                      Word::of(sampling.points), Word::of(sampling.channels),
                                      Word::of(sampling.plane)},
                      .result = Word::argument(3),
                      .scratch = kScratch,
                      .scratch_bytes = weight_bytes + round_up(count * 8, std::int64_t{64})},
                     launches);
  KernelOffer offer;
  offer.kernel = prepared(std::move(launches), label_of(sampling) + ", sorted scatter");
  offer.kernel.scratch_bytes = scratch;
  return offer;
}

}  // namespace

void register_grid_sample_cuda(opdef::KernelRegistry& registry) {
  registry.add("", "GridSample", 0, offer_sample);
  registry.add(ir::kFunctionDomain, "GridSampleImageGrad", 0, offer_image_gradient);
  registry.add(ir::kFunctionDomain, "GridSampleGridGrad", 0, offer_grid_gradient);
}

}  // namespace onnxgrad::ops::grid_sample_cuda
