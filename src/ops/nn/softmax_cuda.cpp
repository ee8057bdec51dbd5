#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "ops/block_text_cuda.h"
#include "ops/kernel_support.h"
#include "ops/kernel_support_cuda.h"

// Softmax, LogSoftmax and Hardmax. A tensor is [outer, size, inner] around the axis: outer * inner
// columns of `size` elements, `inner` apart.

namespace onnxgrad::ops::softmax_cuda {
namespace {

using device::cuda::Word;

constexpr const char* kColumns = R"(
OG_KERNEL(og_main, 5) {
  const og_t* const from = a.pointer<og_t>(0);
  og_t* const to = a.pointer<og_t>(1);
  const og_i64 columns = a.integer(2), size = a.integer(3), inner = a.integer(4);
  for (og_i64 first = (og_i64)blockIdx.x * blockDim.x; first < columns; first += og_columns()) {
    const og_i64 column = first + threadIdx.x;
    const og_i64 at = column / inner * size * inner + column % inner;
    const og_i64 end = column < columns ? size : 0;
    og_column(from + at, to + at, end, inner);
  }
}
)";

constexpr const char* kMoments = R"(
OG_FUNCTION og_t og_most(const og_t* x, og_i64 end, og_i64 inner) {
  og_t most = -(og_t)og_infinity();
  for (og_i64 i = threadIdx.y; i < end; i += blockDim.y) most = og_max(most, x[i * inner]);
  return og_fold_rows<og_largest>(most);
}

OG_FUNCTION double og_total(const og_t* x, og_i64 end, og_i64 inner, og_t most) {
  double sum = 0;
  for (og_i64 i = threadIdx.y; i < end; i += blockDim.y) sum += og_exp(x[i * inner] - most);
  return og_fold_rows<og_sum>(sum);
}
)";

constexpr const char* kSoftmax = R"(
OG_FUNCTION void og_column(const og_t* x, og_t* y, og_i64 end, og_i64 inner) {
  const og_t most = og_most(x, end, inner);
  const og_t sum = (og_t)og_total(x, end, inner, most);
  for (og_i64 i = threadIdx.y; i < end; i += blockDim.y) {
    y[i * inner] = og_exp(x[i * inner] - most) / sum;
  }
}
)";

constexpr const char* kLogSoftmax = R"(
OG_FUNCTION void og_column(const og_t* x, og_t* y, og_i64 end, og_i64 inner) {
  const og_t most = og_most(x, end, inner);
  const og_t log_sum = most + (og_t)log(og_total(x, end, inner, most));
  for (og_i64 i = threadIdx.y; i < end; i += blockDim.y) y[i * inner] = x[i * inner] - log_sum;
}
)";

// The first of the largest elements; one that is not a number is none, unless it comes first.
constexpr const char* kHardmax = R"(
OG_FUNCTION void og_column(const og_t* x, og_t* y, og_i64 end, og_i64 inner) {
  og_i64 best = 0;
  if (threadIdx.y == 0) {
    for (og_i64 i = 1; i < end; ++i) {
      if (x[i * inner] > x[best * inner]) best = i;
    }
  }
  best = og_fold_rows<og_sum>(best);
  for (og_i64 i = threadIdx.y; i < end; i += blockDim.y) y[i * inner] = i == best ? 1 : 0;
}
)";

KernelOffer offer_columns(const KernelRequest& request, const std::string& text) {
  const DataType dtype = request.inputs[0].dtype;
  if (dtype != DataType::kFloat32 && dtype != DataType::kFloat64) {
    return decline_dtype(request, dtype);
  }
  const Dims& dims = request.inputs[0].dims;
  const auto axis =
      static_cast<std::size_t>(normalize_axis(request.node.int_attribute("axis"), dims.rank()));
  const std::int64_t inner = dims.product(axis + 1, dims.rank());
  const Columns columns{
      .count = dims.product(0, axis) * inner, .length = dims[axis], .are_adjacent = inner > 1};
  std::vector<Word> words = argument_words(0, 2);
  add_integers(words, {columns.count, columns.length, std::max<std::int64_t>(inner, 1)});
  KernelOffer offer;
  offer.kernel = prepared(
      column_kernel(request, columns, typedefs({{"og_t", text_type(dtype)}}) + text + kColumns,
                    "og_main", std::move(words)),
      "columns of " + std::to_string(columns.length));
  offer.kernel.in_place = {{0, 0}};
  return offer;
}

KernelOffer offer_softmax(const KernelRequest& request) {
  return offer_columns(request, std::string(kMoments) + kSoftmax);
}

KernelOffer offer_log_softmax(const KernelRequest& request) {
  return offer_columns(request, std::string(kMoments) + kLogSoftmax);
}

KernelOffer offer_hardmax(const KernelRequest& request) { return offer_columns(request, kHardmax); }

}  // namespace

void register_softmax_cuda(opdef::KernelRegistry& registry) {
  registry.add("", "Softmax", 0, offer_softmax);
  registry.add("", "LogSoftmax", 0, offer_log_softmax);
  registry.add("", "Hardmax", 0, offer_hardmax);
}

}  // namespace onnxgrad::ops::softmax_cuda
