#include <fmt/format.h>

#include "ir/builder.h"
#include "onnxgrad/error.h"
#include "ops/control/iteration_cpu.h"
#include "ops/kernel_support.h"

namespace onnxgrad::ops::loop_cpu {
namespace {

constexpr const char* kControls[] = {"trip count", "condition"};

Iteration roles_of(const ir::Node& node, std::size_t num_inputs) {
  Iteration roles{.body = std::get<ir::GraphPtr>(*node.find_attribute("body")).get(),
                  .first_input = 2,
                  .num_states = num_inputs - 2,
                  .is_loop = true};
  roles.stacked.resize(node.outputs.size() - roles.num_states);
  return roles;
}

// Throws: ShapeError if a trip count or condition does not have exactly one element.
void check_control(const ir::Node& node, const Dims& dims, const char* what) {
  if (dims.num_elements() == 1) return;
  throw ShapeError(
      {.what = fmt::format("the {} has shape {}, expected one element", what, dims.to_string()),
       .where = {.node = node.name, .op_type = "Loop"},
       .hint = "Reduce it to one number or boolean."});
}

KernelOffer offer_loop(const KernelRequest& request) {
  for (std::size_t i = 0; i < 2; ++i) {
    if (!request.inputs[i].is_present()) continue;
    check_control(request.node, request.inputs[i].dims, kControls[i]);
  }
  const auto captured = static_cast<std::size_t>(request.node.int_attribute("num_captured"));
  return offer_iteration(request, roles_of(request.node, request.inputs.size() - captured));
}

std::vector<Tensor> run_loop(const DynamicCall& call) {
  for (std::size_t i = 0; i < 2; ++i) {
    if (!call.inputs[i].is_defined()) continue;
    check_control(call.node, call.inputs[i].dims(), kControls[i]);
  }
  return run_iteration(call, roles_of(call.node, call.inputs.size()));
}

}  // namespace

void register_loop_cpu(opdef::KernelRegistry& registry) {
  registry.add(ir::kFusedDomain, "Loop", 0, offer_loop);
  registry.add_dynamic("", "Loop", run_loop);
}

}  // namespace onnxgrad::ops::loop_cpu
