#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "ir/builder.h"
#include "opdef/expr_text.h"
#include "opdef/fused.h"
#include "ops/block_text_cuda.h"
#include "ops/fused/elementwise_launch_cuda.h"
#include "ops/kernel_support_cuda.h"

namespace onnxgrad::ops {
namespace {

using device::cuda::Word;

// The addresses that opdef::elementwise_text() takes, from the words of a kernel.
std::string operands_text(std::size_t num_inputs, std::size_t num_outputs) {
  std::string text =
      fmt::format("OG_KERNEL(og_main, {}) {{\n  const void* in[{}];\n  void* out[{}];\n",
                  num_inputs + num_outputs + 1, std::max<std::size_t>(num_inputs, 1), num_outputs);
  for (std::size_t i = 0; i < num_inputs; ++i) {
    text += fmt::format("  in[{}] = a.pointer<void>({});\n", i, i);
  }
  for (std::size_t o = 0; o < num_outputs; ++o) {
    text += fmt::format("  out[{}] = a.pointer<void>({});\n", o, num_inputs + o);
  }
  return text;
}

// A thread for each element that opdef::elementwise_text() has a call for.
std::string main_text(std::size_t num_inputs, std::size_t num_outputs) {
  return operands_text(num_inputs, num_outputs) +
         fmt::format(
             "  for (og_i64 i = og_first(); i < a.integer({}); i += og_stride()) {{\n"
             "    og_element(in, out, i);\n  }}\n}}\n",
             num_inputs + num_outputs);
}

// A column of a block for each element.
std::string block_main_text(std::size_t num_inputs, std::size_t num_outputs) {
  return operands_text(num_inputs, num_outputs) +
         fmt::format(
             "  for (og_i64 i = (og_i64)blockIdx.x * blockDim.x; i < a.integer({}); i += "
             "og_columns()) {{\n    og_element(in, out, i + threadIdx.x);\n  }}\n}}\n",
             num_inputs + num_outputs);
}

// Fewer elements are combined by one thread.
constexpr std::int64_t kFewestForBlock = 16;

}  // namespace

opdef::KernelOffer elementwise_launch(const opdef::KernelRequest& request,
                                      const opdef::Elementwise& op) {
  const opdef::ElementwiseFolds folds = opdef::elementwise_folds(op, request.inputs);
  const bool is_for_block = !op.folds.empty() && folds.length >= kFewestForBlock;
  const auto write = is_for_block ? opdef::elementwise_block_text : opdef::elementwise_text;
  const std::string element = write(op, request.inputs, request.outputs, "og_element");
  if (element.empty()) return opdef::KernelOffer::decline("no text for these types");
  const std::size_t num_inputs = request.inputs.size();
  const std::size_t num_outputs = request.outputs.size();
  const std::int64_t calls = opdef::elementwise_calls(op, request.inputs);
  std::vector<Word> words = argument_words(0, static_cast<std::int64_t>(num_inputs + num_outputs));
  words.push_back(Word::of(calls));
  opdef::KernelOffer offer;
  if (is_for_block) {
    offer.kernel = prepared(
        column_kernel(
            request, {.count = calls, .length = folds.length, .are_adjacent = folds.are_adjacent},
            element + block_main_text(num_inputs, num_outputs), "og_main", std::move(words)),
        fmt::format("text of {} elements in columns of {}", calls, folds.length));
  } else {
    offer.kernel =
        prepared(text_kernel_over(request, calls, element + main_text(num_inputs, num_outputs),
                                  "og_main", std::move(words)),
                 fmt::format("text of {} elements", calls));
  }
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

namespace elementwise_cuda {
namespace {

opdef::KernelOffer offer_elementwise(const opdef::KernelRequest& request) {
  return elementwise_launch(request, opdef::Elementwise::read(request.node));
}

}  // namespace

void register_elementwise_cuda(opdef::KernelRegistry& registry) {
  registry.add(ir::kFusedDomain, opdef::kElementwise, 0, offer_elementwise);
}

}  // namespace elementwise_cuda
}  // namespace onnxgrad::ops
