#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
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

using opdef::Layout;
using opdef::TensorDesc;

// Operands and results in the shape of their memory with channels last; those whose elements have
// the same order in both shapes stay as they are. False: that is not possible.
bool put_channels_last(std::vector<TensorDesc>& descs, std::size_t rank,
                       std::vector<Layout>& layouts) {
  layouts.resize(descs.size());
  for (std::size_t i = 0; i < descs.size(); ++i) {
    TensorDesc& desc = descs[i];
    desc.layout = {};
    if (!desc.is_present() || desc.dims.num_elements() == 1) continue;
    if (desc.dims.rank() > rank) return false;
    std::vector<std::int64_t> dims(rank - desc.dims.rank(), 1);
    dims.insert(dims.end(), desc.dims.values().begin(), desc.dims.values().end());
    const bool has_space = desc.dims.num_elements() != dims[0] * dims[1];
    if (has_space && dims[1] != 1) {
      if (desc.dims.rank() != rank) return false;
      layouts[i] = {.kind = Layout::Kind::kChannelsLast};
    }
    std::rotate(dims.begin() + 1, dims.begin() + 2, dims.end());
    desc.dims = Dims(dims);
  }
  return true;
}

opdef::KernelOffer offer_elementwise(const opdef::KernelRequest& request) {
  const auto op = opdef::Elementwise::read(request.node);
  const auto is_last = [](const TensorDesc& desc) {
    return desc.layout.kind == Layout::Kind::kChannelsLast;
  };
  const auto image = std::ranges::find_if(request.inputs, is_last);
  if (image == request.inputs.end() || !op.folds.empty()) return elementwise_launch(request, op);
  opdef::KernelRequest stored = request;
  std::vector<Layout> inputs;
  std::vector<Layout> outputs;
  const std::size_t rank = image->dims.rank();
  if (!put_channels_last(stored.inputs, rank, inputs) ||
      !put_channels_last(stored.outputs, rank, outputs)) {
    return elementwise_launch(request, op);
  }
  opdef::KernelOffer offer = elementwise_launch(stored, op);
  offer.kernel.input_layouts = std::move(inputs);
  offer.kernel.output_layouts = std::move(outputs);
  return offer;
}

}  // namespace

void register_elementwise_cuda(opdef::KernelRegistry& registry) {
  registry.add(ir::kFusedDomain, opdef::kElementwise, 0, offer_elementwise);
}

}  // namespace elementwise_cuda
}  // namespace onnxgrad::ops
