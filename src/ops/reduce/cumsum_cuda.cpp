#include "ops/index_walk_cuda.h"

// A thread for each line, which adds in the order of the CPU.

namespace onnxgrad::ops::cumsum_cuda {
namespace {

using device::cuda::Word;

constexpr const char* kCumSum = R"(
OG_KERNEL(og_cumsum, 7) {
  const og_T* const x = a.pointer<const og_T>(0);
  og_T* const y = a.pointer<og_T>(1);
  const og_i64 length = a.integer(3);
  const og_i64 inner = a.integer(4);
  const og_i64 step = a.integer(6) != 0 ? -inner : inner;
  for (og_i64 i = og_first(); i < a.integer(2); i += og_stride()) {
    og_i64 at = i / inner * length * inner + i % inner;
    if (step < 0) at += (length - 1) * inner;
    og_T sum = 0;
    for (og_i64 k = 0; k < length; ++k, at += step) {
      const og_T added = x[at];
      const og_T after = k == 0 ? added : (og_T)(sum + added);
      y[at] = a.integer(5) != 0 ? sum : after;
      sum = after;
    }
  }
}
)";

KernelOffer offer_cumsum(const KernelRequest& request) {
  const Dims& dims = request.inputs[0].dims;
  const auto planned = planned_ints(request, 1);
  if (!planned) return KernelOffer::decline("the axis is not known before the step runs");
  if (planned->size() != 1) return KernelOffer::decline("the axis is not one number");
  const auto axis = static_cast<std::size_t>(normalize_axis(planned->front(), dims.rank()));
  const DataType dtype = request.inputs[0].dtype;
  const std::int64_t bytes = element_bytes(dtype);
  const bool is_float = dtype == DataType::kFloat32 || dtype == DataType::kFloat64;
  if (!is_float && !(is_integer(dtype) && bytes >= 4)) return decline_dtype(request, dtype);
  const std::int64_t inner = dims.product(axis + 1, dims.rank());
  const std::int64_t lines = dims.product(0, axis) * inner;
  KernelOffer offer;
  offer.kernel = prepared(
      text_kernel_over(request, lines,
                       (is_float ? typed_text(walk_type(dtype)) : move_text(bytes)) + kCumSum,
                       "og_cumsum",
                       {Word::argument(0), Word::argument(2), Word::of(lines), Word::of(dims[axis]),
                        Word::of(inner), Word::of(request.node.int_attribute("exclusive")),
                        Word::of(request.node.int_attribute("reverse"))}),
      "a thread a line");
  return offer;
}

}  // namespace

void register_cumsum_cuda(opdef::KernelRegistry& registry) {
  registry.add("", "CumSum", 0, offer_cumsum);
}

}  // namespace onnxgrad::ops::cumsum_cuda
