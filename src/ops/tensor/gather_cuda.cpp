#include "ops/index_walk_cuda.h"

// A thread for each element, or each 8 bytes of a block, of the result. Every index is checked.

namespace onnxgrad::ops::gather_cuda {
namespace {

using device::cuda::TextKernel;
using device::cuda::Word;

constexpr const char* kGather = R"(
OG_KERNEL(og_gather, 9) {
  const og_T* const x = a.pointer<const og_T>(0);
  const og_index_type* const indices = a.pointer<const og_index_type>(1);
  og_T* const y = a.pointer<og_T>(2);
  const og_i64 places = a.integer(4);
  const og_i64 block = a.integer(5);
  const og_i64 length = a.integer(6);
  for (og_i64 i = og_first(); i < a.integer(3); i += og_stride()) {
    const og_i64 row = i / block;
    const og_i64 place = row % places;
    const og_i64 index =
        og_checked((og_i64)indices[place], length, a.pointer<og_u64>(7), a.integer(8), place);
    y[i] = index < 0 ? (og_T)0 : x[(row / places * length + index) * block + i % block];
  }
}
)";

constexpr const char* kGatherElements = R"(
OG_KERNEL(og_gather_elements, 33) {
  const og_T* const x = a.pointer<const og_T>(0);
  const og_index_type* const indices = a.pointer<const og_index_type>(1);
  og_T* const y = a.pointer<og_T>(2);
  for (og_i64 i = og_first(); i < a.integer(3); i += og_stride()) {
    const og_i64 index =
        og_checked((og_i64)indices[i], a.integer(5), a.pointer<og_u64>(6), a.integer(7), i);
    y[i] = index < 0 ? (og_T)0 : x[og_walk(a, 8, i).from + index * a.integer(4)];
  }
}
)";

constexpr std::size_t kDepth = 8;  // of the tuples of GatherND
constexpr const char* kGatherNd = R"(
OG_KERNEL(og_gather_nd, 26) {
  const og_T* const x = a.pointer<const og_T>(0);
  const og_i64* const indices = a.pointer<const og_i64>(1);
  og_T* const y = a.pointer<og_T>(2);
  const og_i64 block = a.integer(5);
  const int depth = (int)a.integer(7);
  for (og_i64 i = og_first(); i < a.integer(3); i += og_stride()) {
    const og_i64 tuple = i / block;
    og_i64 from = tuple / a.integer(4) * a.integer(6) + i % block;
    for (int k = 0; k < depth; ++k) {
      const og_i64 place = tuple * depth + k;
      const og_i64 index = og_checked(indices[place], a.integer(10 + 2 * k), a.pointer<og_u64>(8),
                                      a.integer(9), place);
      if (index < 0) {
        from = -1;
        break;
      }
      from += index * a.integer(11 + 2 * k);
    }
    y[i] = from < 0 ? (og_T)0 : x[from];
  }
}
)";

std::string index_text(const TensorDesc& indices) {
  return indices.dtype == DataType::kInt64 ? "typedef og_i64 og_index_type;\n"
                                           : "typedef og_i32 og_index_type;\n";
}

KernelOffer offer_one(const KernelRequest& request, TextKernel kernel, const Refusal& checked,
                      const std::vector<std::int64_t>& sizes) {
  std::vector<TextKernel> all;
  all.push_back(std::move(kernel));
  return offer_checked(request, std::move(all), checked, "gather", 1, sizes);
}

KernelOffer offer_gather(const KernelRequest& request) {
  const std::int64_t bytes = element_bytes(request.inputs[0].dtype);
  if (bytes == 0) return decline_dtype(request, request.inputs[0].dtype);
  const Dims& dims = request.inputs[0].dims;
  const auto axis =
      static_cast<std::size_t>(normalize_axis(request.node.int_attribute("axis"), dims.rank()));
  const std::int64_t block_bytes = dims.product(axis + 1, dims.rank()) * bytes;
  const std::int64_t unit = unit_of(block_bytes);
  const std::int64_t places = request.inputs[1].dims.num_elements();
  const std::int64_t count = dims.product(0, axis) * places * (block_bytes / unit);
  const auto checked = checked_indices(request, 1, {dims[axis]});
  std::vector<Word> words{Word::argument(0),   Word::argument(1), Word::argument(2),
                          Word::of(count),     Word::of(places),  Word::of(block_bytes / unit),
                          Word::of(dims[axis])};
  checked.append(words);
  return offer_one(
      request,
      text_kernel_over(request, count, move_text(unit) + index_text(request.inputs[1]) + kGather,
                       "og_gather", std::move(words)),
      checked, {dims[axis]});
}

KernelOffer offer_gather_elements(const KernelRequest& request) {
  const Dims& dims = request.inputs[0].dims;
  const Dims& to = request.inputs[1].dims;
  const std::int64_t bytes = element_bytes(request.inputs[0].dtype);
  if (bytes == 0 || bytes > 8) return decline_dtype(request, request.inputs[0].dtype);
  const auto axis =
      static_cast<std::size_t>(normalize_axis(request.node.int_attribute("axis"), dims.rank()));
  if (to.rank() != dims.rank()) return KernelOffer::decline("indices that do not fit");
  const std::vector<std::int64_t> strides = dense_strides(dims.values());
  const std::vector<std::int64_t> to_strides = dense_strides(to.values());
  std::vector<WalkAxis> axes;
  for (std::size_t i = 0; i < dims.rank(); ++i) {
    if (i != axis && to[i] > dims[i]) return KernelOffer::decline("indices that do not fit");
    axes.push_back({.size = to[i], .from = i == axis ? 0 : strides[i], .to = to_strides[i]});
  }
  const auto checked = checked_indices(request, 1, {dims[axis]});
  std::vector<Word> words{Word::argument(0),       Word::argument(1),
                          Word::argument(2),       Word::of(to.num_elements()),
                          Word::of(strides[axis]), Word::of(dims[axis])};
  checked.append(words);
  if (!append_walk(words, axes)) return KernelOffer::decline("too many axes");
  return offer_one(
      request,
      text_kernel_over(request, to.num_elements(),
                       move_text(bytes) + index_text(request.inputs[1]) + kGatherElements,
                       "og_gather_elements", std::move(words)),
      checked, {dims[axis]});
}

KernelOffer offer_gather_nd(const KernelRequest& request) {
  const std::int64_t bytes = element_bytes(request.inputs[0].dtype);
  if (bytes == 0) return decline_dtype(request, request.inputs[0].dtype);
  const Dims& dims = request.inputs[0].dims;
  const Dims& index_dims = request.inputs[1].dims;
  const auto batch_rank = static_cast<std::size_t>(request.node.int_attribute("batch_dims"));
  const std::size_t last = index_dims.rank() - 1;
  if (batch_rank > last || batch_rank >= dims.rank() || index_dims[last] < 0 ||
      static_cast<std::size_t>(index_dims[last]) > std::min(dims.rank() - batch_rank, kDepth) ||
      dims.product(0, batch_rank) != index_dims.product(0, batch_rank)) {
    return KernelOffer::decline("indices that do not fit");
  }
  const auto depth = static_cast<std::size_t>(index_dims[last]);
  const std::int64_t block_bytes = dims.product(batch_rank + depth, dims.rank()) * bytes;
  const std::int64_t unit = unit_of(block_bytes);
  const std::int64_t tuples = index_dims.product(batch_rank, last);
  const std::int64_t count = dims.product(0, batch_rank) * tuples * (block_bytes / unit);
  const auto units = [&](std::size_t axis) {
    return dims.product(axis, dims.rank()) * bytes / unit;
  };
  std::vector<std::int64_t> sizes;
  for (std::size_t k = 0; k < depth; ++k) sizes.push_back(dims[batch_rank + k]);
  const auto checked = checked_indices(request, 1, sizes);
  std::vector<Word> words{Word::argument(0),
                          Word::argument(1),
                          Word::argument(2),
                          Word::of(count),
                          Word::of(tuples),
                          Word::of(block_bytes / unit),
                          Word::of(units(batch_rank)),
                          Word::of(index_dims[last])};
  checked.append(words);
  for (std::size_t k = 0; k < kDepth; ++k) {
    words.push_back(Word::of(k < depth ? sizes[k] : 0));
    words.push_back(Word::of(k < depth ? units(batch_rank + k + 1) : 0));
  }
  return offer_one(request,
                   text_kernel_over(request, count, move_text(unit) + kGatherNd, "og_gather_nd",
                                    std::move(words)),
                   checked, sizes);
}

}  // namespace

void register_gather_cuda(opdef::KernelRegistry& registry) {
  registry.add("", "Gather", 0, offer_gather);
  registry.add("", "GatherElements", 0, offer_gather_elements);
  registry.add("", "GatherND", 0, offer_gather_nd);
}

}  // namespace onnxgrad::ops::gather_cuda
