#include <fmt/format.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ir/builder.h"
#include "opdef/expr_text.h"
#include "opdef/fused.h"
#include "ops/kernel_support_cuda.h"

// Products of matrices that are too small for cuBLASLt, whose call takes five microseconds.

namespace onnxgrad::ops::fused_gemm_cuda {
namespace {

using device::cuda::Word;

// A block computes a tile of 16 x 16 elements, from tiles of the factors in shared memory. Sums are
// in the order of k, in double for float: the result has no more error than the CPU's.
constexpr const char* kText = R"(
OG_KERNEL(og_main, 12) {
  OG_SHARED og_t left[16][17];
  OG_SHARED og_t right[16][17];
  const og_t* const x = a.pointer<og_t>(0);
  const og_t* const y = a.pointer<og_t>(1);
  og_t* const z = a.pointer<og_t>(2);
  const og_i64 m = a.integer(3), n = a.integer(4), k = a.integer(5);
  const og_i64 x_row = a.integer(6), x_column = a.integer(7);
  const og_i64 y_row = a.integer(8), y_column = a.integer(9);
  const int i = threadIdx.y, j = threadIdx.x;
  const og_i64 row = (og_i64)blockIdx.y * 16 + i, column = (og_i64)blockIdx.x * 16 + j;
  double sum = 0;
  for (og_i64 first = 0; first < k; first += 16) {
    left[i][j] = row < m && first + j < k ? x[row * x_row + (first + j) * x_column] : (og_t)0;
    right[i][j] =
        first + i < k && column < n ? y[(first + i) * y_row + column * y_column] : (og_t)0;
    __syncthreads();
    for (int p = 0; p < 16; ++p) sum += (double)left[i][p] * (double)right[p][j];
    __syncthreads();
  }
  if (row < m && column < n) z[row * n + column] = (og_t)sum;
}
)";

struct Shape {
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
};

std::optional<Shape> shape_of(const opdef::KernelRequest& request, const opdef::Gemm& op) {
  const Dims& a = request.inputs[0].dims;
  const Dims& b = request.inputs[1].dims;
  if (a.rank() < 2 || b.rank() != 2) return std::nullopt;
  if (op.transpose_a && a.rank() != 2) return std::nullopt;
  const std::int64_t last = a[a.rank() - 1];
  std::int64_t rows = 1;
  for (std::size_t i = 0; i + 1 < a.rank(); ++i) rows *= a[i];
  const Shape shape{.m = op.transpose_a ? last : rows,
                    .n = op.transpose_b ? b[0] : b[1],
                    .k = op.transpose_a ? rows : last};
  if ((op.transpose_b ? b[1] : b[0]) != shape.k) return std::nullopt;
  return shape;
}

opdef::KernelOffer offer_gemm(const opdef::KernelRequest& request) {
  const auto op = opdef::Gemm::read(request.node);
  const DataType dtype = request.inputs[0].dtype;
  if (dtype != DataType::kFloat32 && dtype != DataType::kFloat64) {
    return opdef::KernelOffer::decline("float32 and float64 only");
  }
  if (op.epilogue || op.sums_columns) return opdef::KernelOffer::decline("plain products only");
  const auto shape = shape_of(request, op);
  if (!shape) return opdef::KernelOffer::decline("matrices only");
  const std::int64_t a_columns = op.transpose_a ? shape->m : shape->k;
  const std::int64_t b_columns = op.transpose_b ? shape->k : shape->n;
  std::vector<Word> words{Word::argument(0), Word::argument(1), Word::argument(2)};
  for (const std::int64_t number : {shape->m, shape->n, shape->k, op.transpose_a ? 1 : a_columns,
                                    op.transpose_a ? a_columns : 1, op.transpose_b ? 1 : b_columns,
                                    op.transpose_b ? b_columns : 1}) {
    words.push_back(Word::of(number));
  }
  words.resize(12, Word::of(std::int64_t{0}));
  const std::string text =
      fmt::format("typedef {} og_t;\n{}", dtype == DataType::kFloat32 ? "float" : "double", kText);
  auto kernel = text_kernel(request, text, "og_main", std::move(words));
  kernel.block = {16, 16, 1};
  kernel.grid = {static_cast<unsigned>((shape->n + 15) / 16),
                 static_cast<unsigned>((shape->m + 15) / 16), 1};
  const double flops = 2.0 * static_cast<double>(shape->m) * static_cast<double>(shape->n) *
                       static_cast<double>(shape->k);
  opdef::KernelOffer offer;
  offer.kernel = prepared(std::move(kernel),
                          fmt::format("tiles {}x{}x{}", shape->m, shape->k, shape->n), flops);
  return offer;
}

}  // namespace

void register_fused_gemm_cuda(opdef::KernelRegistry& registry) {
  registry.add(ir::kFusedDomain, opdef::kGemm, 0, offer_gemm);
}

}  // namespace onnxgrad::ops::fused_gemm_cuda
