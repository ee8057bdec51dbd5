#include "opdef/kernel.h"

namespace onnxgrad::ops {
namespace {

std::vector<Tensor> run_if(const opdef::DynamicCall& call) {
  const Tensor& condition = call.inputs.at(0);
  if (condition.dtype() != DataType::kBool || condition.num_elements() != 1) {
    throw ShapeError({.what = "the condition has shape " + condition.dims().to_string() +
                              ", expected one truth value",
                      .where = {.node = call.node.name, .op_type = "If"},
                      .hint = "Reduce it to one value, or use Where to choose per element."});
  }
  const char* branch = condition.data<bool>()[0] ? "then_branch" : "else_branch";
  return call.run_subgraph(*std::get<ir::GraphPtr>(*call.node.find_attribute(branch)), {});
}

}  // namespace

void register_if_cpu(opdef::KernelRegistry& registry) { registry.add_dynamic("", "If", run_if); }

}  // namespace onnxgrad::ops
