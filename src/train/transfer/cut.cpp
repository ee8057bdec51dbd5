#include "train/transfer/cut.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "base/check.h"
#include "ir/uses.h"
#include "train/transfer/replace_head.h"

namespace onnxgrad::train {
namespace {

using ir::Node;
using ir::Value;

Value* find_value(const ir::Graph& graph, std::string_view name) {
  if (Value* const value = graph.find(name)) return value;
  for (const Node* node : graph.nodes) {
    if (node->name == name && !name.empty()) return node->output(0);
  }
  std::vector<std::string> names;
  for (const Node* node : graph.nodes) {
    for (const Value* output : node->outputs) {
      if (output != nullptr) names.push_back(output->name);
    }
  }
  throw ModelError(
      {.what = fmt::format("the main graph has no value or node '{}'", base::printable(name)),
       .where = {.value = std::string(name)},
       .hint = base::nearest_or(name, names, "Use the name of an inner value.")});
}

// An output needs a type, which inner values of a file may lack.
void complete_type(Value& value, const ir::Model& working) {
  const Value* inferred = working.graph->find(value.name);
  if (inferred == nullptr || inferred->type.kind == ir::Type::Kind::kUnknown) return;
  if (value.type.kind == ir::Type::Kind::kUnknown || !value.type.has_rank()) {
    value.type = inferred->type;
  }
}

}  // namespace

void cut(ir::Model& file, const ir::Model& working, const std::vector<std::string>& at) {
  ir::Graph& graph = *file.graph;
  std::vector<Value*> outputs;
  for (const std::string& name : at) {
    const bool is_head = name == "head" && graph.find(name) == nullptr;
    Value* const value = is_head ? head_input(file, working) : find_value(graph, name);
    complete_type(*value, working);
    if (std::ranges::find(outputs, value) == outputs.end()) outputs.push_back(value);
  }
  if (outputs.empty()) {
    throw ModelError({.what = "no value is named", .hint = "Name one or more values in at=."});
  }
  graph.outputs = std::move(outputs);
  file.opaque_training_info.clear();  // it is about the whole model
  ir::eliminate_dead_nodes(graph);
  const ir::Uses uses(graph);
  const auto is_unread = [&uses](const Value* value) { return uses.count(value) == 0; };
  std::erase_if(graph.inputs, is_unread);
  std::erase_if(graph.initializers, is_unread);
}

}  // namespace onnxgrad::train
