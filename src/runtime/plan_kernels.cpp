#include "runtime/plan_kernels.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "device/host_threads.h"
#include "onnxgrad/error.h"

namespace onnxgrad::runtime {
namespace {

void check_view(const ir::Node& node) {
  const Dims from = node.inputs[0]->type.fixed_dims();
  const Dims to = node.outputs[0]->type.fixed_dims();
  if (from.num_elements() == to.num_elements() &&
      node.inputs[0]->dtype() == node.outputs[0]->dtype()) {
    return;
  }
  throw ShapeError(
      {.what =
           fmt::format("shape {} cannot be reshaped to {}: {} elements instead of {}",
                       from.to_string(), to.to_string(), from.num_elements(), to.num_elements()),
       .where = {.node = node.name, .op_type = node.op_type},
       .hint = "Give an input of the size that the model reshapes, or export it with -1 "
               "instead of a fixed batch."});
}

}  // namespace

PlanKernels::PlanKernels(const ir::Graph& graph, const ViewRoots& roots, const Layouts& layouts,
                         const Engine& engine, int threads, bool keeps_constants,
                         const opdef::BodyCompiler* bodies, opdef::PackedConstants* packed)
    : layouts_(layouts),
      engine_(engine),
      most_threads_(threads),
      threads_(threads),
      keeps_constants_(keeps_constants),
      bodies_(bodies),
      packed_(packed),
      chosen_(graph.nodes.size()) {
  for (const ir::Node* node : graph.nodes) {
    if (roots.is_view(node)) {
      check_view(*node);
    } else {
      choose(*node);
    }
  }
  // A plan on fewer threads may have kernels that cost less, and so on.
  for (int useful = useful_threads(); useful < threads_; useful = useful_threads()) {
    threads_ = useful;
    cost_ns_ = 0;
    for (const ir::Node* node : graph.nodes) {
      if (!roots.is_view(node)) choose_again(*node);
    }
  }
}

int PlanKernels::useful_threads() const {
  return device::threads_of_plan(engine_.device, cost_ns_, threads_);
}

// Kernels that count their operations get as many threads as these are worth; others choose.
void PlanKernels::choose(const ir::Node& node) {
  opdef::KernelRequest request = make_request(engine_, node, threads_, bodies_);
  request.keeps_constants = keeps_constants_;
  request.packed = packed_;
  layouts_.describe(request);
  Chosen& chosen = chosen_[&node];
  chosen = prepare(request);
  const bool is_on_host = chosen.selected.is_on_host;
  if (is_on_host && !engine_.device.uses_host_threads() && threads_ < most_threads_) {
    request.threads = most_threads_;  // the device needs none of them
    chosen = prepare(request);
  }
  if (chosen.selected.kernel.flops > 0) {
    const device::Device& processor = is_on_host ? device::cpu() : engine_.device;
    const int most = request.threads;
    request.threads = device::threads_of_kernel(processor, chosen.cost_ns, most);
    if (request.threads < most) chosen = prepare(request);
  }
  cost_ns_ += chosen.cost_ns;
}

// On fewer threads than before. How many operations are worth depends on nothing else.
void PlanKernels::choose_again(const ir::Node& node) {
  const Chosen& chosen = *chosen_.find(&node);
  if (chosen.selected.kernel.flops > 0 && chosen.threads <= threads_) {
    cost_ns_ += chosen.cost_ns;
  } else {
    choose(node);
  }
}

PlanKernels::Chosen PlanKernels::prepare(const opdef::KernelRequest& request) const {
  std::string reasons;
  auto selected = select_kernel(engine_, request, &reasons);
  if (!selected) throw_no_kernel(request.node, reasons);
  Layouts::check(request, selected->kernel);
  const double cost_ns = estimate_ns(request, selected->kernel);
  return {.selected = *std::move(selected), .cost_ns = cost_ns, .threads = request.threads};
}

}  // namespace onnxgrad::runtime
