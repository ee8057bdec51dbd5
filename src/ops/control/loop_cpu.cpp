#include "ir/builder.h"
#include "ops/control/iteration_cpu.h"

namespace onnxgrad::ops::loop_cpu {
namespace {

Iteration roles_of(const ir::Node& node, std::size_t num_inputs) {
  Iteration roles{.body = std::get<ir::GraphPtr>(*node.find_attribute("body")).get(),
                  .first_input = 2,
                  .num_states = num_inputs - 2,
                  .is_loop = true};
  roles.stacked.resize(node.outputs.size() - roles.num_states);
  return roles;
}

opdef::KernelOffer offer_loop(const opdef::KernelRequest& request) {
  const auto captured = static_cast<std::size_t>(request.node.int_attribute("num_captured"));
  return offer_iteration(request, roles_of(request.node, request.inputs.size() - captured));
}

std::vector<Tensor> run_loop(const opdef::DynamicCall& call) {
  return run_iteration(call, roles_of(call.node, call.inputs.size()));
}

}  // namespace

void register_loop_cpu(opdef::KernelRegistry& registry) {
  registry.add(ir::kFusedDomain, "Loop", 0, offer_loop);
  registry.add_dynamic("", "Loop", run_loop);
}

}  // namespace onnxgrad::ops::loop_cpu
