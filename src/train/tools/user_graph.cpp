#include "train/tools/user_graph.h"

#include <utility>

#include "onnx/model_io.h"
#include "onnx/operator_table.h"
#include "train/tools/engine.h"

namespace onnxgrad::train {

using ir::Value;

void refuse_user_part(const UserPart& part, const std::string& what, const std::string& hint) {
  throw ModelError({.what = part.subject + ": " + what, .detail = part.form, .hint = hint});
}

ir::Model load_user_part(const UserPart& part, const std::shared_ptr<const std::string>& bytes) {
  if (bytes == nullptr) refuse_user_part(part, "there is no model", "Give one.");
  const auto operators = onnx_io::current_operators();
  ir::Model model = to_working_copy(onnx_io::load_bytes(*bytes), operators.get());
  for (const Value* input : model.graph->inputs) {
    if (input->type.is_tensor()) continue;
    refuse_user_part(part, "input '" + input->name + "' is not a tensor", "");
  }
  for (const ir::Node* node : model.graph->nodes) {
    if (node->subgraphs().empty()) continue;
    refuse_user_part(part, node->describe() + " has a subgraph", "Express it with Where, not If.");
  }
  return model;
}

std::vector<const Value*> formal_inputs(const ir::Graph& graph) {
  std::vector<const Value*> inputs;
  for (const Value* value : graph.inputs) {
    if (!value->is_initializer()) inputs.push_back(value);
  }
  return inputs;
}

void check_user_dtype(const UserPart& part, const Value& input, DataType expected,
                      const std::string& of) {
  if (input.type.dtype == expected) return;
  const std::string name(dtype_name(expected));
  refuse_user_part(part,
                   "input '" + input.name + "' is " + std::string(dtype_name(input.type.dtype)) +
                       ", but " + of + " are " + name,
                   "Export its model for " + name + ".");
}

std::vector<Value*> write_user_part(ir::GraphBuilder& g, const ir::Model& model,
                                    std::unordered_map<const Value*, Value*> given) {
  for (const ir::Function& function : model.functions) {
    if (g.model().find_function(function.domain, function.name) == nullptr) {
      g.model().functions.push_back(function);
    }
  }
  for (const Value* value : model.graph->initializers) {
    if (given.contains(value)) continue;
    given.emplace(value, g.constant(value->initializer, value->name));
  }
  for (const ir::Node* node : model.graph->nodes) {
    std::vector<Value*> inputs;
    for (const Value* input : node->inputs) {
      inputs.push_back(input == nullptr ? nullptr : given.at(input));
    }
    const auto outputs =
        g.ops(node->op_type, inputs, node->outputs.size(), node->attributes, node->domain);
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (node->outputs[i] != nullptr) given.emplace(node->outputs[i], outputs[i]);
    }
  }
  std::vector<Value*> results;
  for (const Value* output : model.graph->outputs) results.push_back(given.at(output));
  return results;
}

}  // namespace onnxgrad::train
