#include <algorithm>
#include <array>
#include <memory>
#include <string>

#include "base/memory_budget.h"
#include "device/cpu/scratch_layout.h"
#include "ir/builder.h"
#include "opdef/body.h"
#include "opdef/kernel.h"
#include "ops/kernel_support.h"

namespace onnxgrad::ops::if_cpu {
namespace {

using device::ScratchArray;
using device::ScratchLayout;
using opdef::Slice;

constexpr std::int64_t kDeviceUnit = 256;  // bytes that arrays on a device are rounded up to
constexpr std::array<const char*, 2> kBranches = {"else_branch", "then_branch"};

const ir::Graph& branch_of(const ir::Node& node, bool taken) {
  return *std::get<ir::GraphPtr>(*node.find_attribute(kBranches.at(taken ? 1 : 0)));
}

// Two bodies with the same inputs and outputs.
struct IfKernel {
  std::array<std::shared_ptr<const opdef::CompiledBody>, 2> branches = {};
  std::size_t num_inputs = 0;  // inputs of the bodies; the condition comes before them
  ScratchArray<Slice> inputs = {};
  ScratchArray<Slice> outputs = {};
  std::vector<ScratchArray<std::byte>> unread = {};  // per output; reserved if it is not read
  ScratchArray<std::byte> workspace = {};
  bool submits = false;           // the arguments are addresses of a device
  std::int64_t tables_bytes = 0;  // of tables that are not in the scratch
};

void run_branch(const IfKernel& kernel, KernelArgs args, const Launch& launch) {
  const std::size_t first_output = 1 + kernel.num_inputs;
  std::byte* scratch = args[first_output + kernel.unread.size()];
  std::shared_ptr<std::byte> on_host;
  if (kernel.submits) on_host = base::allocate_uncharged(kernel.tables_bytes);
  std::byte* const tables = on_host ? on_host.get() : scratch;
  Slice* inputs = kernel.inputs.in(tables);
  Slice* outputs = kernel.outputs.in(tables);
  for (std::size_t i = 0; i < kernel.num_inputs; ++i) inputs[i] = {.at = args[1 + i]};
  for (std::size_t i = 0; i < kernel.unread.size(); ++i) {
    const ScratchArray<std::byte> unread = kernel.unread[i];
    outputs[i] = {.at = unread ? unread.in(scratch) : args[first_output + i]};
  }
  std::byte condition{};
  kernel.branches[0]->read(&condition, args[0], 1, launch);
  const bool taken = condition != std::byte{0};  // a feed may have other bytes than 0 and 1
  kernel.branches.at(taken ? 1 : 0)
      ->run({.inputs = inputs, .outputs = outputs, .workspace = kernel.workspace.in(scratch)},
            launch);
}

KernelOffer offer_if(const KernelRequest& request) {
  if (request.bodies == nullptr) return KernelOffer::decline("no branch can be compiled here");
  if (request.inputs[0].dtype != DataType::kBool || request.inputs[0].dims.num_elements() != 1) {
    return KernelOffer::decline("the condition is not one boolean");
  }
  IfKernel kernel{.num_inputs = request.inputs.size() - 1, .submits = request.bodies->submits()};
  std::int64_t workspace = 0;
  double flops = 0;
  bool may_throw = false;
  for (const bool taken : {false, true}) {
    std::string reason;
    const auto body = request.bodies->compile(branch_of(request.node, taken),
                                              std::span(request.inputs).subspan(1), {}, reason);
    if (body == nullptr) return KernelOffer::decline(std::move(reason));
    for (std::size_t i = 0; i < request.outputs.size(); ++i) {
      const TensorDesc& wanted = request.outputs[i];
      const TensorDesc& given = body->outputs().at(i);
      if (wanted.is_present() && (wanted.dtype != given.dtype || wanted.dims != given.dims)) {
        return KernelOffer::decline("its branches return different shapes");
      }
    }
    const std::int64_t own = body->workspace_bytes();
    workspace = std::max(workspace, kernel.submits ? device::round_up(own, kDeviceUnit) : own);
    flops = std::max(flops, body->flops());
    may_throw = may_throw || body->may_throw();
    kernel.branches.at(taken ? 1 : 0) = body;
  }
  ScratchLayout scratch;
  kernel.workspace = scratch.reserve<std::byte>(workspace);
  for (std::size_t i = 0; i < request.outputs.size(); ++i) {
    ScratchArray<std::byte>& unread = kernel.unread.emplace_back();
    if (request.outputs[i].is_present()) continue;
    std::int64_t bytes = 0;
    for (const auto& branch : kernel.branches) {
      const TensorDesc& given = branch->outputs()[i];
      bytes = std::max(bytes, given.dims.size_bytes(given.dtype));
    }
    unread =
        scratch.reserve<std::byte>(kernel.submits ? device::round_up(bytes, kDeviceUnit) : bytes);
  }
  const bool submits = kernel.submits;
  ScratchLayout on_host;
  ScratchLayout& tables = submits ? on_host : scratch;
  kernel.inputs = tables.reserve<Slice>(std::ssize(request.inputs) - 1);
  kernel.outputs = tables.reserve<Slice>(std::ssize(request.outputs));
  kernel.tables_bytes = on_host.size_bytes();
  KernelOffer offer = prepared<run_branch>(std::move(kernel), "branches");
  if (submits) offer.kernel.not_recordable = "the host reads its condition";
  offer.kernel.scratch_bytes = scratch.size_bytes();
  offer.kernel.flops = flops;
  if (may_throw) offer.kernel.checks.emplace_back();
  return offer;
}

std::vector<Tensor> run_if(const DynamicCall& call) {
  const Tensor& condition = call.inputs.at(0);
  if (condition.dtype() != DataType::kBool || condition.num_elements() != 1) {
    throw ShapeError({.what = "the condition has shape " + condition.dims().to_string() +
                              ", expected a single bool",
                      .where = {.node = call.node.name, .op_type = "If"},
                      .hint = "Reduce it to one value, or use Where for one choice per element."});
  }
  return call.run_subgraph(branch_of(call.node, condition.raw()[0] != std::byte{0}), {});
}

}  // namespace

void register_if_cpu(opdef::KernelRegistry& registry) {
  registry.add(ir::kFusedDomain, "If", 0, offer_if);
  registry.add_dynamic("", "If", run_if);
}

}  // namespace onnxgrad::ops::if_cpu
