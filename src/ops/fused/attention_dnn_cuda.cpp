#include "ops/fused/attention_dnn_cuda.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/rounding.h"
#include "device/cuda/dnn_attention.h"
#include "ops/kernel_support_cuda.h"

// The statistics of a row are its largest score and 1 / sum(exp(score - largest)) in onnxgrad, and
// the logarithm of the whole sum in cuDNN. Each serves the other: the logarithm and 1, and largest
// - log(inverse). So forward pass and gradient need not have the same kernel.

namespace onnxgrad::ops {
namespace attention_dnn_cuda {
namespace {

using device::cuda::DnnAttentionSpec;
using device::cuda::DnnMatrices;
using device::cuda::DnnPlan;
using device::cuda::TextKernel;
using device::cuda::Word;
using opdef::KernelOffer;
using opdef::KernelRequest;
using opdef::StridedView;

constexpr std::int64_t kAlignment = 256;  // of parts of the scratch
constexpr std::int64_t kAddressAlignment = 16;
constexpr std::size_t kMostTensors = 12;

/// A plan with the addresses of its tensors, and what runs before and after it.
struct Library {
  std::shared_ptr<const DnnPlan> plan;
  std::vector<Word> tensors;
  int scratch = 0;
  std::vector<TextKernel> before;
  std::vector<TextKernel> after;
};

void run(const void* data, opdef::KernelArgs args, const opdef::Launch& launch) {
  const auto& one = *static_cast<const Library*>(data);
  device::cuda::launch_text_kernels(&one.before, args, launch);
  std::array<std::uint64_t, kMostTensors> addresses{};
  std::ranges::transform(one.tensors, addresses.begin(), [&](const Word& word) {
    return device::cuda::value_of(word, args, launch);
  });
  one.plan->run(std::span(addresses).first(one.tensors.size()),
                device::cuda::value_of(Word::argument(one.scratch), args, launch), launch.stream);
  device::cuda::launch_text_kernels(&one.after, args, launch);
}

/// Heads as axes in memory, outermost first; adjacent ones are one. Axes of size 1 are left out.
struct HeadAxes {
  std::vector<std::int64_t> sizes = {};
  std::vector<std::int64_t> steps = {};

  static HeadAxes of(const StridedView& view) {
    HeadAxes axes;
    for (std::size_t i = 0; i + 2 < view.dims.size(); ++i) {
      if (view.dims[i] == 1) continue;
      if (!axes.sizes.empty() && axes.steps.back() == view.dims[i] * view.strides[i]) {
        axes.sizes.back() *= view.dims[i];
        axes.steps.back() = view.strides[i];
      } else {
        axes.sizes.push_back(view.dims[i]);
        axes.steps.push_back(view.strides[i]);
      }
    }
    return axes;
  }
};

/// Numbers of sequences and of heads of each, such that all operands have two axes.
struct Split {
  std::int64_t sequences = 1;
  std::int64_t heads = 1;

  static std::optional<Split> of(const std::vector<const StridedView*>& views) {
    Split split;
    for (const StridedView* view : views) {
      const HeadAxes axes = HeadAxes::of(*view);
      std::int64_t all = 1;
      for (const std::int64_t size : axes.sizes) all *= size;
      if (axes.sizes.size() > 2) return std::nullopt;
      if (view == views.front()) split.heads = all;
      if (all != split.sequences * split.heads) return std::nullopt;
      if (axes.sizes.size() < 2 || axes.sizes[1] == split.heads) continue;
      if (split.sequences != 1) return std::nullopt;
      split = {.sequences = axes.sizes[0], .heads = axes.sizes[1]};
    }
    return split;
  }
};

DnnMatrices matrices_of(const StridedView& view, const Split& split, DataType dtype) {
  const HeadAxes axes = HeadAxes::of(view);
  const std::size_t rank = view.dims.size();
  const std::int64_t inner = axes.steps.empty() ? 0 : axes.steps.back();
  const std::int64_t outer = axes.sizes.size() == 2 ? axes.steps[0] : inner * split.heads;
  DnnMatrices made{.dims = {split.sequences, split.heads, view.dims[rank - 2], view.dims[rank - 1]},
                   .strides = {outer, inner, view.strides[rank - 2], view.strides[rank - 1]},
                   .dtype = dtype};
  std::int64_t span = 1;  // a stride of an axis of size 1 means nothing, but is not 0
  for (std::size_t i = 4; i-- > 0;) {
    if (made.strides[i] == 0) made.dims[i] = 1;
    if (made.dims[i] == 1) made.strides[i] = span;
    span = std::max(span, made.strides[i] * made.dims[i]);
  }
  return made;
}

/// Reads the operands that both passes have; the reason if cuDNN does not take them.
struct Reader {
  const KernelRequest& request;
  DataType half;
  Split split = {};
  bool is_aligned = true;

  DataType type_of(int arg) const {
    const auto i = static_cast<std::size_t>(arg);
    return i < request.inputs.size() ? request.inputs[i].dtype
                                     : request.outputs[i - request.inputs.size()].dtype;
  }
  Word address(int arg, const StridedView& view, DataType dtype) {
    const std::int64_t offset = view.offset * size_bits(dtype) / 8;
    is_aligned = is_aligned && offset % kAddressAlignment == 0;
    for (std::size_t i = 0; is_f16(dtype) && i < view.dims.size(); ++i) {
      const bool is_within = view.dims[i] == 1 || view.strides[i] == 1;
      is_aligned = is_aligned && (is_within || view.strides[i] * 2 % kAddressAlignment == 0);
    }
    return Word::argument(arg, offset);
  }

  std::string refusal_of(const opdef::Attention& op, int q, int first_mask) const {
    if (op.dropout > 0) return "cuDNN's dropout has other random numbers";
    if (op.causal && op.causal_offset != 0) return "a causal mask with an offset";
    if (op.masks.size() > 1) return "several masks";
    if (!op.masks.empty() &&
        (op.masks[0].kind != opdef::MaskKind::kAdd || type_of(first_mask) == DataType::kBool)) {
      return "a boolean mask";
    }
    for (int i = 0; i < 3; ++i) {
      // A pass asks with the operands in float32, which are read in 16 bits afterwards.
      const bool is_meant = request.is_candidate && type_of(q + i) == DataType::kFloat32;
      if (type_of(q + i) != half && !is_meant) return "products of several types";
    }
    return "";
  }
};

/// Adds a tensor to a plan: its description and its address.
class Tensors {
 public:
  Tensors(Reader& reader, std::vector<Word>& words) : reader_(reader), words_(words) {}
  DnnMatrices add(int arg, const StridedView& view, DataType dtype) {
    words_.push_back(reader_.address(arg, view, dtype));
    return matrices_of(view, reader_.split, dtype);
  }

 private:
  Reader& reader_;
  std::vector<Word>& words_;
};

std::int64_t rows_of(const DnnMatrices& q) { return q.dims[0] * q.dims[1] * q.dims[2]; }

// stats [rows, 2] of sums [rows], or the other way round.
TextKernel convert(const KernelRequest& request, const char* name, const Word& stats,
                   const Word& sums, std::int64_t rows) {
  const std::string text = R"(
OG_KERNEL(og_stats_of_sums, 3) {
  float* const stats = a.pointer<float>(0);
  for (og_i64 i = og_first(); i < a.integer(2); i += og_stride()) {
    stats[2 * i] = a.pointer<const float>(1)[i];
    stats[2 * i + 1] = 1;
  }
}
OG_KERNEL(og_sums_of_stats, 3) {
  const float* const stats = a.pointer<const float>(0);
  for (og_i64 i = og_first(); i < a.integer(2); i += og_stride()) {
    a.pointer<float>(1)[i] = stats[2 * i] - og_log(stats[2 * i + 1]);
  }
}
)";
  return text_kernel_over(request, rows, text, name, {stats, sums, Word::of(rows)});
}

TextKernel clear(const KernelRequest& request, const Word& address, std::int64_t elements) {
  const std::string text = R"(
OG_KERNEL(og_clear_floats, 2) {
  for (og_i64 i = og_first(); i < a.integer(1); i += og_stride()) a.pointer<float>(0)[i] = 0;
}
)";
  return text_kernel_over(request, elements, text, "og_clear_floats",
                          {address, Word::of(elements)});
}

KernelOffer offer_of(std::shared_ptr<Library> made, const DnnAttentionSpec& spec,
                     std::int64_t scratch_bytes, double products) {
  KernelOffer offer;
  offer.kernel.fn = run;
  offer.kernel.label =
      fmt::format("cuDNN, {} of {}x{}x{}{}", spec.q.dims[0] * spec.q.dims[1], spec.q.dims[2],
                  spec.k.dims[2], spec.q.dims[3], spec.is_causal ? " causal" : "");
  offer.kernel.flops = products * 2 * static_cast<double>(rows_of(spec.q)) *
                       static_cast<double>(spec.k.dims[2] * (spec.q.dims[3] + spec.v.dims[3]));
  offer.kernel.scratch_bytes = scratch_bytes;
  offer.kernel.is_deterministic = spec.is_deterministic;
  offer.kernel.data = std::move(made);
  return offer;
}

const char* const kNotAligned = "operands that begin between 16 bytes";
const char* const kNoSplit = "heads that are not those of sequences";

}  // namespace
}  // namespace attention_dnn_cuda

opdef::KernelOffer offer_attention_dnn(const opdef::KernelRequest& request,
                                       const opdef::Attention& op, DataType half) {
  using namespace attention_dnn_cuda;  // NOLINT(google-build-using-namespace)
  Reader reader{.request = request, .half = half};
  if (std::string reason = reader.refusal_of(op, 0, 3); !reason.empty()) {
    return KernelOffer::decline(std::move(reason));
  }
  std::vector<const StridedView*> views{&op.q, &op.k, &op.v, &op.y};
  if (!op.masks.empty()) views.push_back(&op.masks[0].view);
  const auto split = Split::of(views);
  if (!split) return KernelOffer::decline(kNoSplit);
  reader.split = *split;
  auto made = std::make_shared<Library>();
  Tensors tensors(reader, made->tensors);
  const auto result = static_cast<int>(request.inputs.size());
  DnnAttentionSpec spec{.q = tensors.add(0, op.q, half),
                        .k = tensors.add(1, op.k, half),
                        .v = tensors.add(2, op.v, half),
                        .y = tensors.add(result, op.y, request.outputs[0].dtype),
                        .scale = op.scale,
                        .is_causal = op.causal,
                        .is_deterministic = request.numerics.is_deterministic};
  if (!op.masks.empty()) spec.bias = tensors.add(3, op.masks[0].view, reader.type_of(3));
  if (!reader.is_aligned) return KernelOffer::decline(kNotAligned);
  std::string declined;
  made->plan = device::cuda::dnn_attention(card_of(request), spec, declined);
  if (made->plan == nullptr) return KernelOffer::decline(declined);
  made->scratch = result + static_cast<int>(request.outputs.size());
  std::int64_t bytes = base::round_up(made->plan->workspace_bytes(), kAlignment);
  const std::int64_t rows = rows_of(spec.q);
  const Word sums = Word::argument(made->scratch, bytes);
  made->tensors.push_back(sums);
  bytes += rows * static_cast<std::int64_t>(sizeof(float));
  if (request.has_output(1)) {
    made->after.push_back(
        convert(request, "og_stats_of_sums", Word::argument(result + 1), sums, rows));
  }
  return offer_of(std::move(made), spec, bytes, 1);
}

opdef::KernelOffer offer_attention_gradient_dnn(const opdef::KernelRequest& request,
                                                const opdef::AttentionGradient& op, DataType half) {
  using namespace attention_dnn_cuda;  // NOLINT(google-build-using-namespace)
  Reader reader{.request = request, .half = half};
  if (std::string reason = reader.refusal_of(op.forward, 3, 6); !reason.empty()) {
    return KernelOffer::decline(std::move(reason));
  }
  for (std::size_t i = 0; i < 3; ++i) {
    if (!request.has_output(i)) return KernelOffer::decline("a part of the gradient");
  }
  if (request.has_output(3)) return KernelOffer::decline("a gradient of the scores");
  const opdef::Attention& forward = op.forward;
  std::vector<const StridedView*> views{&forward.q, &forward.k, &forward.v, &forward.y,
                                        &op.dy,     &op.dq,     &op.dk,     &op.dv};
  if (!forward.masks.empty()) views.push_back(&forward.masks[0].view);
  const auto split = Split::of(views);
  if (!split) return KernelOffer::decline(kNoSplit);
  reader.split = *split;
  auto made = std::make_shared<Library>();
  Tensors tensors(reader, made->tensors);
  const auto result = static_cast<int>(request.inputs.size());
  DnnAttentionSpec spec{.q = tensors.add(3, forward.q, half),
                        .k = tensors.add(4, forward.k, half),
                        .v = tensors.add(5, forward.v, half),
                        .y = tensors.add(1, forward.y, request.inputs[1].dtype),
                        .scale = forward.scale,
                        .is_causal = forward.causal,
                        .is_deterministic = request.numerics.is_deterministic};
  spec.dy = tensors.add(0, op.dy, request.inputs[0].dtype);
  const std::size_t sums = made->tensors.size();
  made->tensors.emplace_back();
  if (!forward.masks.empty()) spec.bias = tensors.add(6, forward.masks[0].view, reader.type_of(6));
  const std::size_t along = made->tensors.size();
  made->tensors.emplace_back();
  spec.dq = tensors.add(result, op.dq, request.outputs[0].dtype);
  spec.dk = tensors.add(result + 1, op.dk, request.outputs[1].dtype);
  spec.dv = tensors.add(result + 2, op.dv, request.outputs[2].dtype);
  if (!reader.is_aligned) return KernelOffer::decline(kNotAligned);
  std::string declined;
  made->plan = device::cuda::dnn_attention_gradient(card_of(request), spec, declined);
  if (made->plan == nullptr) return KernelOffer::decline(declined);
  made->scratch = result + static_cast<int>(request.outputs.size());
  std::int64_t bytes = base::round_up(made->plan->workspace_bytes(), kAlignment);
  const auto take = [&](std::int64_t floats) {
    const Word at = Word::argument(made->scratch, bytes);
    bytes += base::round_up(floats * static_cast<std::int64_t>(sizeof(float)), kAlignment);
    return at;
  };
  const std::int64_t rows = rows_of(spec.q);
  made->tensors[sums] = take(rows);
  made->tensors[along] = take(rows);
  made->before.push_back(
      convert(request, "og_sums_of_stats", Word::argument(2), made->tensors[sums], rows));
  if (!spec.is_deterministic) {
    const std::int64_t elements = rows * spec.q.dims[3];
    made->tensors.push_back(take(elements));
    made->before.push_back(clear(request, made->tensors.back(), elements));
  }
  return offer_of(std::move(made), spec, bytes, 2.5);
}

}  // namespace onnxgrad::ops
