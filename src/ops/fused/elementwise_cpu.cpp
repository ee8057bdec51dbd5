#include "device/cpu/elementwise.h"

#include "device/cpu_options.h"
#include "ir/builder.h"
#include "opdef/fused.h"
#include "ops/candidate_cpu.h"
#include "ops/kernel_support.h"

namespace onnxgrad::ops::elementwise_cpu {
namespace {

KernelOffer offer_elementwise(const KernelRequest& request) {
  // The groups of passes are of types that some kernel here computes.
  if (request.is_candidate) return accept_candidate();
  auto op = opdef::Elementwise::read(request.node);
  std::vector<device::Fold> folds;
  for (const opdef::Fold fold : op.folds) folds.push_back(static_cast<device::Fold>(fold));
  return device::prepare_elementwise({.program = std::move(op.program),
                                      .compute = op.compute,
                                      .inputs = request.inputs,
                                      .outputs = request.outputs,
                                      .stored = op.stored,
                                      .folds = std::move(folds),
                                      .reduce_axes = std::move(op.reduce_axes),
                                      .post = std::move(op.post),
                                      .threads = request.threads,
                                      .isa = device::isa_of(request),
                                      .flush_denormals = op.flush_denormals});
}

}  // namespace

void register_elementwise_cpu(opdef::KernelRegistry& registry) {
  registry.add(ir::kFusedDomain, opdef::kElementwise, 1, offer_elementwise);
}

}  // namespace onnxgrad::ops::elementwise_cpu
