#include "ops/index_walk_cuda.h"

// Bits of both operands, which are broadcast: a walk over two views.

namespace onnxgrad::ops::bitwise_cuda {
namespace {

using device::cuda::TextKernel;
using device::cuda::Word;

constexpr const char* kText = R"(
OG_KERNEL(og_bits_of, 29) {
  const og_T* const x = a.pointer<const og_T>(0);
  const og_T* const z = a.pointer<const og_T>(1);
  for (og_i64 i = og_first(); i < a.integer(3); i += og_stride()) {
    const og_place at = og_walk(a, 4, i);
    a.pointer<og_T>(2)[i] = og_of_bits(x[at.from], z[at.to]);
  }
}
)";

// Strides of an operand over the result, with zeros along repeated axes.
std::vector<std::int64_t> strides_over(const Dims& operand, const Dims& result) {
  const std::vector<std::int64_t> dense = dense_strides(operand.values());
  std::vector<std::int64_t> strides(result.rank(), 0);
  const std::size_t lead = result.rank() - operand.rank();
  for (std::size_t i = 0; i < operand.rank(); ++i) {
    if (operand[i] != 1) strides[lead + i] = dense[i];
  }
  return strides;
}

KernelOffer offer_bits(const KernelRequest& request, const std::string& of_both) {
  const std::int64_t bytes = element_bytes(request.inputs[0].dtype);
  if (bytes == 0 || bytes > 8) return decline_dtype(request, request.inputs[0].dtype);
  const std::size_t second = request.inputs.size() > 1 ? 1 : 0;
  const Dims& y = request.outputs[0].dims;
  const auto first_strides = strides_over(request.inputs[0].dims, y);
  const auto second_strides = strides_over(request.inputs[second].dims, y);
  std::vector<WalkAxis> axes;
  for (std::size_t i = 0; i < y.rank(); ++i) {
    axes.push_back({.size = y[i], .from = first_strides[i], .to = second_strides[i]});
  }
  std::vector<Word> words{Word::argument(0), Word::argument(static_cast<std::int64_t>(second)),
                          Word::argument(static_cast<std::int64_t>(request.inputs.size())),
                          Word::of(y.num_elements())};
  if (!append_walk(words, axes)) return KernelOffer::decline("views of too many axes");
  const std::string function =
      "OG_FUNCTION og_T og_of_bits(og_T x, og_T z) { return (og_T)(" + of_both + "); }\n";
  KernelOffer offer;
  offer.kernel =
      prepared(text_kernel_over(request, y.num_elements(), move_text(bytes) + function + kText,
                                "og_bits_of", std::move(words)),
               "bits");
  for (std::size_t i = 0; i <= second; ++i) {
    if (request.inputs[i].dims == y) offer.kernel.in_place.emplace_back(static_cast<int>(i), 0);
  }
  return offer;
}

KernelOffer offer_and(const KernelRequest& request) { return offer_bits(request, "x & z"); }
KernelOffer offer_or(const KernelRequest& request) { return offer_bits(request, "x | z"); }
KernelOffer offer_xor(const KernelRequest& request) { return offer_bits(request, "x ^ z"); }
KernelOffer offer_not(const KernelRequest& request) { return offer_bits(request, "~x"); }
// Shifts by the width or more yield 0.
KernelOffer offer_shift(const KernelRequest& request) {
  const bool is_left = request.node.string_attribute("direction") == "LEFT";
  return offer_bits(request,
                    std::string("z < 8 * sizeof(og_T) ? x ") + (is_left ? "<<" : ">>") + " z : 0");
}

}  // namespace

void register_bitwise_cuda(opdef::KernelRegistry& registry) {
  registry.add("", "BitwiseAnd", 0, offer_and);
  registry.add("", "BitwiseOr", 0, offer_or);
  registry.add("", "BitwiseXor", 0, offer_xor);
  registry.add("", "BitwiseNot", 0, offer_not);
  registry.add("", "BitShift", 0, offer_shift);
}

}  // namespace onnxgrad::ops::bitwise_cuda
