#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "ops/block_text_cuda.h"
#include "ops/kernel_support.h"
#include "ops/kernel_support_cuda.h"

// DFT of signals [outer, length, inner, 1 or 2] along one axis, by its definition: a thread for
// each frequency of each signal, in double precision, with a table of roots of unity.

namespace onnxgrad::ops::dft_cuda {
namespace {

using device::cuda::TextKernel;
using device::cuda::Word;

constexpr std::int64_t kLongest = 1 << 12;  // longer ones take the CPU's fast transform

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
  if (n < 1 || n > kLongest) return KernelOffer::decline("a fast transform is faster");
  const std::int64_t length_out = is_onesided && !is_half ? n / 2 + 1 : n;
  if (y.rank() != rank || y[axis] != length_out) {
    return KernelOffer::decline("a transform of another length");
  }
  const std::int64_t inner = x.product(axis + 1, rank - 1);
  const std::int64_t count = x.product(0, axis) * inner * length_out;
  const auto result = static_cast<std::int64_t>(request.inputs.size());
  std::vector<Word> words{Word::argument(0), Word::argument(result), Word::argument(result + 1)};
  add_integers(words, {count, n, std::max<std::int64_t>(inner, 1), x[axis], length_out, x[rank - 1],
                       y[rank - 1], is_inverse ? 1 : 0, is_half ? 1 : 0,
                       std::min(x[axis], is_half ? n / 2 + 1 : n)});
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
