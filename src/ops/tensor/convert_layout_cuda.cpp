#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/rounding.h"
#include "ir/builder.h"
#include "opdef/convert_layout.h"
#include "opdef/layout_order.h"
#include "ops/index_walk_cuda.h"

// Conversions between plain order and channels last: each image is a matrix of channels and pixels
// that is transposed, in tiles that go through shared memory.

namespace onnxgrad::ops::convert_layout_cuda {
namespace {

using device::cuda::Word;

constexpr std::int64_t kTile = 32;
constexpr std::int64_t kMostGrid = 65535;

// Words: x, y; matrices, rows, columns of x. Block: 32 x 8.
constexpr const char* kText = R"(
OG_KERNEL(og_transpose, 5) {
  OG_SHARED og_T tile[32][33];
  const og_i64 rows = a.integer(3), columns = a.integer(4);
  for (og_i64 matrix = blockIdx.z; matrix < a.integer(2); matrix += gridDim.z) {
    const og_T* const x = a.pointer<const og_T>(0) + matrix * rows * columns;
    og_T* const y = a.pointer<og_T>(1) + matrix * rows * columns;
    for (og_i64 top = (og_i64)blockIdx.y * 32; top < rows; top += (og_i64)gridDim.y * 32) {
      const og_i64 left = (og_i64)blockIdx.x * 32;
      for (int i = threadIdx.y; i < 32; i += 8) {
        if (top + i < rows && left + threadIdx.x < columns) {
          tile[i][threadIdx.x] = x[(top + i) * columns + left + threadIdx.x];
        }
      }
      __syncthreads();
      for (int i = threadIdx.y; i < 32; i += 8) {
        if (left + i < columns && top + threadIdx.x < rows) {
          y[(left + i) * rows + top + threadIdx.x] = tile[threadIdx.x][i];
        }
      }
      __syncthreads();
    }
  }
}
)";

KernelOffer offer_convert(const KernelRequest& request) {
  const auto op = opdef::ConvertLayout::read(request.node);
  const TensorDesc& x = request.inputs[0];
  const std::int64_t bytes = element_bytes(x.dtype);
  if (bytes == 0 || bytes > 8) return decline_dtype(request, x.dtype);
  const auto is_known = [](opdef::Layout layout) {
    return layout.is_plain() || layout.kind == opdef::Layout::Kind::kChannelsLast;
  };
  if (!is_known(op.from) || !is_known(op.to) || op.from == op.to || x.dims.rank() < 2) {
    return KernelOffer::decline("plain order and channels last only");
  }
  std::int64_t rows = x.dims[1];
  std::int64_t columns = x.dims.product(2, x.dims.rank());
  if (!op.from.is_plain()) std::swap(rows, columns);
  const std::int64_t images = x.dims[0];
  auto kernel = text_kernel(
      request, move_text(bytes) + kText, "og_transpose",
      {Word::argument(0), Word::argument(1), Word::of(images), Word::of(rows), Word::of(columns)});
  kernel.block = {kTile, 8, 1};
  const auto grid = [](std::int64_t blocks) {
    return static_cast<unsigned>(std::min(blocks, kMostGrid));
  };
  kernel.grid = {static_cast<unsigned>(base::ceil_div(columns, kTile)),
                 grid(base::ceil_div(rows, kTile)), grid(images)};
  KernelOffer offer;
  offer.kernel =
      prepared(std::move(kernel), fmt::format("{} to {}", to_string(op.from), to_string(op.to)));
  offer.kernel.input_layouts = {op.from};
  offer.kernel.output_layouts = {op.to};
  return offer;
}

}  // namespace

void register_convert_layout_cuda(opdef::KernelRegistry& registry) {
  registry.add(ir::kFusedDomain, opdef::kConvertLayout, 0, offer_convert);
}

}  // namespace onnxgrad::ops::convert_layout_cuda
