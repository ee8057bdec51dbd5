#include "runtime/evaluator.h"

#include "base/check.h"
#include "passes/passes.h"
#include "passes/widen_f16.h"
#include "runtime/kernel_selection.h"

namespace onnxgrad::runtime {
namespace {

class NoInference : public ir::TypeInferer {
 public:
  void infer(ir::Node&) const override {}
};

// A graph with only a copy of `node`, whose inputs are constants.
struct SingleNode {
  ir::Graph graph;
  std::vector<ir::Value*> outputs;

  SingleNode(const ir::Node& node, std::span<const Tensor> inputs) {
    std::vector<ir::Value*> values;
    for (const Tensor& tensor : inputs) {
      values.push_back(tensor.is_defined() ? graph.add_initializer("x", tensor) : nullptr);
    }
    ir::Node* copy =
        graph.add_node(node.op_type, values, node.outputs.size(), node.attributes, node.domain);
    copy->name = node.name;
    for (std::size_t i = 0; i < node.outputs.size(); ++i) {
      if (node.outputs[i] == nullptr) {
        copy->outputs[i] = nullptr;
      } else {
        copy->outputs[i]->type = node.outputs[i]->type;
        graph.outputs.push_back(copy->outputs[i]);
      }
    }
    outputs = copy->outputs;
  }
};

std::optional<std::vector<Tensor>> run_kernel(const Engine& engine, const ir::Node& node) {
  for (const ir::Value* output : node.outputs) {
    if (output != nullptr && !output->type.static_dims()) return std::nullopt;
  }
  const opdef::KernelRequest request = make_request(engine, node, 1);
  const auto kernel = select_kernel(engine.on_host(), request);
  if (!kernel) return std::nullopt;
  std::vector<std::byte*> args;
  for (const ir::Value* input : node.inputs) {
    // Kernels only read their inputs.
    args.push_back(input == nullptr ? nullptr : const_cast<std::byte*>(input->initializer.raw()));
  }
  std::vector<Tensor> results;
  for (const opdef::TensorDesc& desc : request.outputs) {
    results.push_back(desc.is_present() ? Tensor::empty(desc.dtype, desc.dims) : Tensor());
    args.push_back(results.back().mutable_raw());
  }
  const auto scratch = base::allocate_aligned(kernel->scratch_bytes);
  args.push_back(scratch.get());
  const opdef::StepCells cells;
  kernel->fn(kernel->data.get(), args.data(), {.stream = nullptr, .cells = &cells});
  return results;
}

// Computes in float32 a node of 16-bit types whose kernels take float32 only.
std::optional<std::vector<Tensor>> run_in_float32(const Engine& engine, const ir::Node& node) {
  if (!passes::touches_f16(node)) return std::nullopt;
  const passes::WidenedNode in_float32(node);
  auto results = run_kernel(engine, in_float32.node());
  for (std::size_t i = 0; results && i < node.outputs.size(); ++i) {
    Tensor& result = (*results)[i];
    if (result.is_defined()) result = result.cast(node.outputs[i]->dtype());
  }
  return results;
}

}  // namespace

std::optional<std::vector<Tensor>> KernelEvaluator::evaluate(const ir::Node& node,
                                                             std::span<const Tensor> inputs) const {
  const opdef::OpDef* def = engine_.ops.find(node);
  if (def == nullptr) return std::nullopt;
  if (const opdef::DynamicFn dynamic = engine_.on_host().dynamic(node.domain, node.op_type)) {
    if (!node.subgraphs().empty()) return std::nullopt;
    return dynamic(
        {.node = node, .inputs = {inputs.begin(), inputs.end()}, .run_subgraph = nullptr});
  }
  if (def->is_view()) {
    const auto dims = node.outputs.at(0)->type.static_dims();
    if (!dims || node.outputs.size() != 1) return std::nullopt;
    return std::vector{inputs[0].reshaped(*dims)};
  }
  SingleNode single(node, inputs);
  if (def->expression != nullptr) {
    const NoInference no_inference;
    passes::PassContext context{engine_.ops, no_inference, *this};
    context.prefers = [this](const ir::Node& fused) {
      return !engine_.on_host().offers(fused.domain, fused.op_type).empty();
    };
    passes::fuse_elementwise(single.graph, context, /*merge=*/false);
  }
  ir::Node& copy = *single.graph.nodes.at(0);
  auto results = run_kernel(engine_, copy);
  return results ? results : run_in_float32(engine_, copy);
}

}  // namespace onnxgrad::runtime
