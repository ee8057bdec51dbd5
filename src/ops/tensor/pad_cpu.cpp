#include <algorithm>
#include <array>
#include <cstring>

#include "device/cpu_options.h"
#include "opdef/kernel.h"
#include "ops/kernel_support.h"
#include "ops/tensor/strided_copy_cpu.h"

// Pad. Mode "constant" fills the output and copies the kept elements; the other modes compute, for
// each axis, the input index of each output index.

namespace onnxgrad::ops::pad_cpu {
namespace {

// Pads of all axes (zero if not named).
struct Pads {
  std::vector<std::int64_t> before;
  std::vector<std::int64_t> after;
};

[[noreturn]] void refuse(const KernelRequest& request, std::string what, Hint hint) {
  throw ShapeError({.what = std::move(what),
                    .where = {.node = request.node.name, .op_type = request.node.op_type},
                    .detail = "The input has shape " + request.inputs[0].dims.to_string() + ".",
                    .hint = std::move(hint)});
}

std::optional<Pads> read_pads(const KernelRequest& request) {
  const std::size_t rank = request.inputs[0].dims.rank();
  const auto numbers = planned_ints(request, 1);
  if (!numbers) return std::nullopt;
  std::vector<std::int64_t> axes;
  if (request.has_input(3)) {
    const auto planned = planned_ints(request, 3);
    if (!planned) return std::nullopt;
    axes = *planned;
  } else {
    for (std::size_t i = 0; i < rank; ++i) axes.push_back(static_cast<std::int64_t>(i));
  }
  if (numbers->size() != 2 * axes.size()) {
    refuse(request, "pads and axes do not match", "Give two pads for each axis.");
  }
  Pads pads{std::vector<std::int64_t>(rank, 0), std::vector<std::int64_t>(rank, 0)};
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const auto axis = static_cast<std::size_t>(normalize_axis(axes[i], rank));
    pads.before[axis] = (*numbers)[i];
    pads.after[axis] = (*numbers)[axes.size() + i];
  }
  return pads;
}

struct ConstantData {
  CopyPlan copy;
  std::int64_t element_bytes = 0;
  std::int64_t num_outputs = 0;
  bool has_value = false;
  std::size_t output_arg = 0;
};

void run_constant(const ConstantData& pad, KernelArgs args) {
  std::byte* y = args[pad.output_arg];
  if (pad.has_value && pad.element_bytes <= 8) {
    with_element_type(pad.element_bytes, [&](auto element) {
      std::memcpy(&element, args[2], sizeof(element));
      std::fill_n(reinterpret_cast<decltype(element)*>(y), pad.num_outputs, element);
    });
  } else {
    std::memset(y, 0, static_cast<std::size_t>(pad.num_outputs * pad.element_bytes));
  }
  run_copy(pad.copy, args[0], y);
}

KernelOffer offer_constant(const KernelRequest& request, const Pads& pads, std::int64_t bytes) {
  const Dims& from = request.inputs[0].dims;
  const Dims& to = request.outputs[0].dims;
  const std::vector<std::int64_t> to_strides = dense_strides(to.values());
  CopyRequest copy{.element_bytes = bytes, .source_strides = dense_strides(from.values())};
  copy.target_strides = to_strides;
  for (std::size_t i = 0; i < from.rank(); ++i) {
    const std::int64_t cropped = std::max<std::int64_t>(-pads.before[i], 0);
    const std::int64_t cut = std::max<std::int64_t>(-pads.after[i], 0);
    copy.sizes.push_back(std::max<std::int64_t>(from[i] - cropped - cut, 0));
    copy.source_offset += cropped * copy.source_strides[i];
    copy.target_offset += std::max<std::int64_t>(pads.before[i], 0) * to_strides[i];
  }
  const bool has_value = request.has_input(2);
  if (has_value && bytes > 8) return decline_dtype(request, request.inputs[0].dtype);
  return prepared<run_constant>(
      ConstantData{.copy = plan_copy(copy, device::isa_of(request), request.threads),
                   .element_bytes = bytes,
                   .num_outputs = to.num_elements(),
                   .has_value = has_value,
                   .output_arg = request.inputs.size()},
      "strided copy");
}

// Returns the input index of output index `i`, counted from the first kept one, so negative in the
// padding.
std::int64_t origin(const std::string& mode, std::int64_t i, std::int64_t dim) {
  if (mode == "edge") return std::clamp<std::int64_t>(i, 0, dim - 1);
  if (mode == "wrap") return ((i % dim) + dim) % dim;
  const std::int64_t period = std::max<std::int64_t>(2 * (dim - 1), 1);  // mode "reflect"
  const std::int64_t phase = ((i % period) + period) % period;
  return phase < dim ? phase : period - phase;
}

struct MappedData {
  std::vector<std::vector<std::int64_t>> origins;  // per axis: byte offsets of the input
  std::int64_t element_bytes = 0;
  std::size_t output_arg = 0;
};

template <class T>
void run_mapped(const MappedData& pad, KernelArgs args) {
  const std::size_t outer = pad.origins.size() - 1;
  const std::vector<std::int64_t>& row = pad.origins.back();
  auto* y = args.at<T>(pad.output_arg);
  for (const auto& axis : pad.origins) {
    if (axis.empty()) return;
  }
  std::array<std::size_t, Dims::kMaxRank> position;
  std::fill_n(position.begin(), outer, 0);
  while (true) {
    const std::byte* base = args[0];
    for (std::size_t i = 0; i < outer; ++i) base += pad.origins[i][position[i]];
    for (const std::int64_t offset : row) std::memcpy(y++, base + offset, sizeof(T));
    std::size_t axis = outer;
    while (axis > 0 && ++position[axis - 1] == pad.origins[axis - 1].size()) {
      position[axis - 1] = 0;
      --axis;
    }
    if (axis == 0) return;
  }
}

KernelOffer offer_mapped(const KernelRequest& request, const Pads& pads, std::int64_t bytes) {
  const std::string mode = request.node.string_attribute("mode");
  const Dims& from = request.inputs[0].dims;
  const Dims& to = request.outputs[0].dims;
  const std::vector<std::int64_t> strides = dense_strides(from.values());
  MappedData data{.origins = {}, .element_bytes = bytes, .output_arg = request.inputs.size()};
  const bool is_empty = to.num_elements() == 0;  // its axes may have any size
  if (is_empty) data.origins.emplace_back();
  for (std::size_t i = 0; i < from.rank() && !is_empty; ++i) {
    if (from[i] == 0 && to[i] > 0) {
      refuse(request, "nothing to " + mode + " along an empty axis",
             "Give a non-empty input, or use mode 'constant'.");
    }
    std::vector<std::int64_t> origins;
    for (std::int64_t k = 0; k < to[i]; ++k) {
      origins.push_back(origin(mode, k - pads.before[i], from[i]) * strides[i] * bytes);
    }
    data.origins.push_back(std::move(origins));
  }
  if (data.origins.empty()) data.origins.push_back({0});
  opdef::KernelFn fn = nullptr;
  if (bytes == 1) fn = kKernel<run_mapped<std::uint8_t>>;
  if (bytes == 2) fn = kKernel<run_mapped<std::uint16_t>>;
  if (bytes == 4) fn = kKernel<run_mapped<std::uint32_t>>;
  if (bytes == 8) fn = kKernel<run_mapped<std::uint64_t>>;
  if (fn == nullptr) return decline_dtype(request, request.inputs[0].dtype);
  return prepared(fn, std::move(data), "mapped copy");
}

KernelOffer offer_pad(const KernelRequest& request) {
  const std::int64_t bytes = element_bytes(request.inputs[0].dtype);
  if (bytes == 0) return decline_dtype(request, request.inputs[0].dtype);
  const auto pads = read_pads(request);
  if (!pads) return KernelOffer::decline("the pads are not known before the step runs");
  // Checks the pads before any arithmetic: no pad exceeds the larger of input and output size.
  const Dims& from = request.inputs[0].dims;
  const Dims& to = request.outputs[0].dims;
  for (std::size_t i = 0; i < from.rank(); ++i) {
    const std::int64_t limit = std::max(from[i], to[i]);
    const auto is_bounded = [&](std::int64_t pad) { return pad >= -limit && pad <= limit; };
    if (!is_bounded(pads->before[i]) || !is_bounded(pads->after[i]) ||
        from[i] + pads->before[i] + pads->after[i] != to[i]) {
      refuse(request, "a pad removes more elements than the axis has",
             "Use pads that do not remove more than the whole axis.");
    }
  }
  return request.node.string_attribute("mode") == "constant" ? offer_constant(request, *pads, bytes)
                                                             : offer_mapped(request, *pads, bytes);
}

}  // namespace

void register_pad_cpu(opdef::KernelRegistry& registry) { registry.add("", "Pad", 0, offer_pad); }

}  // namespace onnxgrad::ops::pad_cpu
