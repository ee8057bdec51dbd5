#include <algorithm>
#include <cstring>

#include "ops/index_walk_cuda.h"

// ConstantOfShape and EyeLike.

namespace onnxgrad::ops::shape_cuda {
namespace {

using device::cuda::Word;

constexpr const char* kFill = R"(
OG_KERNEL(og_fill, 3) {
  og_T* const y = a.pointer<og_T>(0);
  for (og_i64 i = og_first(); i < a.integer(1); i += og_stride()) y[i] = (og_T)a.word[2];
}
OG_KERNEL(og_eye, 5) {
  og_T* const y = a.pointer<og_T>(0);
  const og_i64 columns = a.integer(3);
  for (og_i64 i = og_first(); i < a.integer(1); i += og_stride()) {
    y[i] = i % columns - i / columns == a.integer(4) ? (og_T)a.word[2] : (og_T)0;
  }
}
)";

// The bits of an element, as a word.
Word bits_of(const Tensor& element, std::int64_t bytes) {
  std::int64_t bits = 0;
  std::memcpy(&bits, element.raw(), static_cast<std::size_t>(bytes));
  return Word::of(bits);
}

KernelOffer offer_constant_of_shape(const KernelRequest& request) {
  const DataType dtype = request.outputs[0].dtype;
  const std::int64_t bytes = element_bytes(dtype);
  if (bytes == 0 || bytes > 8) return decline_dtype(request, dtype);
  Word element = Word::of(std::int64_t{0});
  const ir::AttributeValue* attribute = request.node.find_attribute("value");
  if (const auto* value = attribute == nullptr ? nullptr : std::get_if<Tensor>(attribute)) {
    if (value->num_elements() != 1 || value->dtype() != dtype) {
      return KernelOffer::decline("not one value");
    }
    element = bits_of(*value, bytes);
  }
  const std::int64_t count = request.outputs[0].dims.num_elements();
  KernelOffer offer;
  offer.kernel = prepared(text_kernel_over(request, count, move_text(bytes) + kFill, "og_fill",
                                           {Word::argument(1), Word::of(count), element}),
                          "fill");
  return offer;
}

KernelOffer offer_eye(const KernelRequest& request) {
  const Dims& dims = request.outputs[0].dims;
  const DataType dtype = request.outputs[0].dtype;
  const std::int64_t bytes = element_bytes(dtype);
  if (dims.rank() != 2) return KernelOffer::decline("no matrix");
  if (walk_type(dtype).empty() && dtype != DataType::kBool) return decline_dtype(request, dtype);
  const std::int64_t k = std::clamp(request.node.int_attribute("k"), -dims[0], dims[1]);
  KernelOffer offer;
  offer.kernel =
      prepared(text_kernel_over(request, dims.num_elements(), move_text(bytes) + kFill, "og_eye",
                                {Word::argument(1), Word::of(dims.num_elements()),
                                 bits_of(Tensor::scalar(1.0F).cast(dtype), bytes),
                                 Word::of(dims[1]), Word::of(k)}),
               "eye");
  return offer;
}

}  // namespace

void register_shape_cuda(opdef::KernelRegistry& registry) {
  registry.add("", "ConstantOfShape", 0, offer_constant_of_shape);
  registry.add("", "EyeLike", 0, offer_eye);
}

}  // namespace onnxgrad::ops::shape_cuda
