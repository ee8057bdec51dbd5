#include "ops/index_walk_cuda.h"

namespace onnxgrad::ops::trilu_cuda {
namespace {

using device::cuda::Word;

constexpr const char* kTrilu = R"(
OG_KERNEL(og_trilu, 7) {
  const og_T* const x = a.pointer<const og_T>(0);
  const og_i64* const given = a.pointer<const og_i64>(1);
  og_T* const y = a.pointer<og_T>(2);
  const og_i64 rows = a.integer(4);
  const og_i64 columns = a.integer(5);
  og_i64 k = given == nullptr ? 0 : *given;
  k = k < -rows - 1 ? -rows - 1 : k > columns + 1 ? columns + 1 : k;
  for (og_i64 i = og_first(); i < a.integer(3); i += og_stride()) {
    const og_i64 over = i % columns - i / columns % rows - k;
    y[i] = (a.integer(6) != 0 ? over >= 0 : over <= 0) ? x[i] : (og_T)0;
  }
}
)";

KernelOffer offer_trilu(const KernelRequest& request) {
  const Dims& dims = request.inputs[0].dims;
  const std::int64_t bytes = element_bytes(request.inputs[0].dtype);
  if (bytes == 0 || bytes > 8) return decline_dtype(request, request.inputs[0].dtype);
  const bool has_k = request.has_input(1);
  if (dims.rank() < 2 || (has_k && request.inputs[1].dims.num_elements() != 1)) {
    return KernelOffer::decline("no matrices, or several diagonals");
  }
  KernelOffer offer;
  offer.kernel = prepared(
      text_kernel_over(
          request, dims.num_elements(), move_text(bytes) + kTrilu, "og_trilu",
          {Word::argument(0), has_k ? Word::argument(1) : Word::of(std::int64_t{0}),
           Word::argument(static_cast<std::int64_t>(request.inputs.size())),
           Word::of(dims.num_elements()), Word::of(dims[dims.rank() - 2]),
           Word::of(dims[dims.rank() - 1]), Word::of(request.node.int_attribute("upper"))}),
      "triangle");
  return offer;
}

}  // namespace

void register_trilu_cuda(opdef::KernelRegistry& registry) {
  registry.add("", "Trilu", 0, offer_trilu);
}

}  // namespace onnxgrad::ops::trilu_cuda
