#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "ir/key.h"
#include "passes/passes.h"

namespace onnxgrad::passes {
namespace {

constexpr std::int64_t kMaxComparedBytes = 4096;

// Writes the key of a node; false: this node is not merged.
bool write_key(const ir::Node& node, const opdef::OpDef* def, std::string& key) {
  if (def == nullptr || def->is_random || !node.subgraphs().empty()) return false;
  key.clear();
  ir::append_key(key, node.domain);
  ir::append_key(key, node.op_type);
  ir::append_key(key, node.inputs.data(), node.inputs.size());
  std::vector<const ir::Attribute*> attributes;
  attributes.reserve(node.attributes.size());
  for (const ir::Attribute& attribute : node.attributes) attributes.push_back(&attribute);
  std::ranges::sort(attributes, {}, &ir::Attribute::name);
  for (const ir::Attribute* attribute : attributes) {
    ir::append_key(key, attribute->name);
    if (!ir::append_key(key, attribute->value, kMaxComparedBytes)) return false;
  }
  for (const ir::Value* output : node.outputs) key += output == nullptr ? '_' : 'o';
  return true;
}

}  // namespace

bool merge_common_subexpressions(ir::Graph& graph, const PassContext& context) {
  std::string key;
  std::unordered_map<std::string, ir::Value*> constants;
  std::unordered_map<const ir::Value*, ir::Value*> replaced;
  for (ir::Value* value : graph.initializers) {
    const Tensor& tensor = value->initializer;
    key.clear();
    if (!value->is_constant() || !ir::append_key(key, tensor, kMaxComparedBytes)) continue;
    const auto [entry, is_new] = constants.try_emplace(key, value);
    if (!is_new) replaced.emplace(value, entry->second);
  }
  ir::replace_uses(graph, replaced);
  bool changed = !replaced.empty();
  if (changed) {
    std::erase_if(graph.initializers, [&](const ir::Value* v) { return replaced.contains(v); });
  }

  std::unordered_map<std::string, ir::Node*> known;
  known.reserve(graph.nodes.size());
  std::unordered_map<const ir::Value*, ir::Value*> merged;
  std::vector<ir::Node*> kept;
  kept.reserve(graph.nodes.size());
  for (ir::Node* node : graph.nodes) {
    for (ir::Value*& input : node->inputs) {
      if (const auto found = merged.find(input); found != merged.end()) input = found->second;
    }
    const bool has_key = write_key(*node, context.ops.find(*node), key);
    ir::Node* first = has_key ? known.try_emplace(key, node).first->second : node;
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
