#include "runtime/device_use.h"

#include <string>

#include "runtime/region.h"
#include "runtime/segments.h"

namespace onnxgrad::runtime {

DeviceUse device_use(const Execution& execution) {
  DeviceUse use;
  const auto* region = dynamic_cast<const Region*>(&execution);
  if (region == nullptr || region->is_on_host()) return use;
  const Plan& plan = region->compiled().plan;
  use.segments = plan.segments;
  use.copied_bytes = transferred_bytes(plan);
  for (const PlanStep& step : plan.steps) {
    if (step.is_on_host) ++use.on_cpu[step.op_type];
  }
  std::size_t at = plan.steps.size();
  for (const DynamicNode& dynamic : region->compiled().dynamic) {
    const ir::Node& node = *dynamic.node;
    ++use.on_cpu[node.op_type];
    for (const ir::Value* input : dynamic.inputs) {
      const auto output = region->compiled().plan_outputs.find(input);
      if (output == region->compiled().plan_outputs.end()) continue;
      const opdef::TensorDesc& desc = plan.outputs[output->second].desc;
      if (desc.dtype != DataType::kString) use.copied_bytes += desc.dims.size_bytes(desc.dtype);
    }
    use.segments.push_back(
        {.kind = Segment::Kind::kHost,
         .begin = at,
         .end = at + 1,
         .reason = node.op_type + (node.name.empty() ? "" : " '" + node.name + "'") + ": " +
                   (dynamic.reason.empty() ? "shapes depend on its values" : dynamic.reason)});
    ++at;
  }
  return use;
}

}  // namespace onnxgrad::runtime
