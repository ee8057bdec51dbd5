#include "ir/builder.h"
#include "ops/control/iteration_cpu.h"
#include "ops/kernel_support.h"

namespace onnxgrad::ops::scan_cpu {
namespace {

std::vector<ScannedOperand> operands_of(const ir::Node& node, const char* axes,
                                        const char* directions, std::size_t count) {
  const std::vector<std::int64_t> axis = node.ints_attribute(axes);
  const std::vector<std::int64_t> direction = node.ints_attribute(directions);
  std::vector<ScannedOperand> operands(count);
  for (std::size_t i = 0; i < count; ++i) {
    if (i < axis.size()) operands[i].axis = axis[i];
    if (i < direction.size()) operands[i].backward = direction[i] == 1;
  }
  return operands;
}

Iteration roles_of(const ir::Node& node, std::size_t num_inputs) {
  const auto num_scanned = static_cast<std::size_t>(node.int_attribute("num_scan_inputs"));
  Iteration roles{.body = std::get<ir::GraphPtr>(*node.find_attribute("body")).get(),
                  .num_states = num_inputs - num_scanned};
  roles.scanned = operands_of(node, "scan_input_axes", "scan_input_directions", num_scanned);
  roles.stacked = operands_of(node, "scan_output_axes", "scan_output_directions",
                              node.outputs.size() - roles.num_states);
  return roles;
}

KernelOffer offer_scan(const KernelRequest& request) {
  const auto captured = static_cast<std::size_t>(request.node.int_attribute("num_captured"));
  return offer_iteration(request, roles_of(request.node, request.inputs.size() - captured));
}

std::vector<Tensor> run_scan(const DynamicCall& call) {
  return run_iteration(call, roles_of(call.node, call.inputs.size()));
}

}  // namespace

void register_scan_cpu(opdef::KernelRegistry& registry) {
  registry.add(ir::kFusedDomain, "Scan", 0, offer_scan);
  registry.add_dynamic("", "Scan", run_scan);
}

}  // namespace onnxgrad::ops::scan_cpu
