#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <unordered_map>
#include <vector>

#include "passes/passes.h"

namespace onnxgrad::passes {
namespace {

constexpr std::int64_t kMaxComparedBytes = 4096;

std::string tensor_key(const Tensor& tensor) {
  std::string key =
      fmt::format("{}{}", static_cast<int>(tensor.dtype()), tensor.dims().to_string());
  key.append(reinterpret_cast<const char*>(tensor.raw()),
             static_cast<std::size_t>(tensor.size_bytes()));
  return key;
}

// Appends the attribute's bytes; false for what is not compared (graphs, large tensors, ...).
bool append_key(const ir::AttributeValue& value, std::string& key) {
  if (const auto* i = std::get_if<std::int64_t>(&value)) {
    key += fmt::format("i{}", *i);
  } else if (const auto* f = std::get_if<float>(&value)) {
    key += fmt::format("f{:a}", *f);
  } else if (const auto* s = std::get_if<std::string>(&value)) {
    key += fmt::format("s{}:{}", s->size(), *s);
  } else if (const auto* ints = std::get_if<std::vector<std::int64_t>>(&value)) {
    key += fmt::format("I{}", fmt::join(*ints, ","));
  } else if (const auto* floats = std::get_if<std::vector<float>>(&value)) {
    key += fmt::format("F{:a}", fmt::join(*floats, ","));
  } else if (const auto* tensor = std::get_if<Tensor>(&value)) {
    if (tensor->dtype() == DataType::kString || tensor->size_bytes() > kMaxComparedBytes)
      return false;
    key += "t" + tensor_key(*tensor);
  } else {
    return false;
  }
  return true;
}

// Empty: this node is not merged.
std::string node_key(const ir::Node& node, const opdef::OpDef* def) {
  if (def == nullptr || def->is_random || !node.subgraphs().empty()) return "";
  std::string key = fmt::format("{}.{}/{}", node.domain, node.op_type, node.outputs.size());
  for (const ir::Value* input : node.inputs)
    key += fmt::format(" {}", static_cast<const void*>(input));
  std::vector<const ir::Attribute*> attributes;
  for (const ir::Attribute& attribute : node.attributes) attributes.push_back(&attribute);
  std::ranges::sort(attributes, {}, &ir::Attribute::name);
  for (const ir::Attribute* attribute : attributes) {
    key += " " + attribute->name + "=";
    if (!append_key(attribute->value, key)) return "";
  }
  for (const ir::Value* output : node.outputs) key += output == nullptr ? " _" : " o";
  return key;
}

}  // namespace

bool merge_common_subexpressions(ir::Graph& graph, const PassContext& context) {
  std::unordered_map<std::string, ir::Value*> constants;
  std::unordered_map<const ir::Value*, ir::Value*> replaced;
  for (ir::Value* value : graph.initializers) {
    const Tensor& tensor = value->initializer;
    if (!value->is_constant() || tensor.dtype() == DataType::kString ||
        tensor.size_bytes() > kMaxComparedBytes) {
      continue;
    }
    const auto [entry, is_new] = constants.emplace(tensor_key(tensor), value);
    if (!is_new) replaced.emplace(value, entry->second);
  }
  ir::replace_uses(graph, replaced);
  bool changed = !replaced.empty();
  if (changed) {
    std::erase_if(graph.initializers, [&](const ir::Value* v) { return replaced.contains(v); });
  }

  std::unordered_map<std::string, ir::Node*> known;
  std::unordered_map<const ir::Value*, ir::Value*> merged;
  std::vector<ir::Node*> kept;
  for (ir::Node* node : graph.nodes) {
    for (ir::Value*& input : node->inputs) {
      if (const auto found = merged.find(input); found != merged.end()) input = found->second;
    }
    const std::string key = node_key(*node, context.ops.find(*node));
    ir::Node* first = key.empty() ? node : known.emplace(key, node).first->second;
    if (first == node) {
      kept.push_back(node);
      continue;
    }
    for (std::size_t i = 0; i < node->outputs.size(); ++i) {
      if (node->outputs[i] != nullptr) merged.emplace(node->outputs[i], first->outputs[i]);
    }
  }
  graph.nodes = std::move(kept);
  ir::replace_uses(graph, merged);
  ir::eliminate_dead_nodes(graph);
  return changed || !merged.empty();
}

}  // namespace onnxgrad::passes
