#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "ops/block_text_cuda.h"
#include "ops/kernel_support.h"
#include "ops/kernel_support_cuda.h"

// ArgMax and ArgMin. The data is [outer, length, inner]: outer * inner columns, whose threads find
// the best element of their own first. One that is not a number is never the best, unless it comes
// first, as on the CPU.

namespace onnxgrad::ops::arg_extremum_cuda {
namespace {

using device::cuda::Word;

// Words: x, y, columns, length, inner, whether the largest is wanted, whether the last one is.
constexpr const char* kText = R"(
struct og_best { og_t value; og_i64 at; };  // at: -1 if there is none

OG_FUNCTION og_best og_better(og_best a, og_best b, bool is_max, bool takes_last) {
  if (b.at < 0) return a;
  if (a.at < 0) return b;
  if (a.value == b.value) return (b.at > a.at) == takes_last ? b : a;
  return (is_max ? b.value > a.value : b.value < a.value) ? b : a;
}

OG_KERNEL(og_main, 7) {
  OG_SHARED og_best part[256];
  const og_i64 columns = a.integer(2), length = a.integer(3), inner = a.integer(4);
  const bool is_max = a.integer(5) != 0, takes_last = a.integer(6) != 0;
  const unsigned at = threadIdx.y * blockDim.x + threadIdx.x;
  for (og_i64 first = (og_i64)blockIdx.x * blockDim.x; first < columns; first += og_columns()) {
    const og_i64 column = first + threadIdx.x;
    const og_t* const x = a.pointer<og_t>(0) + column / inner * length * inner + column % inner;
    const og_i64 end = column < columns ? length : 0;
    og_best best = {0, -1};
    for (og_i64 i = threadIdx.y; i < end; i += blockDim.y) {
      const og_t value = x[i * inner];
      if (value == value) best = og_better(best, {value, i}, is_max, takes_last);
    }
    __syncthreads();
    part[at] = best;
    for (unsigned n = blockDim.y / 2; n > 0; n /= 2) {
      __syncthreads();
      if (threadIdx.y < n) {
        part[at] = og_better(part[at], part[at + n * blockDim.x], is_max, takes_last);
      }
    }
    if (threadIdx.y != 0 || column >= columns) continue;
    const bool is_none = x[0] != x[0] || part[at].at < 0;
    a.pointer<og_i64>(1)[column] = is_none ? 0 : part[at].at;
  }
}
)";

KernelOffer offer_arg(const KernelRequest& request, bool is_max) {
  const DataType dtype = request.inputs[0].dtype;
  const std::string_view type = text_type(dtype);
  if (type.empty() || is_f16(dtype) || dtype == DataType::kBool) {
    return decline_dtype(request, dtype);
  }
  const Dims& dims = request.inputs[0].dims;
  const auto axis =
      static_cast<std::size_t>(normalize_axis(request.node.int_attribute("axis"), dims.rank()));
  const std::int64_t inner = dims.product(axis + 1, dims.rank());
  const Columns columns{
      .count = dims.product(0, axis) * inner, .length = dims[axis], .are_adjacent = inner > 1};
  if (columns.length == 0) return KernelOffer::decline("an empty set has no largest element");
  std::vector<Word> words = argument_words(0, 2);
  add_integers(words, {columns.count, columns.length, std::max<std::int64_t>(inner, 1), is_max,
                       request.node.int_attribute("select_last_index") != 0});
  KernelOffer offer;
  offer.kernel = prepared(column_kernel(request, columns, typedefs({{"og_t", type}}) + kText,
                                        "og_main", std::move(words)),
                          "columns of " + std::to_string(columns.length));
  return offer;
}

KernelOffer offer_max(const KernelRequest& request) { return offer_arg(request, true); }
KernelOffer offer_min(const KernelRequest& request) { return offer_arg(request, false); }

}  // namespace

void register_arg_extremum_cuda(opdef::KernelRegistry& registry) {
  registry.add("", "ArgMax", 0, offer_max);
  registry.add("", "ArgMin", 0, offer_min);
}

}  // namespace onnxgrad::ops::arg_extremum_cuda
