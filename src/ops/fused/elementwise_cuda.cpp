#include <fmt/format.h>

#include <string>
#include <vector>

#include "ir/builder.h"
#include "opdef/expr_text.h"
#include "opdef/fused.h"
#include "ops/kernel_support_cuda.h"

namespace onnxgrad::ops::elementwise_cuda {
namespace {

using device::cuda::Word;

// A thread for each element that opdef::elementwise_text() has a call for.
std::string main_text(std::size_t num_inputs, std::size_t num_outputs) {
  std::string text =
      fmt::format("OG_KERNEL(og_main, {}) {{\n  const void* in[{}];\n  void* out[{}];\n",
                  num_inputs + num_outputs + 1, num_inputs, num_outputs);
  for (std::size_t i = 0; i < num_inputs; ++i) {
    text += fmt::format("  in[{}] = a.pointer<void>({});\n", i, i);
  }
  for (std::size_t o = 0; o < num_outputs; ++o) {
    text += fmt::format("  out[{}] = a.pointer<void>({});\n", o, num_inputs + o);
  }
  text += fmt::format(
      "  for (og_i64 i = og_first(); i < a.integer({}); i += og_stride()) {{\n"
      "    og_element(in, out, i);\n  }}\n}}\n",
      num_inputs + num_outputs);
  return text;
}

opdef::KernelOffer offer_elementwise(const opdef::KernelRequest& request) {
  const auto op = opdef::Elementwise::read(request.node);
  const std::string element =
      opdef::elementwise_text(op, request.inputs, request.outputs, "og_element");
  if (element.empty()) return opdef::KernelOffer::decline("no text for these types");
  const std::size_t num_inputs = request.inputs.size();
  const std::size_t num_outputs = request.outputs.size();
  const std::int64_t calls = opdef::elementwise_calls(op, request.inputs);
  std::vector<Word> words;
  for (std::size_t i = 0; i < num_inputs + num_outputs; ++i) {
    words.push_back(Word::argument(static_cast<std::int64_t>(i)));
  }
  words.push_back(Word::of(calls));
  opdef::KernelOffer offer;
  offer.kernel =
      prepared(text_kernel_over(request, calls, element + main_text(num_inputs, num_outputs),
                                "og_main", std::move(words)),
               fmt::format("text of {} elements", calls));
  // A thread reads an operand of the whole shape where it writes.
  for (std::size_t i = 0; op.reduce_axes.empty() && i < num_inputs; ++i) {
    for (std::size_t o = 0; o < num_outputs; ++o) {
      const opdef::TensorDesc& from = request.inputs[i];
      const opdef::TensorDesc& to = request.outputs[o];
      if (from.dtype == to.dtype && from.dims == to.dims && to.dims.num_elements() == calls) {
        offer.kernel.in_place.emplace_back(static_cast<int>(i), static_cast<int>(o));
      }
    }
  }
  return offer;
}

}  // namespace

void register_elementwise_cuda(opdef::KernelRegistry& registry) {
  registry.add(ir::kFusedDomain, opdef::kElementwise, 0, offer_elementwise);
}

}  // namespace onnxgrad::ops::elementwise_cuda
