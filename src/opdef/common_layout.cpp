#include "opdef/common_layout.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "opdef/layout_order.h"

namespace onnxgrad::opdef {
namespace {

// Operands of one element have it for all places; they are plain.
bool is_scalar(const TensorDesc& desc) { return desc.dims.num_elements() == 1; }

}  // namespace

Layout common_layout(const KernelRequest& request) {
  const auto first = std::ranges::find_if(request.outputs, &TensorDesc::is_present);
  if (first == request.outputs.end() || is_scalar(*first)) return {};
  const auto has_shape = [&](const TensorDesc& desc) {
    return !desc.is_present() || desc.dims == first->dims;
  };
  if (!std::ranges::all_of(request.outputs, has_shape)) return {};
  std::vector<std::pair<Layout, int>> operands;  // how many have each layout
  for (const TensorDesc& input : request.inputs) {
    if (!input.is_present() || is_scalar(input)) continue;
    if (!has_shape(input)) return {};
    const auto known = std::ranges::find(operands, input.layout, &std::pair<Layout, int>::first);
    if (known == operands.end()) {
      operands.emplace_back(input.layout, 1);
    } else {
      ++known->second;
    }
  }
  std::pair<Layout, int> best;
  for (const auto& [layout, count] : operands) {
    const bool is_preferred = count == best.second && best.first.is_plain();
    if (count > best.second || is_preferred) best = {layout, count};
  }
  return best.first;
}

KernelOffer offer_in_common_layout(const KernelRequest& request, KernelOfferFn offer) {
  const Layout layout = common_layout(request);
  KernelRequest stored = request;
  for (auto* descs : {&stored.inputs, &stored.outputs}) {
    for (TensorDesc& desc : *descs) desc.layout = {};
  }
  if (layout.is_plain()) return offer(stored);
  std::vector<Layout> inputs(request.inputs.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    TensorDesc& desc = stored.inputs[i];
    if (!desc.is_present() || is_scalar(desc)) continue;
    desc.dims = stored_dims(desc.dims, layout);
    stored.constants[i] = nullptr;
    inputs[i] = layout;
  }
  for (TensorDesc& desc : stored.outputs) {
    if (desc.is_present()) desc.dims = stored_dims(desc.dims, layout);
  }
  KernelOffer answer = offer(stored);
  answer.kernel.input_layouts = std::move(inputs);
  answer.kernel.output_layouts.assign(request.outputs.size(), layout);
  return answer;
}

}  // namespace onnxgrad::opdef
