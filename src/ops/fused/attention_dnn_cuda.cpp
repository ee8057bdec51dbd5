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

const char* const kNotAligned = "operands that begin between 16 bytes";
const char* const kNoSplit = "heads that are not those of sequences";

std::int64_t rows_of(const DnnMatrices& q) { return q.dims[0] * q.dims[1] * q.dims[2]; }

/// Reads the operands of a pass, and makes its plan with the addresses of its tensors.
class Pass {
 public:
  /// `first`: the argument of the queries; keys, values and the mask follow. All outlive this.
  Pass(const KernelRequest& request, const opdef::Attention& op, int first, DataType half)
      : request_(request), op_(op), first_(first), half_(half) {}

  /// The reason if cuDNN does not take the operands; `others`: views besides those of `op`.
  std::string refusal(const std::vector<const StridedView*>& others) {
    if (op_.dropout > 0) return "cuDNN's dropout has other random numbers";
    if (op_.causal && op_.causal_offset != 0) return "a causal mask with an offset";
    if (op_.masks.size() > 1) return "several masks";
    if (!op_.masks.empty() &&
        (op_.masks[0].kind != opdef::MaskKind::kAdd || type_of(first_ + 3) == DataType::kBool)) {
      return "a boolean mask";
    }
    for (int i = 0; i < 3; ++i) {
      // A pass asks with the operands in float32, which are read in 16 bits afterwards.
      const DataType type = type_of(first_ + i);
      const bool is_meant = request_.is_candidate && type == DataType::kFloat32;
      if (type != half_ && !is_meant) return "products of several types";
    }
    std::vector<const StridedView*> views{&op_.q, &op_.k, &op_.v, &op_.y};
    views.insert(views.end(), others.begin(), others.end());
    if (!op_.masks.empty()) views.push_back(&op_.masks[0].view);
    const auto split = Split::of(views);
    if (!split) return kNoSplit;
    split_ = *split;
    return "";
  }

  /// The next tensors of the plan, queries, keys, values and the result, which is argument `y`.
  DnnAttentionSpec begin(int y) {
    return {.q = add(first_, op_.q, half_),
            .k = add(first_ + 1, op_.k, half_),
            .v = add(first_ + 2, op_.v, half_),
            .y = add(y, op_.y),
            .scale = op_.scale,
            .is_causal = op_.causal,
            .is_deterministic = request_.numerics.is_deterministic};
  }
  /// The next one, which is the mask, if there is one.
  void add_mask(DnnAttentionSpec& spec) {
    if (!op_.masks.empty()) spec.bias = add(first_ + 3, op_.masks[0].view);
  }
  DnnMatrices add(int arg, const StridedView& view) { return add(arg, view, type_of(arg)); }
  /// Leaves the next one for set(); returns its number.
  std::size_t leave() {
    made_->tensors.emplace_back();
    return made_->tensors.size() - 1;
  }

  using Make = std::shared_ptr<const DnnPlan> (*)(const std::shared_ptr<device::cuda::Context>&,
                                                  const DnnAttentionSpec&, std::string&);
  /// The reason if there is no plan.
  std::string make(Make plan_of, const DnnAttentionSpec& spec) {
    if (!is_aligned_) return kNotAligned;
    std::string declined;
    made_->plan = plan_of(card_of(request_), spec, declined);
    if (made_->plan == nullptr) return declined;
    made_->scratch = static_cast<int>(request_.inputs.size() + request_.outputs.size());
    bytes_ = base::round_up(made_->plan->workspace_bytes(), kAlignment);
    return "";
  }
  /// Scratch for so many floats, after make(), as a tensor that was left or as the next one.
  Word set(std::size_t tensor, std::int64_t floats) {
    const Word at = Word::argument(made_->scratch, bytes_);
    bytes_ += base::round_up(floats * static_cast<std::int64_t>(sizeof(float)), kAlignment);
    made_->tensors[tensor] = at;
    return at;
  }
  void run_before(TextKernel kernel) { made_->before.push_back(std::move(kernel)); }
  void run_after(TextKernel kernel) { made_->after.push_back(std::move(kernel)); }

  /// `products`: of matrices with the scores' sizes, two at a time.
  KernelOffer offer(const DnnAttentionSpec& spec, double products) {
    KernelOffer offer;
    offer.kernel.fn = run;
    offer.kernel.label =
        fmt::format("cuDNN, {} of {}x{}x{}{}", spec.q.dims[0] * spec.q.dims[1], spec.q.dims[2],
                    spec.k.dims[2], spec.q.dims[3], spec.is_causal ? " causal" : "");
    offer.kernel.flops = products * 2 * static_cast<double>(rows_of(spec.q)) *
                         static_cast<double>(spec.k.dims[2] * (spec.q.dims[3] + spec.v.dims[3]));
    offer.kernel.scratch_bytes = bytes_;
    offer.kernel.is_deterministic = spec.is_deterministic;
    offer.kernel.data = std::move(made_);
    return offer;
  }

 private:
  DataType type_of(int arg) const {
    const auto i = static_cast<std::size_t>(arg);
    return i < request_.inputs.size() ? request_.inputs[i].dtype
                                      : request_.outputs[i - request_.inputs.size()].dtype;
  }
  DnnMatrices add(int arg, const StridedView& view, DataType dtype) {
    const std::int64_t offset = view.offset * size_bits(dtype) / 8;
    is_aligned_ = is_aligned_ && offset % kAddressAlignment == 0;
    for (std::size_t i = 0; is_f16(dtype) && i < view.dims.size(); ++i) {
      const bool is_within = view.dims[i] == 1 || view.strides[i] == 1;
      is_aligned_ = is_aligned_ && (is_within || view.strides[i] * 2 % kAddressAlignment == 0);
    }
    made_->tensors.push_back(Word::argument(arg, offset));
    return matrices_of(view, split_, dtype);
  }

  const KernelRequest& request_;
  const opdef::Attention& op_;
  int first_;
  DataType half_;
  Split split_ = {};
  bool is_aligned_ = true;
  std::int64_t bytes_ = 0;  // of scratch
  std::shared_ptr<Library> made_ = std::make_shared<Library>();
};

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

}  // namespace
}  // namespace attention_dnn_cuda

opdef::KernelOffer offer_attention_dnn(const opdef::KernelRequest& request,
                                       const opdef::Attention& op, DataType half) {
  using namespace attention_dnn_cuda;  // NOLINT(google-build-using-namespace)
  Pass pass(request, op, 0, half);
  if (std::string reason = pass.refusal({}); !reason.empty()) {
    return KernelOffer::decline(std::move(reason));
  }
  const auto result = static_cast<int>(request.inputs.size());
  DnnAttentionSpec spec = pass.begin(result);
  pass.add_mask(spec);
  const std::size_t sums = pass.leave();
  if (std::string reason = pass.make(device::cuda::dnn_attention, spec); !reason.empty()) {
    return KernelOffer::decline(std::move(reason));
  }
  const std::int64_t rows = rows_of(spec.q);
  const Word at = pass.set(sums, rows);
  if (request.has_output(1)) {
    pass.run_after(convert(request, "og_stats_of_sums", Word::argument(result + 1), at, rows));
  }
  return pass.offer(spec, 1);
}

opdef::KernelOffer offer_attention_gradient_dnn(const opdef::KernelRequest& request,
                                                const opdef::AttentionGradient& op, DataType half) {
  using namespace attention_dnn_cuda;  // NOLINT(google-build-using-namespace)
  for (std::size_t i = 0; i < 3; ++i) {
    if (!request.has_output(i)) return KernelOffer::decline("a part of the gradient");
  }
  if (request.has_output(3)) return KernelOffer::decline("a gradient of the scores");
  Pass pass(request, op.forward, 3, half);
  if (std::string reason = pass.refusal({&op.dy, &op.dq, &op.dk, &op.dv}); !reason.empty()) {
    return KernelOffer::decline(std::move(reason));
  }
  const auto result = static_cast<int>(request.inputs.size());
  DnnAttentionSpec spec = pass.begin(1);
  spec.dy = pass.add(0, op.dy);
  const std::size_t sums = pass.leave();
  pass.add_mask(spec);
  const std::size_t along = pass.leave();
  spec.dq = pass.add(result, op.dq);
  spec.dk = pass.add(result + 1, op.dk);
  spec.dv = pass.add(result + 2, op.dv);
  const std::optional<std::size_t> added =
      spec.is_deterministic ? std::nullopt : std::optional(pass.leave());
  if (std::string reason = pass.make(device::cuda::dnn_attention_gradient, spec); !reason.empty()) {
    return KernelOffer::decline(std::move(reason));
  }
  const std::int64_t rows = rows_of(spec.q);
  pass.run_before(
      convert(request, "og_sums_of_stats", Word::argument(2), pass.set(sums, rows), rows));
  pass.set(along, rows);
  if (added) {
    const std::int64_t elements = rows * spec.q.dims[3];
    pass.run_before(clear(request, pass.set(*added, elements), elements));
  }
  return pass.offer(spec, 2.5);
}

}  // namespace onnxgrad::ops
