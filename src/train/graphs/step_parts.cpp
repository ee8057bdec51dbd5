#include "train/graphs/step_parts.h"

#include <algorithm>

#include "ir/naming.h"
#include "ir/uses.h"
#include "train/tools/collectives.h"

namespace onnxgrad::train {
namespace {

using ir::GraphBuilder;
using ir::Value;

// Sum of x * 0: 0 if all elements are finite, else NaN.
Value* write_fault(GraphBuilder& g, Value* x) {
  Value* zeros = g.scale(x, 0);
  return g.cast(x->type.has_rank() && x->type.rank() == 0 ? zeros : g.reduce_sum(zeros, {}, false),
                DataType::kFloat32);
}

}  // namespace

void close_defaults(ir::Graph& graph, const ir::TypeInferer& inferer) {
  const bool may_give_sizes = std::ranges::any_of(graph.inputs, [](const Value* input) {
    return input->is_initializer() && (!is_floating(input->dtype()) || input->type.rank() <= 1);
  });
  ir::close_defaults(graph);
  if (may_give_sizes) onnx_io::infer_types(graph, inferer);
}

void cut_to_outputs(ir::Graph& graph) {
  ir::eliminate_dead_nodes(graph);
  const ir::Uses uses(graph);
  std::erase_if(graph.inputs, [&](const Value* value) { return uses.count(value) == 0; });
  std::erase_if(graph.initializers, [&](const Value* value) { return uses.count(value) == 0; });
}

void cut_around_state(ir::Model& model, std::span<Value* const> kept_inputs) {
  ir::Graph& graph = *model.graph;
  const std::vector<Value*> outputs = graph.outputs;
  for (const auto& [input, output] : model.state) {
    graph.outputs.push_back(output);
    graph.outputs.push_back(input);  // a state that is only written stays an input
  }
  graph.outputs.insert(graph.outputs.end(), kept_inputs.begin(), kept_inputs.end());
  cut_to_outputs(graph);
  graph.outputs = outputs;
}

void guard_update(GraphBuilder& g, Value* loss, std::vector<ir::StateBinding>& state,
                  bool has_workers) {
  g.set_scope("guard");
  Value* fault = write_fault(g, loss);
  for (const auto& [input, output] : state) {
    if (input == output || !is_floating(input->dtype())) continue;
    fault = g.add(fault, write_fault(g, output));
  }
  if (has_workers) fault = add_up(g, fault);  // they decide alike
  Value* is_finite = g.equal(fault, g.scalar_like(fault, 0));
  for (ir::StateBinding& binding : state) {
    if (binding.input == binding.output) continue;
    binding.output = g.where(is_finite, binding.output, binding.input);
  }
  g.set_scope("update");
}

void append_state_outputs(ir::Model& model) {
  for (const ir::StateBinding& binding : model.state) {
    if (binding.output == binding.input) continue;  // held unchanged
    ir::give_name(*model.graph, binding.output, "next/" + binding.input->name);
    model.graph->outputs.push_back(binding.output);
  }
}

}  // namespace onnxgrad::train
