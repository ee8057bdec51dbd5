#include "runtime/kernel_selection.h"

#include <fmt/format.h>

#include "base/check.h"

namespace onnxgrad::runtime {
namespace {

opdef::TensorDesc describe(const ir::Value* value) {
  if (value == nullptr) return {};
  const auto dims = value->type.static_dims();
  ONNXGRAD_ASSERT(dims.has_value());
  return {.dtype = value->dtype(), .dims = *dims};
}

// An offer that finds shapes that do not fit says so; the place is added here.
opdef::KernelOffer ask(const opdef::KernelRegistry::Entry& entry,
                       const opdef::KernelRequest& request) {
  try {
    return entry.offer(request);
  } catch (const ShapeError& error) {
    if (!error.place().node.empty()) throw;
    Problem problem = error.problem();
    problem.where.node = request.node.name;
    problem.where.op_type = request.node.op_type;
    throw ShapeError(std::move(problem));
  }
}

}  // namespace

opdef::KernelRequest make_request(const ir::Node& node, int threads) {
  opdef::KernelRequest request{
      .node = node, .inputs = {}, .outputs = {}, .constants = {}, .threads = threads};
  for (const ir::Value* input : node.inputs) {
    request.inputs.push_back(describe(input));
    request.constants.push_back(input != nullptr && input->is_constant() ? &input->initializer
                                                                         : nullptr);
  }
  for (const ir::Value* output : node.outputs) request.outputs.push_back(describe(output));
  return request;
}

std::optional<opdef::PreparedKernel> select_kernel(const opdef::KernelRegistry& kernels,
                                                   const opdef::KernelRequest& request,
                                                   std::string* reasons) {
  const ir::Node& node = request.node;
  for (const auto& entry : kernels.offers(node.domain, node.op_type)) {
    opdef::KernelOffer offer = ask(entry, request);
    if (offer.kernel.fn != nullptr) return std::move(offer.kernel);
    if (reasons != nullptr && !offer.declined.empty()) {
      *reasons += (reasons->empty() ? "" : "; ") + offer.declined;
    }
  }
  return std::nullopt;
}

void throw_no_kernel(const ir::Node& node, const std::string& reasons) {
  std::string types;
  for (const ir::Value* input : node.inputs) {
    types += (types.empty() ? "" : ", ") + (input == nullptr ? "_" : input->type.to_string());
  }
  throw UnsupportedOperatorError(
      {.what = fmt::format("no kernel runs this operator on ({})", types),
       .where = {.graph = node.graph == nullptr ? "" : node.graph->name,
                 .node = node.name,
                 .op_type = (node.domain.empty() ? "" : node.domain + ".") + node.op_type},
       .detail = reasons.empty() ? "" : "Declined: " + reasons + ".",
       .mend = "Convert the model to float32, or replace the operator."});
}

}  // namespace onnxgrad::runtime
