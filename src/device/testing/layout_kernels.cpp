#include "device/testing/layout_kernels.h"

#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/rounding.h"
#include "device/testing/simulated_device.h"
#include "ir/builder.h"
#include "opdef/activation.h"
#include "opdef/common_layout.h"
#include "opdef/conv_chain.h"
#include "opdef/conv_update.h"
#include "opdef/fused.h"
#include "opdef/fused_normalization.h"
#include "opdef/layout_order.h"

namespace onnxgrad::device::testing {
namespace {

using opdef::KernelArgs;
using opdef::KernelOffer;
using opdef::KernelRequest;
using opdef::Layout;
using opdef::TensorDesc;

constexpr std::int64_t kAlignment = 64;

// The CPU's kernels, which the first call gives.
const opdef::KernelRegistry& cpu_kernels(const opdef::KernelRegistry* cpu = nullptr) {
  static const opdef::KernelRegistry kept = *cpu;
  return kept;
}

KernelOffer offer_of_cpu(const KernelRequest& request) {
  std::string reasons;
  for (const auto& entry : cpu_kernels().offers(request.node.domain, request.node.op_type)) {
    KernelOffer offer = entry.offer(request);
    if (offer.kernel.fn != nullptr) return offer;
    reasons += (reasons.empty() ? "" : "; ") + offer.declined;
  }
  return KernelOffer::decline(reasons);
}

// An operand that is converted.
struct Converted {
  std::size_t arg = 0;
  Dims dims;
  Layout layout;
  std::int64_t element_bytes = 0;
  std::int64_t at = 0;  // in the scratch
};

// A kernel in plain order and what is converted around it.
struct Wrapped {
  opdef::PreparedKernel plain;
  std::vector<Converted> inputs;
  std::vector<Converted> outputs;
  std::size_t num_args = 0;
  std::int64_t plain_scratch = 0;  // place of its scratch
};

void move_elements(const Converted& operand, const std::byte* from, bool from_layout,
                   std::byte* to) {
  const auto size = static_cast<std::size_t>(operand.element_bytes);
  for (std::int64_t i = 0; i < operand.dims.num_elements(); ++i) {
    const std::int64_t stored = opdef::stored_offset(i, operand.dims, operand.layout);
    std::memcpy(to + (from_layout ? i : stored) * operand.element_bytes,
                from + (from_layout ? stored : i) * operand.element_bytes, size);
  }
}

void run_wrapped(const void* data, KernelArgs args, const opdef::Launch& launch) {
  const auto& kernel = *static_cast<const Wrapped*>(data);
  std::byte* scratch = args[kernel.num_args - 1];
  std::vector<std::byte*> own;
  for (std::size_t i = 0; i < kernel.num_args; ++i) own.push_back(args[i]);
  own.back() = scratch + kernel.plain_scratch;
  for (const Converted& input : kernel.inputs) {
    own[input.arg] = scratch + input.at;
    move_elements(input, args[input.arg], true, own[input.arg]);
  }
  for (const Converted& output : kernel.outputs) own[output.arg] = scratch + output.at;
  kernel.plain.fn(kernel.plain.data.get(), own.data(), launch);
  for (const Converted& output : kernel.outputs) {
    move_elements(output, own[output.arg], false, args[output.arg]);
  }
}

bool is_image(const TensorDesc& desc) {
  return desc.is_present() && desc.dims.rank() >= 3 && desc.dims.num_elements() > 0 &&
         desc.dtype != DataType::kString && Dims{8}.size_bytes(desc.dtype) >= 8;
}

bool is_elementwise(const ir::Node& node) {
  if (!opdef::is_fused(&node, opdef::kElementwise)) return true;  // Activation
  const auto op = opdef::Elementwise::read(node);
  return op.folds.empty() && !op.post;
}

Layout channels_last(const KernelRequest& /*request*/, std::size_t /*i*/) {
  return {.kind = Layout::Kind::kChannelsLast};
}

}  // namespace

KernelOffer offer_in_layouts(const KernelRequest& request, LayoutWish wish) {
  KernelRequest inner = request;
  for (auto* descs : {&inner.inputs, &inner.outputs}) {
    for (TensorDesc& desc : *descs) desc.layout = {};
  }
  KernelOffer offer = offer_of_cpu(inner);
  if (offer.kernel.fn == nullptr) return offer;
  auto wrapped = std::make_shared<Wrapped>();
  opdef::PreparedKernel kernel = offer.kernel;
  wrapped->plain = std::move(offer.kernel);
  wrapped->num_args = request.inputs.size() + request.outputs.size() + 1;
  std::int64_t scratch = 0;
  const auto allocate = [&](std::int64_t bytes) {
    return std::exchange(scratch, scratch + base::round_up(bytes, kAlignment));
  };
  wrapped->plain_scratch = allocate(wrapped->plain.scratch_bytes);
  const auto add = [&](const std::vector<TensorDesc>& descs, std::size_t first,
                       std::vector<Layout>& layouts, std::vector<Converted>& converted) {
    for (std::size_t i = 0; i < descs.size(); ++i) {
      const TensorDesc& desc = descs[i];
      const Layout layout =
          is_image(desc) ? opdef::simplest(wish(request, first + i), desc.dims) : Layout{};
      layouts.push_back(layout);
      if (layout.is_plain()) continue;
      converted.push_back({.arg = first + i,
                           .dims = desc.dims,
                           .layout = layout,
                           .element_bytes = Dims{1}.size_bytes(desc.dtype),
                           .at = allocate(desc.dims.size_bytes(desc.dtype))});
    }
  };
  add(request.inputs, 0, kernel.input_layouts, wrapped->inputs);
  add(request.outputs, request.inputs.size(), kernel.output_layouts, wrapped->outputs);
  kernel.fn = run_wrapped;
  kernel.data = std::move(wrapped);
  kernel.scratch_bytes = scratch;
  kernel.in_place.clear();
  return {.kernel = std::move(kernel), .declined = {}};
}

KernelOffer offer_common_or_plain(const KernelRequest& request) {
  if (is_elementwise(request.node)) return opdef::offer_in_common_layout(request, offer_of_cpu);
  return offer_of_cpu(request);
}

void add_layout_offers(const opdef::KernelRegistry& cpu, opdef::KernelRegistry& own,
                       opdef::KernelOfferFn images) {
  constexpr int kBeforeTheCpu = 1000;
  cpu_kernels(&cpu);
  for (const std::string_view op_type : {"AveragePool", "BatchNormalization", "Conv",
                                         "ConvTranspose", "GlobalAveragePool", "MaxPool"}) {
    own.add("", op_type, kBeforeTheCpu, images);
  }
  for (const std::string_view op_type :
       {opdef::kAveragePoolGrad, opdef::kMaxPoolGrad, std::string_view("BatchNormalizationGrad"),
        std::string_view("ConvInputGrad"), std::string_view("ConvWeightGrad")}) {
    own.add(ir::kFunctionDomain, op_type, kBeforeTheCpu, images);
  }
  for (const std::string_view op_type :
       {opdef::kAveragePoolGrad, opdef::kMaxPoolGrad, std::string_view("Conv"), opdef::kConvChain,
        opdef::kConvDescent, opdef::kConvWeightUpdate, opdef::kFusedNormalization,
        opdef::kFusedNormalizationGrad}) {
    own.add(ir::kFusedDomain, op_type, kBeforeTheCpu, images);
  }
  for (const std::string_view op_type :
       {opdef::kElementwise, opdef::kActivation, opdef::kActivationGradient}) {
    own.add(ir::kFusedDomain, op_type, kBeforeTheCpu, offer_common_or_plain);
  }
}

const DevicePlugin& channels_last_plugin() {
  static const DevicePlugin plugin = [] {
    DevicePlugin changed = simulated_plugin();
    changed.name = "simulated_channels_last";
    changed.register_kernels = [](const opdef::KernelRegistry& cpu, opdef::KernelRegistry& own) {
      simulated_plugin().register_kernels(cpu, own);
      add_layout_kernels<channels_last>(cpu, own);
    };
    return changed;
  }();
  return plugin;
}

}  // namespace onnxgrad::device::testing
