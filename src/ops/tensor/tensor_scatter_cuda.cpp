#include "ops/index_walk_cuda.h"

// The cache is [batch, prefixes, length, block], the update [batch, prefixes, count, block]. Each
// element of the result finds where it comes from.

namespace onnxgrad::ops::tensor_scatter_cuda {
namespace {

using device::cuda::TextKernel;
using device::cuda::Word;

constexpr const char* kTensorScatter = R"(
OG_KERNEL(og_tensor_scatter, 12) {
  const og_T* const past = a.pointer<const og_T>(0);
  const og_T* const update = a.pointer<const og_T>(1);
  const og_i64* const starts = a.pointer<const og_i64>(2);
  og_T* const y = a.pointer<og_T>(3);
  const og_i64 prefixes = a.integer(5);
  const og_i64 length = a.integer(6);
  const og_i64 count = a.integer(7);
  const og_i64 block = a.integer(8);
  for (og_i64 i = og_first(); i < a.integer(4); i += og_stride()) {
    const og_i64 row = i / block;
    const og_i64 plane = row / length;
    const og_i64 b = plane / prefixes;
    og_i64 start = starts == nullptr ? 0 : starts[b];
    og_i64 place = row % length;
    if (a.integer(9) != 0) {
      start = (start % length + length) % length;
      place = (place - start + length) % length;
    } else {
      const og_i64 last = length - count;
      if (start < 0) start = -last - 2;  // not counted from the end
      start = og_checked(start, last + 1, a.pointer<og_u64>(10), a.integer(11), b);
      place = start < 0 ? -1 : place - start;
    }
    if (place >= 0 && place < count) {
      y[i] = update[(plane * count + place) * block + i % block];
    } else if (y != past) {
      y[i] = past[i];
    }
  }
}
)";

KernelOffer offer_tensor_scatter(const KernelRequest& request) {
  const Dims& dims = request.inputs[0].dims;
  const Dims& update = request.inputs[1].dims;
  const std::int64_t bytes = element_bytes(request.inputs[0].dtype);
  if (bytes == 0) return decline_dtype(request, request.inputs[0].dtype);
  const auto axis =
      static_cast<std::size_t>(normalize_axis(request.node.int_attribute("axis"), dims.rank()));
  const bool has_starts = request.has_input(2);
  bool fits = axis > 0 && update.rank() == dims.rank() && update[axis] <= dims[axis];
  for (std::size_t i = 0; fits && i < dims.rank(); ++i) fits = i == axis || update[i] == dims[i];
  if (fits && has_starts) fits = request.inputs[2].dims == Dims{dims[0]};
  if (!fits) return KernelOffer::decline("an update that does not fit");
  const std::int64_t block_bytes = dims.product(axis + 1, dims.rank()) * bytes;
  const std::int64_t unit = unit_of(block_bytes);
  const std::int64_t count = dims.num_elements() * bytes / unit;
  const bool is_circular = request.node.string_attribute("mode") == "circular";
  const std::vector<std::int64_t> sizes{dims[axis] - update[axis] + 1};
  Refusal checked;
  std::vector<Word> words{Word::argument(0),
                          Word::argument(1),
                          has_starts ? Word::argument(2) : Word::of(std::int64_t{0}),
                          Word::argument(static_cast<std::int64_t>(request.inputs.size())),
                          Word::of(count),
                          Word::of(dims.product(1, axis)),
                          Word::of(dims[axis]),
                          Word::of(update[axis]),
                          Word::of(block_bytes / unit),
                          Word::of(std::int64_t{is_circular})};
  if (has_starts) {
    checked = checked_indices(request, 2, sizes);
    checked.append(words);
  } else {
    words.insert(words.end(), {Word::of(std::int64_t{0}), Word::of(std::int64_t{0})});
  }
  TextKernel kernel = text_kernel_over(request, count, move_text(unit) + kTensorScatter,
                                       "og_tensor_scatter", std::move(words));
  kernel.keeps = checked.record;
  KernelOffer offer;
  offer.kernel = prepared(std::move(kernel), "scatter of rows");
  offer.kernel.in_place = {{0, 0}};
  if (has_starts && !is_circular) note_index_check(request, offer, 2, sizes, /*from_zero=*/true);
  return offer;
}

}  // namespace

void register_tensor_scatter_cuda(opdef::KernelRegistry& registry) {
  registry.add("", "TensorScatter", 0, offer_tensor_scatter);
}

}  // namespace onnxgrad::ops::tensor_scatter_cuda
