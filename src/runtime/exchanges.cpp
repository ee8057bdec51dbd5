#include "runtime/exchanges.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "ir/uses.h"
#include "opdef/collectives.h"
#include "runtime/schedule.h"

namespace onnxgrad::runtime {
namespace {

using opdef::Collective;
using opdef::Exchange;

bool is_fused(const ir::Node& node, std::string_view op_type) {
  return node.domain == ir::kFusedDomain && node.op_type == op_type;
}

std::int64_t sent_bytes(const ir::Value* value) {
  return value->type.static_dims()->size_bytes(value->dtype());
}

// The start and the finish of one collective; the finish takes over its outputs.
std::pair<ir::Node*, ir::Node*> split(ir::Graph& graph, ir::Node& node, std::int64_t alignment) {
  Exchange spec{.collective = Collective::read(node)};
  const std::size_t first = spec.collective.is_conditional ? 1 : 0;
  std::int64_t end = 0;
  for (std::size_t i = first; i < node.inputs.size(); ++i) {
    const std::int64_t offset = (end + alignment - 1) / alignment * alignment;
    spec.offsets.push_back(offset);
    end = offset + sent_bytes(node.inputs[i]);
  }
  const ir::Type buffer_type = ir::Type::tensor(DataType::kUint8, Dims{end});
  ir::Value* buffer = graph.add_value(graph.names().unique(node.name + "/buffer"), buffer_type);
  ir::Node* start = graph.make_node(opdef::kStartExchange, node.inputs, {buffer}, node.name,
                                    spec.attributes(), ir::kFusedDomain);
  std::vector<ir::Value*> read{buffer};
  if (first == 1) read.insert(read.begin(), node.inputs[0]);
  for (std::size_t i = 0; i < node.outputs.size(); ++i) {
    if (node.outputs[i] != nullptr) node.outputs[i]->type = node.inputs[first + i]->type;
  }
  ir::Node* finish = graph.make_node(opdef::kFinishExchange, std::move(read), node.outputs,
                                     node.name, spec.attributes(), ir::kFusedDomain);
  return {start, finish};
}

}  // namespace

bool is_collective(const ir::Node& node) {
  return node.domain == ir::kFunctionDomain &&
         std::ranges::find(opdef::kCollectives, opdef::base_name(node.domain, node.op_type)) !=
             std::end(opdef::kCollectives);
}

void begin_exchanges(ir::Graph& graph, std::int64_t alignment) {
  std::vector<ir::Node*> nodes;
  for (ir::Node* node : std::exchange(graph.nodes, {})) {
    if (!is_collective(*node)) {
      nodes.push_back(node);
      continue;
    }
    const auto [start, finish] = split(graph, *node, alignment);
    nodes.push_back(start);
    nodes.push_back(finish);
  }
  graph.nodes = std::move(nodes);
}

ExchangeRole exchange_role(const ir::Node& node) {
  ExchangeRole role;
  if (is_fused(node, opdef::kStartExchange)) role.kind = ExchangeRole::Kind::kStart;
  if (is_fused(node, opdef::kFinishExchange)) role.kind = ExchangeRole::Kind::kFinish;
  if (role.kind != ExchangeRole::Kind::kNone) role.number = Collective::read(node).number;
  return role;
}

BufferParts::BufferParts(const ir::Graph& graph, std::span<const ir::Node* const> order,
                         const opdef::OpRegistry& registry) {
  std::unordered_map<const ir::Value*, int> readers;  // of roots
  for (const ir::Node* node : order) {
    for (const ir::Value* input : node->inputs) {
      if (input != nullptr) ++readers[view_root(input, registry)];
    }
  }
  for (const ir::Value* output : graph.outputs) ++readers[view_root(output, registry)];
  for (const ir::Node* node : order) {
    if (exchange_role(*node).kind != ExchangeRole::Kind::kStart) continue;
    const Exchange spec = Exchange::read(*node);
    const std::size_t first = spec.collective.is_conditional ? 1 : 0;
    for (std::size_t i = first; i < node->inputs.size(); ++i) {
      const ir::Value* root = view_root(node->inputs[i], registry);
      const bool is_computed = root->producer != nullptr && !root->is_input;
      if (!is_computed || readers[root] != 1) continue;
      sent_[root] = {.buffer = node->outputs[0], .offset = spec.offsets[i - first]};
    }
  }
}

const BufferParts::Part* BufferParts::find_sent(const ir::Value* root) const {
  const auto found = sent_.find(root);
  return found == sent_.end() ? nullptr : &found->second;
}

std::vector<BufferParts::Part> BufferParts::received(const ir::Node& node) {
  std::vector<Part> parts;
  if (exchange_role(node).kind != ExchangeRole::Kind::kFinish) return parts;
  for (const std::int64_t offset : Exchange::read(node).offsets) {
    parts.push_back({.buffer = node.inputs.back(), .offset = offset});
  }
  return parts;
}

}  // namespace onnxgrad::runtime
