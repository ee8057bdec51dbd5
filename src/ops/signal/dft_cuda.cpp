#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ops/block_text_cuda.h"
#include "ops/kernel_support.h"
#include "ops/kernel_support_cuda.h"

// DFT of signals [outer, length, inner, 1 or 2] along one axis, in double precision. Short ones by
// the definition: a thread for each frequency of each signal, with a table of roots of unity. Long
// ones by Stockham's passes of radix 2, other lengths than powers of two as a convolution of such a
// length (Bluestein, 1970): t k = (t t + k k - (k - t) (k - t)) / 2.

namespace onnxgrad::ops::dft_cuda {
namespace {

using device::cuda::TextKernel;
using device::cuda::Word;

constexpr std::int64_t kLongest = 1 << 12;  // by the definition
constexpr std::int64_t kMostPoints = 1 << 28;

// Words: x, y, roots (scratch); frequencies of all signals, n, inner, elements of the input's axis,
// of the output's, parts of an element of x, of y, whether it is the inverse, whether x is half a
// spectrum, elements that are read.
constexpr const char* kText = R"(
OG_KERNEL(og_roots, 13) {
  for (og_i64 i = og_first(); i < a.integer(4); i += og_stride()) {
    const double angle = 6.283185307179586 * ((double)i / (double)a.integer(4));
    a.pointer<double>(2)[2 * i] = cos(angle);
    a.pointer<double>(2)[2 * i + 1] = a.integer(10) != 0 ? sin(angle) : -sin(angle);
  }
}

OG_KERNEL(og_dft, 13) {
  const double* const roots = a.pointer<const double>(2);
  const og_i64 n = a.integer(4), inner = a.integer(5), to = a.integer(7), parts = a.integer(8);
  const og_i64 given = a.integer(12), end = a.integer(11) != 0 ? n : given;
  for (og_i64 i = og_first(); i < a.integer(3); i += og_stride()) {
    const og_i64 column = i % inner, k = i / inner % to, outer = i / inner / to;
    const og_t* const x = a.pointer<const og_t>(0) + (outer * a.integer(6) * inner + column) * parts;
    double re = 0, im = 0;
    og_i64 turn = 0;  // t * k modulo n
    for (og_i64 t = 0; t < end; ++t) {
      const bool is_mirrored = a.integer(11) != 0 && t > n / 2;
      const og_i64 source = is_mirrored ? n - t : t;
      if (source < given) {
        const og_t* const at = x + source * inner * parts;
        const double x_re = (double)at[0];
        const double x_im = parts == 1 ? 0 : is_mirrored ? -(double)at[1] : (double)at[1];
        const double c = roots[2 * turn], s = roots[2 * turn + 1];
        re += x_re * c - x_im * s;
        im += x_re * s + x_im * c;
      }
      turn += k;
      if (turn >= n) turn -= n;
    }
    const double factor = a.integer(10) != 0 ? 1 / (double)n : 1;
    og_t* const y = a.pointer<og_t>(1) + i * a.integer(9);
    y[0] = (og_t)(re * factor);
    if (a.integer(9) == 2) y[1] = (og_t)(im * factor);
  }
}
)";

// Words of all: x, y, points, other points (scratch); points of a signal, signals; n, inner,
// elements of the input's axis, of the output's, parts of an element of x, of y, whether it is the
// inverse, whether x is half a spectrum, elements that are read; whether lengths differ: then one
// more signal is the chirp that the others are convolved with. Passes have words of their own.
constexpr const char* kFastText = R"(
struct og_complex { double re, im; };
OG_FUNCTION og_complex og_times(og_complex a, og_complex b) {
  return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}
// exp(i pi t t / n), conjugate for the forward transform.
OG_FUNCTION og_complex og_chirp(og_i64 t, og_i64 n, bool is_inverse) {
  const double angle = 3.141592653589793 * ((double)(t * t % (2 * n)) / (double)n);
  return {cos(angle), is_inverse ? sin(angle) : -sin(angle)};
}

OG_KERNEL(og_begin, 16) {
  og_complex* const points = a.pointer<og_complex>(2);
  const og_i64 m = a.integer(4), n = a.integer(6), inner = a.integer(7), parts = a.integer(10);
  const bool is_inverse = a.integer(12) != 0, is_half = a.integer(13) != 0;
  const bool has_chirp = a.integer(15) != 0;
  const og_i64 signals = a.integer(5), given = a.integer(14), end = is_half ? n : given;
  for (og_i64 i = og_first(); i < (signals + (has_chirp ? 1 : 0)) * m; i += og_stride()) {
    const og_i64 signal = i / m, t = i % m;
    og_complex value = {0, 0};
    if (signal == signals) {
      const og_i64 distance = t < n ? t : m - t < n ? m - t : -1;
      if (distance >= 0) value = og_chirp(distance, n, !is_inverse);
    } else if (t < end) {
      const bool is_mirrored = is_half && t > n / 2;
      const og_i64 source = is_mirrored ? n - t : t;
      if (source < given) {
        const og_t* const at =
            a.pointer<const og_t>(0) +
            ((signal / inner * a.integer(8) + source) * inner + signal % inner) * parts;
        value.re = (double)at[0];
        value.im = parts == 1 ? 0 : is_mirrored ? -(double)at[1] : (double)at[1];
        if (has_chirp) value = og_times(value, og_chirp(t, n, is_inverse));
      }
    }
    points[i] = value;
  }
}

// Words: from, to; pairs of all signals, points of a signal, distance of the results; inverse.
OG_KERNEL(og_pass, 6) {
  const og_complex* const from = a.pointer<const og_complex>(0);
  og_complex* const to = a.pointer<og_complex>(1);
  const og_i64 half = a.integer(3) / 2, p = a.integer(4);
  for (og_i64 i = og_first(); i < a.integer(2); i += og_stride()) {
    const og_i64 begin = i / half * 2 * half, at = i % half, k = at % p;
    const double angle = 3.141592653589793 * ((double)k / (double)p);
    const og_complex root = {cos(angle), a.integer(5) != 0 ? sin(angle) : -sin(angle)};
    const og_complex first = from[begin + at], second = og_times(from[begin + at + half], root);
    const og_i64 result = begin + 2 * (at - k) + k;
    to[result] = {first.re + second.re, first.im + second.im};
    to[result + p] = {first.re - second.re, first.im - second.im};
  }
}

// Words: points, points of a signal, signals.
OG_KERNEL(og_convolve, 3) {
  og_complex* const points = a.pointer<og_complex>(0);
  const og_i64 m = a.integer(1), all = a.integer(2) * m;
  for (og_i64 i = og_first(); i < all; i += og_stride()) {
    points[i] = og_times(points[i], points[all + i % m]);
  }
}

OG_KERNEL(og_end, 16) {
  const og_complex* const points = a.pointer<const og_complex>(2);
  const og_i64 m = a.integer(4), n = a.integer(6), inner = a.integer(7), length = a.integer(9);
  const bool is_inverse = a.integer(12) != 0;
  const double factor =
      (a.integer(15) != 0 ? 1 / (double)m : 1) * (is_inverse ? 1 / (double)n : 1);
  for (og_i64 i = og_first(); i < a.integer(5) * length; i += og_stride()) {
    const og_i64 k = i / inner % length;
    og_complex value = points[(i / inner / length * inner + i % inner) * m + k];
    if (a.integer(15) != 0) value = og_times(value, og_chirp(k, n, is_inverse));
    og_t* const y = a.pointer<og_t>(1) + i * a.integer(11);
    y[0] = (og_t)(value.re * factor);
    if (a.integer(11) == 2) y[1] = (og_t)(value.im * factor);
  }
}
)";

/// Sizes of a transform.
struct Transform {
  std::int64_t n = 1, length_in = 1, length_out = 1, read = 1;
  std::int64_t outer = 1, inner = 1;
  std::int64_t parts_in = 1, parts_out = 1;
  bool is_inverse = false, is_half = false;
};

KernelOffer offer_fast(const KernelRequest& request, const Transform& f) {
  const bool has_chirp = !std::has_single_bit(static_cast<std::uint64_t>(f.n));
  const auto m = static_cast<std::int64_t>(
      std::bit_ceil(static_cast<std::uint64_t>(has_chirp ? 2 * f.n - 1 : f.n)));
  const std::int64_t signals = f.outer * f.inner;
  const std::int64_t rows = signals + (has_chirp ? 1 : 0);
  if (f.n > kMostPoints || rows > kMostPoints / m) {
    return KernelOffer::decline("too many points");
  }
  const auto result = static_cast<std::int64_t>(request.inputs.size());
  const std::int64_t bytes = rows * m * std::int64_t{16};
  Word from = Word::argument(result + 1);
  Word to = Word::argument(result + 1, bytes);
  const std::string text = typedefs({{"og_t", text_type(request.inputs[0].dtype)}}) + kFastText;
  std::vector<TextKernel> launches;
  const auto add = [&](const char* name, std::int64_t elements, std::vector<Word> words) {
    launches.push_back(text_kernel_over(request, elements, text, name, std::move(words)));
  };
  const auto all_words = [&] {
    std::vector<Word> words{Word::argument(0), Word::argument(result), from, to};
    add_integers(words,
                 {m, signals, f.n, f.inner, f.length_in, f.length_out, f.parts_in, f.parts_out,
                  f.is_inverse ? 1 : 0, f.is_half ? 1 : 0, f.read, has_chirp ? 1 : 0});
    return words;
  };
  const auto transform = [&](std::int64_t count, bool is_inverse) {
    for (std::int64_t p = 1; p < m; p *= 2) {
      std::vector<Word> words{from, to};
      add_integers(words, {count * m / 2, m, p, is_inverse ? 1 : 0});
      add("og_pass", count * m / 2, std::move(words));
      std::swap(from, to);
    }
  };
  add("og_begin", rows * m, all_words());
  transform(rows, f.is_inverse && !has_chirp);
  if (has_chirp) {
    add("og_convolve", signals * m, {from, Word::of(m), Word::of(signals)});
    transform(signals, true);
  }
  add("og_end", signals * f.length_out, all_words());
  KernelOffer offer;
  offer.kernel = prepared(std::move(launches), fmt::format("passes over {} points", m));
  offer.kernel.scratch_bytes = 2 * bytes;
  return offer;
}

KernelOffer offer_dft(const KernelRequest& request) {
  const Dims& x = request.inputs[0].dims;
  const Dims& y = request.outputs[0].dims;
  const DataType dtype = request.inputs[0].dtype;
  if (dtype != DataType::kFloat32 && dtype != DataType::kFloat64) {
    return decline_dtype(request, dtype);
  }
  const std::size_t rank = x.rank();
  const auto axis_given = planned_ints(request, 2);
  const auto length_given = planned_ints(request, 1);
  if (rank < 2 || (request.has_input(2) && !axis_given) ||
      (request.has_input(1) && !length_given)) {
    return KernelOffer::decline("the length or axis is not known before the step runs");
  }
  const auto axis = static_cast<std::size_t>(
      normalize_axis(axis_given && !axis_given->empty() ? axis_given->front() : -2, rank));
  const bool is_inverse = request.node.int_attribute("inverse") != 0;
  const bool is_onesided = request.node.int_attribute("onesided") != 0;
  const bool is_half = is_inverse && is_onesided;
  if (axis == rank - 1 || x[rank - 1] < 1 || x[rank - 1] > 2) {
    return KernelOffer::decline("no signal along this axis");
  }
  std::int64_t n = is_half ? 2 * (x[axis] - 1) : x[axis];
  if (length_given && !length_given->empty()) n = length_given->front();
  if (n < 1) return KernelOffer::decline("no elements");
  const std::int64_t length_out = is_onesided && !is_half ? n / 2 + 1 : n;
  if (y.rank() != rank || y[axis] != length_out) {
    return KernelOffer::decline("a transform of another length");
  }
  const std::int64_t inner = std::max<std::int64_t>(x.product(axis + 1, rank - 1), 1);
  const std::int64_t count = y.num_elements() / y[rank - 1];
  const std::int64_t read = std::min(x[axis], is_half ? n / 2 + 1 : n);
  if (n > kLongest && count > 0) {
    return offer_fast(request, {.n = n,
                                .length_in = x[axis],
                                .length_out = length_out,
                                .read = read,
                                .outer = x.product(0, axis),
                                .inner = inner,
                                .parts_in = x[rank - 1],
                                .parts_out = y[rank - 1],
                                .is_inverse = is_inverse,
                                .is_half = is_half});
  }
  const auto result = static_cast<std::int64_t>(request.inputs.size());
  std::vector<Word> words{Word::argument(0), Word::argument(result), Word::argument(result + 1)};
  add_integers(words, {count, n, inner, x[axis], length_out, x[rank - 1], y[rank - 1],
                       is_inverse ? 1 : 0, is_half ? 1 : 0, read});
  const std::string text = typedefs({{"og_t", text_type(dtype)}}) + kText;
  std::vector<TextKernel> launches{text_kernel_over(request, n, text, "og_roots", words)};
  launches.push_back(text_kernel_over(request, count, text, "og_dft", std::move(words)));
  KernelOffer offer;
  offer.kernel = prepared(std::move(launches), fmt::format("sums of {}", n));
  offer.kernel.scratch_bytes = n * 16;
  return offer;
}

}  // namespace

void register_dft_cuda(opdef::KernelRegistry& registry) { registry.add("", "DFT", 0, offer_dft); }

}  // namespace onnxgrad::ops::dft_cuda
