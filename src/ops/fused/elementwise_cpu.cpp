#include "device/cpu/elementwise.h"

#include "ir/builder.h"
#include "opdef/kernel.h"

// onnxgrad.fused.Elementwise. Inputs: the operands of `program`, then those of `post`. Attributes:
//   program, post   ExprProgram::to_ints
//   compute         DataType of the computation: float32, float64 or int64
//   stored          number of results that are stored (default: those that are not reduced)
//   reduce          one of 0 sum, 1 max, 2 min for each of the other results
//   reduce_axes     axes of the operands' common shape
//   flush_denormals 1: numbers below the smallest normal one may be taken for and become zero

namespace onnxgrad::ops {
namespace {

opdef::KernelOffer offer_elementwise(const opdef::KernelRequest& request) {
  const ir::Node& node = request.node;
  device::ElementwiseSpec spec{
      .program = opdef::ExprProgram::from_ints(node.ints_attribute("program")),
      .compute = static_cast<DataType>(
          node.int_attribute("compute", static_cast<std::int64_t>(DataType::kFloat32))),
      .inputs = request.inputs,
      .outputs = request.outputs,
      .reduce_axes = node.ints_attribute("reduce_axes"),
      .threads = request.threads,
      .flush_denormals = node.int_attribute("flush_denormals", 0) != 0};
  for (const std::int64_t fold : node.ints_attribute("reduce")) {
    spec.folds.push_back(static_cast<device::Fold>(fold));
  }
  const auto results = static_cast<std::int64_t>(spec.program.results.size());
  const auto folded = static_cast<std::int64_t>(spec.folds.size());
  spec.stored = node.int_attribute("stored", results - folded);
  if (const auto post = node.ints_attribute("post"); !post.empty()) {
    spec.post = opdef::ExprProgram::from_ints(post);
  }
  return device::prepare_elementwise(spec);
}

}  // namespace

void register_elementwise_cpu(opdef::KernelRegistry& registry) {
  registry.add(ir::kFusedDomain, "Elementwise", 1, offer_elementwise);
}

}  // namespace onnxgrad::ops
