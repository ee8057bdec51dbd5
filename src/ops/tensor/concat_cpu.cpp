#include "device/cpu_options.h"
#include "opdef/kernel.h"
#include "ops/kernel_support.h"
#include "ops/tensor/strided_copy_cpu.h"

// Concat and Split: one strided copy per part. The whole is [outer, length, inner].

namespace onnxgrad::ops::concat_cpu {
namespace {

// parts[i] copies between the whole tensor and the part in args[part_args[i]].
struct PartsData {
  std::vector<CopyPlan> parts;
  std::vector<std::size_t> part_args;
  std::size_t whole_arg = 0;
};

void run_concat(const PartsData& parts, KernelArgs args) {
  for (std::size_t i = 0; i < parts.parts.size(); ++i) {
    run_copy(parts.parts[i], args[parts.part_args[i]], args[parts.whole_arg]);
  }
}

void run_split(const PartsData& parts, KernelArgs args) {
  for (std::size_t i = 0; i < parts.parts.size(); ++i) {
    run_copy(parts.parts[i], args[parts.whole_arg], args[parts.part_args[i]]);
  }
}

// Plans the copy between rows [start, start + length) of the whole tensor and the part.
CopyPlan plan_part(device::Isa isa, const Dims& whole, std::size_t axis, std::int64_t start,
                   std::int64_t length, std::int64_t bytes, bool into_whole) {
  const std::int64_t inner = whole.product(axis + 1, whole.rank());
  const std::vector<std::int64_t> whole_strides{whole[axis] * inner, inner, 1};
  const std::vector<std::int64_t> part_strides{length * inner, inner, 1};
  CopyRequest copy{.element_bytes = bytes,
                   .sizes = {whole.product(0, axis), length, inner},
                   .source_strides = into_whole ? part_strides : whole_strides,
                   .target_strides = into_whole ? whole_strides : part_strides};
  (into_whole ? copy.target_offset : copy.source_offset) = start * inner;
  return plan_copy(copy, isa);
}

KernelOffer offer_parts(const KernelRequest& request, const TensorDesc& whole,
                        const std::vector<TensorDesc>& parts,
                        const std::vector<std::int64_t>& lengths, bool into_whole) {
  const std::int64_t bytes = element_bytes(whole.dtype);
  if (bytes == 0) return decline_dtype(request, whole.dtype);
  const auto axis = static_cast<std::size_t>(
      normalize_axis(request.node.int_attribute("axis"), whole.dims.rank()));
  PartsData data;
  data.whole_arg = into_whole ? request.inputs.size() : 0;
  std::int64_t start = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].is_present() && lengths[i] > 0) {
      data.parts.push_back(plan_part(device::isa_of(request), whole.dims, axis, start, lengths[i],
                                     bytes, into_whole));
      data.part_args.push_back(into_whole ? i : request.inputs.size() + i);
    }
    start += lengths[i];
  }
  return prepared(into_whole ? kKernel<run_concat> : kKernel<run_split>, std::move(data),
                  "strided copies");
}

KernelOffer offer_concat(const KernelRequest& request) {
  const TensorDesc& whole = request.outputs[0];
  const auto axis = static_cast<std::size_t>(
      normalize_axis(request.node.int_attribute("axis"), whole.dims.rank()));
  std::vector<std::int64_t> lengths;
  for (const TensorDesc& part : request.inputs) lengths.push_back(part.dims[axis]);
  return offer_parts(request, whole, request.inputs, lengths, /*into_whole=*/true);
}

// The lengths of the parts come from input 1, or are equal except for a smaller last one.
KernelOffer offer_split(const KernelRequest& request) {
  const TensorDesc& whole = request.inputs[0];
  const auto axis = static_cast<std::size_t>(
      normalize_axis(request.node.int_attribute("axis"), whole.dims.rank()));
  const auto count = static_cast<std::int64_t>(request.outputs.size());
  std::vector<std::int64_t> lengths;
  const bool has_lengths = request.has_input(1);
  if (has_lengths) {
    const auto planned = planned_ints(request, 1);
    if (!planned) return KernelOffer::decline("the sizes are not known before the step runs");
    lengths = *planned;
  } else {
    const std::int64_t length = ceil_div(whole.dims[axis], count);
    std::int64_t left = whole.dims[axis];
    for (std::int64_t i = 0; i < count; ++i) {
      lengths.push_back(std::min(length, left));
      left -= lengths.back();
    }
  }
  std::int64_t total = 0;
  bool fits = lengths.size() == request.outputs.size();
  for (const std::int64_t length : lengths) {
    fits = fits && length >= 0 && length <= whole.dims[axis];
    if (fits) total += length;
  }
  if (!fits || total != whole.dims[axis]) {
    throw ShapeError(
        {.what = "the sizes of the parts do not add up to " + std::to_string(whole.dims[axis]),
         .where = {.node = request.node.name, .op_type = request.node.op_type},
         .detail =
             "Along axis " + std::to_string(axis) + " of shape " + whole.dims.to_string() + ".",
         .hint = "Change the sizes of the split, or give an input that they add up to."});
  }
  return offer_parts(request, whole, request.outputs, lengths, /*into_whole=*/false);
}

}  // namespace

void register_concat_cpu(opdef::KernelRegistry& registry) {
  registry.add("", "Concat", 0, offer_concat);
  registry.add("", "Split", 0, offer_split);
}

}  // namespace onnxgrad::ops::concat_cpu
