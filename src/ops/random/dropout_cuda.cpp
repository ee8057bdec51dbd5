#include <string>
#include <utility>
#include <vector>

#include "ops/block_text_cuda.h"
#include "ops/kernel_support.h"
#include "ops/kernel_support_cuda.h"
#include "ops/random/dropout_ratio.h"
#include "ops/random_text_cuda.h"

// Dropout, with the random words of the CPU (ops/random/dropout_cpu.cpp).

namespace onnxgrad::ops::dropout_cuda {
namespace {

using device::cuda::Word;

// Words: x, ratio, mode, y, mask, elements, 0, 0, then the words of random numbers.
constexpr const char* kText = R"(
OG_KERNEL(og_main, 18) {
  const og_t* const x = a.pointer<og_t>(0);
  og_t* const y = a.pointer<og_t>(3);
  og_u8* const mask = a.pointer<og_u8>(4);
  const og_drop drop = og_drop_of(a, 8, a.pointer<og_ratio>(1), a.pointer<og_u8>(2));
  const og_t scale = (og_t)drop.scale;
  for (og_i64 i = og_first(); i < a.integer(5); i += og_stride()) {
    const bool keep = og_keeps(a, 8, drop, i);
    if (y != 0) y[i] = keep ? (drop.is_on ? x[i] * scale : x[i]) : (og_t)0;
    if (mask != 0) mask[i] = keep;
  }
}
)";

KernelOffer offer_dropout(const KernelRequest& request) {
  const DataType dtype = request.inputs[0].dtype;
  if (dtype != DataType::kFloat32 && dtype != DataType::kFloat64) {
    return decline_dtype(request, dtype);
  }
  const bool has_ratio = request.has_input(1);
  const bool has_mode = request.has_input(2);
  const DataType ratio = has_ratio ? request.inputs[1].dtype : DataType::kFloat32;
  if (ratio != DataType::kFloat32 && ratio != DataType::kFloat64) {
    return decline_dtype(request, ratio);
  }
  if ((has_ratio && request.inputs[1].dims.num_elements() != 1) ||
      (has_mode && request.inputs[2].dims.num_elements() != 1)) {
    return KernelOffer::decline("ratio and mode are not both scalars");
  }
  const auto result = static_cast<int>(request.inputs.size());
  const std::int64_t elements = request.inputs[0].dims.num_elements();
  std::vector<Word> words{Word::argument(0), optional_argument(has_ratio ? 1 : -1),
                          optional_argument(has_mode ? 2 : -1),
                          optional_argument(request.has_output(0) ? result : -1),
                          optional_argument(request.has_output(1) ? result + 1 : -1)};
  add_integers(words, {elements, 0, 0});
  const Refusal refused = add_dropout_words(words, request, request.inputs[0].dims);
  const std::string text = std::string(block_text()) +
                           typedefs({{"og_t", text_type(dtype)}, {"og_ratio", text_type(ratio)}}) +
                           random_text() + kText;
  KernelOffer offer;
  device::cuda::TextKernel kernel =
      text_kernel_over(request, elements, text, "og_main", std::move(words));
  kernel.keeps = refused.record;
  offer.kernel = prepared(std::move(kernel), "words of Philox");
  offer.kernel.in_place = {{0, 0}};
  note_dropout_check(request, offer, 1, 2);
  return offer;
}

}  // namespace

void register_dropout_cuda(opdef::KernelRegistry& registry) {
  registry.add("", "Dropout", 0, offer_dropout);
}

}  // namespace onnxgrad::ops::dropout_cuda
