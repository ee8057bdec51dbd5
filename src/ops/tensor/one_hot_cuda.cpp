#include "ops/index_walk_cuda.h"

namespace onnxgrad::ops::one_hot_cuda {
namespace {

using device::cuda::Word;

// Indices out of range are no error: nothing is hot.
constexpr const char* kOneHot = R"(
OG_KERNEL(og_one_hot, 6) {
  const og_index_type* const indices = a.pointer<const og_index_type>(0);
  const og_T* const values = a.pointer<const og_T>(1);
  og_T* const y = a.pointer<og_T>(2);
  const og_i64 depth = a.integer(4);
  const og_i64 inner = a.integer(5);
  for (og_i64 i = og_first(); i < a.integer(3); i += og_stride()) {
    const og_i64 row = i / inner;
    const og_index_type index = indices[row / depth * inner + i % inner];
    og_i64 place = -1;
    if (OG_IS_FLOAT ? index >= -(double)depth && index <= (double)depth
                    : !((og_index_type)-1 > 0 && (og_u64)index >= (og_u64)depth)) {
      place = (og_i64)index;
      if (place < -depth || place >= depth) place = -1;
      else if (place < 0) place += depth;
    }
    y[i] = values[place == row % depth ? 1 : 0];
  }
}
)";

KernelOffer offer_one_hot(const KernelRequest& request) {
  const DataType index = request.inputs[0].dtype;
  const std::int64_t bytes = element_bytes(request.outputs[0].dtype);
  if (bytes == 0 || bytes > 8) return decline_dtype(request, request.outputs[0].dtype);
  const std::string type = walk_type(index);
  if (type.empty()) return decline_dtype(request, index);
  const Dims& dims = request.outputs[0].dims;
  const auto axis =
      static_cast<std::size_t>(normalize_axis(request.node.int_attribute("axis"), dims.rank()));
  const bool is_float = index == DataType::kFloat32 || index == DataType::kFloat64;
  const std::string text = move_text(bytes) + "typedef " + type + " og_index_type;\n" +
                           "#define OG_IS_FLOAT " + (is_float ? "true" : "false") + "\n" + kOneHot;
  KernelOffer offer;
  offer.kernel = prepared(text_kernel_over(request, dims.num_elements(), text, "og_one_hot",
                                           {Word::argument(0), Word::argument(2), Word::argument(3),
                                            Word::of(dims.num_elements()), Word::of(dims[axis]),
                                            Word::of(dims.product(axis + 1, dims.rank()))}),
                          "one-hot");
  return offer;
}

}  // namespace

void register_one_hot_cuda(opdef::KernelRegistry& registry) {
  registry.add("", "OneHot", 0, offer_one_hot);
}

}  // namespace onnxgrad::ops::one_hot_cuda
