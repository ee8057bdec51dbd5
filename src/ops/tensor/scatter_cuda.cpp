#include "ops/index_walk_cuda.h"

// Scatters without atomics: updates are applied in their order, each element of the result by one
// thread. ScatterElements: the first of the updates with one target applies all of them; the others
// are along one line. ScatterND: tuples are sorted by target, stably.

namespace onnxgrad::ops::scatter_cuda {
namespace {

using device::cuda::TextKernel;
using device::cuda::Word;

constexpr const char* kElements = R"(
OG_KERNEL(og_scatter_elements, 35) {
  const og_index_type* const indices = a.pointer<const og_index_type>(0);
  const og_T* const updates = a.pointer<const og_T>(1);
  og_T* const y = a.pointer<og_T>(2);
  const og_i64 line = a.integer(4);
  const og_i64 step = a.integer(5);
  const og_i64 length = a.integer(7);
  for (og_i64 i = og_first(); i < a.integer(3); i += og_stride()) {
    const og_i64 place = i / step % line;
    const og_i64 own =
        og_checked((og_i64)indices[i], length, a.pointer<og_u64>(8), a.integer(9), i);
    if (own < 0) continue;
    const og_i64 first = i - place * step;
    bool is_first = true;
    for (og_i64 k = 0; k < place && is_first; ++k) {
      const og_i64 other = (og_i64)indices[first + k * step];
      is_first = other != own && other + length != own;
    }
    if (!is_first) continue;
    og_T& target = y[og_walk(a, 10, i).to + own * a.integer(6)];
    og_T result = target;
    for (og_i64 k = place; k < line; ++k) {
      const og_i64 other = (og_i64)indices[first + k * step];
      if (other == own || other + length == own) {
        result = OG_REDUCE(result, updates[first + k * step]);
      }
    }
    target = result;
  }
}
)";

constexpr std::size_t kDepth = 8;  // of the tuples of ScatterND
constexpr const char* kBlocks = R"(
// The target of each tuple; -1: refused.
OG_KERNEL(og_targets, 22) {
  const og_i64* const indices = a.pointer<const og_i64>(0);
  og_i64* const targets = a.pointer<og_i64>(1);
  const int depth = (int)a.integer(3);
  for (og_i64 t = og_first(); t < a.integer(2); t += og_stride()) {
    og_i64 target = 0;
    for (int k = 0; k < depth && target >= 0; ++k) {
      const og_i64 index = og_checked(indices[t * depth + k], a.integer(6 + 2 * k),
                                      a.pointer<og_u64>(4), a.integer(5), t * depth + k);
      target = index < 0 ? -1 : target + index * a.integer(7 + 2 * k);
    }
    targets[t] = target;
  }
}

// The order of the tuples by target, then number; eight threads count those before one.
OG_KERNEL(og_order, 3) {
  const og_i64* const targets = a.pointer<const og_i64>(0);
  og_i64* const order = a.pointer<og_i64>(1);
  const og_i64 tuples = a.integer(2);
  OG_SHARED og_i64 counts[256];
  const int lane = (int)(threadIdx.x % 8);
  for (og_i64 group = blockIdx.x; group * 32 < tuples; group += gridDim.x) {
    const og_i64 t = group * 32 + threadIdx.x / 8;
    og_i64 count = 0;
    if (t < tuples) {
      const og_i64 own = targets[t];
      for (og_i64 k = lane; k < tuples; k += 8) {
        const og_i64 other = targets[k];
        count += other < own || (other == own && k < t) ? 1 : 0;
      }
    }
    counts[threadIdx.x] = count;
    __syncthreads();
    if (lane == 0 && t < tuples) {
      for (int k = 1; k < 8; ++k) count += counts[threadIdx.x + k];
      order[count] = t;
    }
    __syncthreads();
  }
}

OG_KERNEL(og_apply, 7) {
  const og_i64* const targets = a.pointer<const og_i64>(0);
  const og_i64* const order = a.pointer<const og_i64>(1);
  const og_T* const updates = a.pointer<const og_T>(2);
  og_T* const y = a.pointer<og_T>(3);
  const og_i64 tuples = a.integer(4);
  const og_i64 block = a.integer(5);
  for (og_i64 i = og_first(); i < a.integer(6); i += og_stride()) {
    const og_i64 place = i / block;
    const og_i64 column = i % block;
    const og_i64 target = targets[order[place]];
    if (target < 0 || (place > 0 && targets[order[place - 1]] == target)) continue;
    og_T result = y[target + column];
    for (og_i64 k = place; k < tuples; ++k) {
      const og_i64 tuple = order[k];
      if (targets[tuple] != target) break;
      result = OG_REDUCE(result, updates[tuple * block + column]);
    }
    y[target + column] = result;
  }
}
)";

// og_T and OG_REDUCE; empty for types that the CPU has no kernel for either.
std::string reduction_text(const KernelRequest& request) {
  const std::string reduction = request.node.string_attribute("reduction");
  const DataType dtype = request.inputs[0].dtype;
  const std::int64_t bytes = element_bytes(dtype);
  if (reduction == "none") {
    if (bytes == 0 || bytes > 8) return {};
    return move_text(bytes) + "#define OG_REDUCE(old, update) (update)\n";
  }
  const bool is_float = dtype == DataType::kFloat32 || dtype == DataType::kFloat64;
  if (!is_float && dtype != DataType::kInt64 && dtype != DataType::kInt32) return {};
  if (reduction == "max" || reduction == "min") {
    return typed_text(walk_type(dtype)) + "#define OG_REDUCE(old, update) og_" + reduction +
           "<og_T>(old, update)\n";
  }
  const std::string sign = reduction == "add" ? "+" : "*";
  // Integers wrap around.
  return (is_float ? typed_text(walk_type(dtype)) : move_text(bytes)) +
         "#define OG_REDUCE(old, update) ((old) " + sign + " (update))\n";
}

KernelOffer offer_in_place(const KernelRequest& request, std::vector<TextKernel> kernels,
                           const CheckedIndices& checked, const std::vector<std::int64_t>& sizes) {
  KernelOffer offer = offer_checked(request, std::move(kernels), checked, "scatter", 1, sizes);
  offer.kernel.in_place = {{0, 0}};
  return offer;
}

KernelOffer offer_scatter_elements(const KernelRequest& request) {
  const Dims& dims = request.inputs[0].dims;
  const Dims& from = request.inputs[1].dims;
  const DataType dtype = request.inputs[0].dtype;
  const std::string text = reduction_text(request);
  if (text.empty()) return decline_dtype(request, dtype);
  const auto axis =
      static_cast<std::size_t>(normalize_axis(request.node.int_attribute("axis"), dims.rank()));
  if (from.rank() != dims.rank() || from != request.inputs[2].dims) {
    return KernelOffer::decline("indices that do not fit");
  }
  const std::vector<std::int64_t> strides = dense_strides(dims.values());
  const std::vector<std::int64_t> from_strides = dense_strides(from.values());
  std::vector<WalkAxis> axes;
  for (std::size_t i = 0; i < dims.rank(); ++i) {
    if (i != axis && from[i] > dims[i]) return KernelOffer::decline("indices that do not fit");
    axes.push_back({.size = from[i], .from = from_strides[i], .to = i == axis ? 0 : strides[i]});
  }
  const auto checked = checked_indices(request, 1, {dims[axis]});
  std::vector<Word> words{Word::argument(1),       Word::argument(2),
                          Word::argument(3),       Word::of(from.num_elements()),
                          Word::of(from[axis]),    Word::of(from_strides[axis]),
                          Word::of(strides[axis]), Word::of(dims[axis])};
  checked.append(words);
  if (!append_walk(words, axes)) return KernelOffer::decline("too many axes");
  const std::string index = request.inputs[1].dtype == DataType::kInt64 ? "og_i64" : "og_i32";
  std::vector<TextKernel> kernels;
  kernels.push_back(bytes_kernel(request, dims.size_bytes(dtype), 0, 3));
  kernels.push_back(text_kernel_over(request, from.num_elements(),
                                     text + "typedef " + index + " og_index_type;\n" + kElements,
                                     "og_scatter_elements", std::move(words)));
  return offer_in_place(request, std::move(kernels), checked, {dims[axis]});
}

KernelOffer offer_scatter_nd(const KernelRequest& request) {
  const Dims& dims = request.inputs[0].dims;
  const Dims& index_dims = request.inputs[1].dims;
  const DataType dtype = request.inputs[0].dtype;
  std::string text = reduction_text(request);
  if (text.empty()) return decline_dtype(request, dtype);
  const std::size_t last = index_dims.rank() - 1;
  if (index_dims.rank() == 0 ||
      static_cast<std::size_t>(index_dims[last]) > std::min(dims.rank(), kDepth)) {
    return KernelOffer::decline("indices that do not fit");
  }
  const auto depth = static_cast<std::size_t>(index_dims[last]);
  const std::int64_t tuples = index_dims.product(0, last);
  const std::int64_t block = dims.product(depth, dims.rank());
  std::vector<std::int64_t> expected(index_dims.begin(), index_dims.end() - 1);
  expected.insert(expected.end(), dims.begin() + static_cast<std::ptrdiff_t>(depth), dims.end());
  if (request.inputs[2].dims != Dims(expected)) {
    return KernelOffer::decline("indices that do not fit");
  }
  std::vector<std::int64_t> sizes;
  for (std::size_t k = 0; k < depth; ++k) sizes.push_back(dims[k]);
  const auto checked = checked_indices(request, 1, sizes);
  constexpr std::int64_t kScratch = 4;
  const std::int64_t list_bytes = round_up(std::max<std::int64_t>(tuples, 1) * 8, std::int64_t{64});
  const Word targets = Word::argument(kScratch);
  const Word order = Word::argument(kScratch, list_bytes);
  std::vector<Word> words{Word::argument(1), targets, Word::of(tuples), Word::of(index_dims[last])};
  checked.append(words);
  for (std::size_t k = 0; k < kDepth; ++k) {
    words.push_back(Word::of(k < depth ? sizes[k] : 0));
    words.push_back(Word::of(k < depth ? dims.product(k + 1, dims.rank()) : 0));
  }
  text += kBlocks;
  std::vector<TextKernel> kernels;
  kernels.push_back(bytes_kernel(request, dims.size_bytes(dtype), 0, 3));
  kernels.push_back(text_kernel_over(request, tuples, text, "og_targets", std::move(words)));
  kernels.push_back(
      text_kernel_over(request, 8 * tuples, text, "og_order", {targets, order, Word::of(tuples)}));
  kernels.push_back(
      text_kernel_over(request, tuples * block, text, "og_apply",
                       {targets, order, Word::argument(2), Word::argument(3), Word::of(tuples),
                        Word::of(block), Word::of(tuples * block)}));
  KernelOffer offer = offer_in_place(request, std::move(kernels), checked, sizes);
  offer.kernel.scratch_bytes = 2 * list_bytes;
  return offer;
}

}  // namespace

void register_scatter_cuda(opdef::KernelRegistry& registry) {
  registry.add("", "ScatterElements", 0, offer_scatter_elements);
  registry.add("", "ScatterND", 0, offer_scatter_nd);
}

}  // namespace onnxgrad::ops::scatter_cuda
