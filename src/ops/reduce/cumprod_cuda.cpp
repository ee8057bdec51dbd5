#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ir/builder.h"
#include "ops/block_text_cuda.h"
#include "ops/kernel_support.h"
#include "ops/kernel_support_cuda.h"

// CumProd and its gradient; the formulas are in cumprod.cpp. The data is [outer, length, inner]: a
// thread for each column, so that products are those of the CPU.

namespace onnxgrad::ops::cumprod_cuda {
namespace {

using device::cuda::Word;

// Words: x, y, dy, columns, length, inner, whether it is exclusive, whether it is reverse.
constexpr const char* kText = R"(
OG_KERNEL(og_products, 8) {
  const og_i64 length = a.integer(4), inner = a.integer(5);
  const og_i64 step = a.integer(7) != 0 ? -inner : inner;
  for (og_i64 column = og_first(); column < a.integer(3); column += og_stride()) {
    const og_i64 start = column / inner * length * inner + column % inner +
                         (step < 0 ? (length - 1) * inner : 0);
    og_t product = 1;
    for (og_i64 k = 0; k < length; ++k) {
      const og_t before = product;
      product = product * a.pointer<const og_t>(0)[start + k * step];
      a.pointer<og_t>(1)[start + k * step] = a.integer(6) != 0 ? before : product;
    }
  }
}

// The products before each place, then sums from the other end.
OG_KERNEL(og_products_back, 8) {
  const og_i64 length = a.integer(4), inner = a.integer(5);
  const bool is_exclusive = a.integer(6) != 0;
  const og_i64 step = a.integer(7) != 0 ? -inner : inner;
  for (og_i64 column = og_first(); column < a.integer(3); column += og_stride()) {
    const og_i64 start = column / inner * length * inner + column % inner +
                         (step < 0 ? (length - 1) * inner : 0);
    const og_t* const x = a.pointer<const og_t>(0) + start;
    const og_t* const dy = a.pointer<const og_t>(2) + start;
    og_t* const dx = a.pointer<og_t>(1) + start;
    og_t product = 1;
    for (og_i64 k = 0; k < length; ++k) {
      dx[k * step] = product;
      product = product * x[k * step];
    }
    og_t sum = 0;
    for (og_i64 k = length - 1; k >= 0; --k) {
      if (k + 1 == length) {
        sum = is_exclusive ? (og_t)0 : dy[k * step];
      } else {
        sum = dy[(is_exclusive ? k + 1 : k) * step] + x[(k + 1) * step] * sum;
      }
      dx[k * step] = dx[k * step] * sum;
    }
  }
}
)";

KernelOffer offer(const KernelRequest& request, std::size_t x, const char* name,
                  const std::string& type) {
  const Dims& dims = request.inputs[x].dims;
  const auto planned = planned_ints(request, x + 1);
  if (!planned || planned->size() != 1) {
    return KernelOffer::decline("the axis is not known before the step runs");
  }
  const auto axis = static_cast<std::size_t>(normalize_axis(planned->front(), dims.rank()));
  const std::int64_t inner = dims.product(axis + 1, dims.rank());
  const std::int64_t columns = dims.product(0, axis) * inner;
  std::vector<Word> words{Word::argument(static_cast<std::int64_t>(x)),
                          Word::argument(static_cast<std::int64_t>(x) + 2),
                          optional_argument(x == 0 ? -1 : 0)};
  add_integers(words, {columns, dims[axis], std::max<std::int64_t>(inner, 1),
                       request.node.int_attribute("exclusive") != 0,
                       request.node.int_attribute("reverse") != 0});
  KernelOffer made;
  made.kernel = prepared(text_kernel_over(request, columns, typedefs({{"og_t", type}}) + kText,
                                          name, std::move(words)),
                         "columns of " + std::to_string(dims[axis]));
  return made;
}

KernelOffer offer_cumprod(const KernelRequest& request) {
  switch (request.inputs[0].dtype) {
    case DataType::kFloat32:
    case DataType::kFloat64:
      return offer(request, 0, "og_products", std::string(text_type(request.inputs[0].dtype)));
    case DataType::kInt32:  // integers wrap around
    case DataType::kUint32:
      return offer(request, 0, "og_products", "og_u32");
    case DataType::kInt64:
    case DataType::kUint64:
      return offer(request, 0, "og_products", "og_u64");
    default:
      return decline_dtype(request, request.inputs[0].dtype);
  }
}

KernelOffer offer_grad(const KernelRequest& request) {
  const DataType dtype = request.inputs[1].dtype;
  if (dtype != DataType::kFloat32 && dtype != DataType::kFloat64) {
    return decline_dtype(request, dtype);
  }
  return offer(request, 1, "og_products_back", std::string(text_type(dtype)));
}

}  // namespace

void register_cumprod_cuda(opdef::KernelRegistry& registry) {
  registry.add("", "CumProd", 0, offer_cumprod);
  registry.add(ir::kFunctionDomain, "CumProdGrad", 0, offer_grad);
}

}  // namespace onnxgrad::ops::cumprod_cuda
