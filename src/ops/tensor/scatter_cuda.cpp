#include "ops/index_walk_cuda.h"
#include "ops/tensor/sorted_scatter_cuda.h"

// ScatterElements and ScatterND, by sorting (ops/tensor/sorted_scatter_cuda.h).

namespace onnxgrad::ops::scatter_cuda {
namespace {

using device::cuda::TextKernel;
using device::cuda::Word;

// Words: indices, where they are refused, size and stride of the axis, then the walk.
constexpr const char* kElements = R"(
template <class W>
OG_FUNCTION og_i64 og_target(const W& a, int w, og_i64 t) {
  const og_i64 index = og_checked((og_i64)a.template pointer<const og_index_type>(w)[t],
                                  a.integer(w + 3), a.template pointer<og_u64>(w + 1),
                                  a.integer(w + 2), t);
  return index < 0 ? -1 : og_walk(a, w + 5, t).to + index * a.integer(w + 4);
}
)";

constexpr std::size_t kDepth = 8;  // of the tuples of ScatterND
// Words: indices, where they are refused, depth, then size and stride of each axis.
constexpr const char* kTuples = R"(
template <class W>
OG_FUNCTION og_i64 og_target(const W& a, int w, og_i64 t) {
  const og_i64* const indices = a.template pointer<const og_i64>(w);
  const int depth = (int)a.integer(w + 3);
  og_i64 target = 0;
  for (int k = 0; k < depth; ++k) {
    const og_i64 index =
        og_checked(indices[t * depth + k], a.integer(w + 4 + 2 * k),
                   a.template pointer<og_u64>(w + 1), a.integer(w + 2), t * depth + k);
    if (index < 0) return -1;
    target += index * a.integer(w + 5 + 2 * k);
  }
  return target;
}
)";

// og_T, og_reduce and og_finish; empty for types that the CPU has no kernel for either.
std::string reduction_text(const KernelRequest& request) {
  const auto functions = [](const std::string& types, const std::string& both) {
    return types + "OG_FUNCTION og_T og_reduce(og_T a, og_T b) { return " + both +
           "; }\ntemplate <class W>\n"
           "OG_FUNCTION og_T og_finish(const W&, int, og_T a, og_T b) { return og_reduce(a, b); "
           "}\n" +
           dense_updates_text();
  };
  const std::string reduction = request.node.string_attribute("reduction");
  const DataType dtype = request.inputs[0].dtype;
  const std::int64_t bytes = element_bytes(dtype);
  if (reduction == "none") {
    if (bytes == 0 || bytes > 8) return {};
    return functions(move_text(bytes), "b");
  }
  const bool is_float = dtype == DataType::kFloat32 || dtype == DataType::kFloat64;
  if (!is_float && dtype != DataType::kInt64 && dtype != DataType::kInt32) return {};
  if (reduction == "max" || reduction == "min") {
    return functions(typed_text(walk_type(dtype)), "og_" + reduction + "<og_T>(a, b)");
  }
  // Integers wrap around.
  return functions(is_float ? typed_text(walk_type(dtype)) : move_text(bytes),
                   reduction == "add" ? "a + b" : "a * b");
}

constexpr std::int64_t kScratch = 4;  // the argument

KernelOffer offer_sorted(const KernelRequest& request, SortedScatter scatter,
                         const Refusal& checked, const std::vector<std::int64_t>& sizes) {
  const TensorDesc& data = request.inputs[0];
  scatter.element_bytes = element_bytes(data.dtype);
  scatter.apply_words = {Word::argument(2), Word::of(scatter.block)};
  scatter.result = Word::argument(3);
  scatter.scratch = kScratch;
  std::vector<TextKernel> launches;
  launches.push_back(bytes_kernel(request, data.dims.size_bytes(data.dtype), 0, 3));
  const std::int64_t bytes = append_scatter(request, scatter, launches);
  KernelOffer offer =
      offer_checked(request, std::move(launches), checked, "sorted scatter", 1, sizes);
  offer.kernel.in_place = {{0, 0}};
  offer.kernel.scratch_bytes = bytes;
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
  std::vector<Word> words{Word::argument(1)};
  checked.append(words);
  words.insert(words.end(), {Word::of(dims[axis]), Word::of(strides[axis])});
  if (!append_walk(words, axes)) return KernelOffer::decline("too many axes");
  const std::string index = request.inputs[1].dtype == DataType::kInt64 ? "og_i64" : "og_i32";
  return offer_sorted(request,
                      {.count = from.num_elements(),
                       .block = 1,
                       .text = text + "typedef " + index + " og_index_type;\n" + kElements,
                       .target_words = std::move(words)},
                      checked, {dims[axis]});
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
  std::vector<Word> words{Word::argument(1)};
  checked.append(words);
  words.push_back(Word::of(index_dims[last]));
  for (std::size_t k = 0; k < kDepth; ++k) {
    words.push_back(Word::of(k < depth ? sizes[k] : 0));
    words.push_back(Word::of(k < depth ? dims.product(k + 1, dims.rank()) : 0));
  }
  return offer_sorted(
      request,
      {.count = tuples, .block = block, .text = text + kTuples, .target_words = std::move(words)},
      checked, sizes);
}

}  // namespace

void register_scatter_cuda(opdef::KernelRegistry& registry) {
  registry.add("", "ScatterElements", 0, offer_scatter_elements);
  registry.add("", "ScatterND", 0, offer_scatter_nd);
}

}  // namespace onnxgrad::ops::scatter_cuda
