#include "opdef/scatter_update.h"

#include <fmt/format.h>

#include "ir/builder.h"
#include "ops/index_walk_cuda.h"
#include "ops/tensor/sorted_scatter_cuda.h"

// onnxgrad.fused.ScatterDescent: the rows of a step are sorted by the row of the weight; others are
// not read. An update that changes all rows gains nothing here and is left to a dense gradient.

namespace onnxgrad::ops::scatter_update_cuda {
namespace {

using device::cuda::TextKernel;
using device::cuda::Word;

// Words: indices, where they are refused, rows, columns.
constexpr const char* kRows = R"(
template <class W>
OG_FUNCTION og_i64 og_target(const W& a, int w, og_i64 t) {
  const og_i64 row = og_checked(a.template pointer<const og_i64>(w)[t], a.integer(w + 3),
                                a.template pointer<og_u64>(w + 1), a.integer(w + 2), t);
  return row < 0 ? -1 : row * a.integer(w + 4);
}
OG_FUNCTION og_T og_reduce(og_T a, og_T b) { return a + b; }
template <class W>
OG_FUNCTION og_T og_finish(const W& a, int w, og_T old, og_T sum) {
  return old - *a.template pointer<const og_T>(w + 2) * sum;
}
)";

KernelOffer offer_descent(const KernelRequest& request) {
  const TensorDesc& w = request.outputs[0];
  if (w.dtype != DataType::kFloat32 && w.dtype != DataType::kFloat64) {
    return decline_dtype(request, w.dtype);
  }
  const std::int64_t places = request.inputs[0].dims.num_elements();
  const std::int64_t columns = w.dims.rank() == 0 ? 0 : w.dims.product(1, w.dims.rank());
  if (columns == 0 || request.inputs[1].dims.num_elements() != places * columns ||
      request.inputs[1].dtype != w.dtype || request.inputs[3].dtype != w.dtype) {
    return KernelOffer::decline("shapes or types do not match");
  }
  const Refusal checked = checked_indices(request, 0, {w.dims[0]});
  std::vector<Word> words{Word::argument(0)};
  checked.append(words);
  words.insert(words.end(), {Word::of(w.dims[0]), Word::of(columns)});
  const auto result = static_cast<std::int64_t>(request.inputs.size());
  std::vector<TextKernel> launches;
  launches.push_back(bytes_kernel(request, w.dims.size_bytes(w.dtype), 2, result));
  const std::int64_t bytes =
      append_scatter(request,
                     {.count = places,
                      .block = columns,
                      .element_bytes = element_bytes(w.dtype),
                      .text = typed_text(walk_type(w.dtype)) + dense_updates_text() + kRows,
                      .target_words = std::move(words),
                      .apply_words = {Word::argument(1), Word::of(columns), Word::argument(3)},
                      .result = Word::argument(result),
                      .scratch = result + 1},
                     launches);
  for (TextKernel& kernel : launches) kernel.keeps = checked.record;
  KernelOffer offer;
  offer.kernel = prepared(std::move(launches),
                          fmt::format("descent of {} rows in {}", places, w.dims.to_string()));
  offer.kernel.in_place = {{2, 0}};
  offer.kernel.scratch_bytes = bytes;
  return offer;
}

}  // namespace

void register_scatter_update_cuda(opdef::KernelRegistry& registry) {
  registry.add(ir::kFusedDomain, opdef::kScatterDescent, 0, offer_descent);
}

}  // namespace onnxgrad::ops::scatter_update_cuda
