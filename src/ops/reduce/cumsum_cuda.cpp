#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "ops/block_text_cuda.h"
#include "ops/kernel_support.h"
#include "ops/kernel_support_cuda.h"

// CumSum. The data is [outer, length, inner]: outer * inner columns. Each thread adds up a stretch
// of its column; then it adds those before its own, and writes the stretch. Floating-point numbers
// are added up in double.

namespace onnxgrad::ops::cumsum_cuda {
namespace {

using device::cuda::Word;

// Words: x, y, columns, length, inner, whether it is exclusive, whether it is reverse.
constexpr const char* kText = R"(
OG_KERNEL(og_main, 7) {
  OG_SHARED og_acc part[256];
  const og_i64 columns = a.integer(2), length = a.integer(3), inner = a.integer(4);
  const bool is_exclusive = a.integer(5) != 0, is_reverse = a.integer(6) != 0;
  for (og_i64 first = (og_i64)blockIdx.x * blockDim.x; first < columns; first += og_columns()) {
    const og_i64 column = first + threadIdx.x;
    const og_i64 start = column / inner * length * inner + column % inner +
                         (is_reverse ? (length - 1) * inner : 0);
    const og_i64 step = is_reverse ? -inner : inner;
    const og_t* const x = a.pointer<og_t>(0) + start;
    og_t* const y = a.pointer<og_t>(1) + start;
    const og_i64 size = column < columns ? length : 0;
    const og_i64 begin = size * threadIdx.y / blockDim.y;
    const og_i64 end = size * (threadIdx.y + 1) / blockDim.y;
    og_acc total = 0;
    for (og_i64 i = begin; i < end; ++i) total += (og_acc)x[i * step];
    __syncthreads();
    part[threadIdx.y * blockDim.x + threadIdx.x] = total;
    __syncthreads();
    og_acc sum = 0;
    for (unsigned k = 0; k < threadIdx.y; ++k) sum += part[k * blockDim.x + threadIdx.x];
    for (og_i64 i = begin; i < end; ++i) {
      const og_acc next = sum + (og_acc)x[i * step];
      y[i * step] = (og_t)(is_exclusive ? sum : next);
      sum = next;
    }
  }
}
)";

KernelOffer offer_cumsum(const KernelRequest& request) {
  const DataType dtype = request.inputs[0].dtype;
  const bool is_floating = dtype == DataType::kFloat32 || dtype == DataType::kFloat64;
  const bool is_integer = dtype == DataType::kInt32 || dtype == DataType::kInt64 ||
                          dtype == DataType::kUint32 || dtype == DataType::kUint64;
  if (!is_floating && !is_integer) return decline_dtype(request, dtype);
  const Dims& dims = request.inputs[0].dims;
  const auto planned = planned_ints(request, 1);
  if (!planned || planned->size() != 1) {
    return KernelOffer::decline("the axis is not known before the step runs");
  }
  const auto axis = static_cast<std::size_t>(normalize_axis(planned->front(), dims.rank()));
  const std::int64_t inner = dims.product(axis + 1, dims.rank());
  const Columns columns{
      .count = dims.product(0, axis) * inner, .length = dims[axis], .are_adjacent = inner > 1};
  std::vector<Word> words{Word::argument(0), Word::argument(2)};
  add_integers(words, {columns.count, columns.length, std::max<std::int64_t>(inner, 1),
                       request.node.int_attribute("exclusive") != 0,
                       request.node.int_attribute("reverse") != 0});
  const std::string text =
      typedefs({{"og_t", text_type(dtype)}, {"og_acc", is_floating ? "double" : "og_u64"}}) + kText;
  KernelOffer offer;
  offer.kernel = prepared(column_kernel(request, columns, text, "og_main", std::move(words)),
                          "columns of " + std::to_string(columns.length));
  return offer;
}

}  // namespace

void register_cumsum_cuda(opdef::KernelRegistry& registry) {
  registry.add("", "CumSum", 0, offer_cumsum);
}

}  // namespace onnxgrad::ops::cumsum_cuda
