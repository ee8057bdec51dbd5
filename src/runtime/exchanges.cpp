#include "runtime/exchanges.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "base/rounding.h"
#include "ir/uses.h"
#include "opdef/collectives.h"

namespace onnxgrad::runtime {
namespace {

using opdef::Collective;
using opdef::Exchange;

bool is_fused(const ir::Node& node, std::string_view op_type) {
  return node.domain == ir::kFusedDomain && node.op_type == op_type;
}

// Offsets of the x of a collective in its buffer, in bytes.
struct BufferLayout {
  std::vector<std::int64_t> offsets = {};
  std::int64_t end = 0;
};

BufferLayout lay_out(std::span<ir::Value* const> values, std::int64_t alignment) {
  BufferLayout layout;
  for (const ir::Value* value : values) {
    layout.end = base::round_up(layout.end, alignment);
    layout.offsets.push_back(layout.end);
    layout.end += value->type.fixed_dims().size_bytes(value->dtype());
  }
  return layout;
}

// Bounds between x are where the next one begins.
std::vector<std::int64_t> owned_elements(const Collective& spec, const BufferLayout& layout,
                                         std::int64_t size) {
  std::vector<std::int64_t> owned;
  std::size_t i = 0;
  std::int64_t before = 0;  // elements of the x before i
  std::int64_t begin = 0;
  for (std::size_t worker = 1; worker < spec.bounds.size(); ++worker) {
    const std::int64_t bound = spec.bounds[worker];
    while (i < spec.sizes.size() && bound >= before + spec.sizes[i]) before += spec.sizes[i++];
    const std::int64_t end =
        i == spec.sizes.size() ? layout.end / size : layout.offsets[i] / size + bound - before;
    owned.push_back(end - begin);
    begin = end;
  }
  return owned;
}

// Offsets of the parts of each x that this worker owns, in bytes; -1 if it owns none.
std::vector<std::int64_t> part_offsets(const Collective& spec, const BufferLayout& layout,
                                       std::int64_t size) {
  const auto ranges = spec.own_ranges();
  std::vector<std::int64_t> offsets;
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    offsets.push_back(ranges[i].count() > 0 ? layout.offsets[i] + ranges[i].begin * size : -1);
  }
  return offsets;
}

// The start and the finish of one collective; the finish takes over its outputs.
std::pair<ir::Node*, ir::Node*> split(ir::Graph& graph, ir::Node& node, std::int64_t alignment) {
  Exchange spec{.collective = Collective::read(node)};
  const Collective& collective = spec.collective;
  const std::size_t first = collective.is_conditional ? 1 : 0;
  std::span<ir::Value* const> values(node.inputs);
  values = values.subspan(first);
  const bool is_gather = collective.kind == Collective::Kind::kAllGather;
  const auto parts = is_gather ? values.subspan(collective.sizes.size()) : values.subspan(0, 0);
  if (is_gather) values = values.first(collective.sizes.size());
  const BufferLayout layout = lay_out(values, alignment);
  spec.dtype = values.front()->dtype();
  const std::int64_t size = Dims{}.size_bytes(spec.dtype);
  std::vector<ir::Value*> sent;
  if (first == 1) sent.push_back(node.inputs.front());
  std::vector<ir::Value*> read(sent);
  spec.sent = spec.received = layout.offsets;
  if (collective.kind != Collective::Kind::kAllReduce) {
    spec.owned = owned_elements(collective, layout, size);
    const auto offsets = part_offsets(collective, layout, size);
    (is_gather ? spec.sent : spec.received) = offsets;
  }
  if (is_gather) {
    std::erase(spec.sent, -1);
    sent.insert(sent.end(), parts.begin(), parts.end());
    if (first == 1) spec.sent.insert(spec.sent.end(), layout.offsets.begin(), layout.offsets.end());
  }
  if (!is_gather || first == 1) sent.insert(sent.end(), values.begin(), values.end());
  const ir::Type buffer_type = ir::Type::tensor(DataType::kUint8, Dims{layout.end});
  ir::Value* buffer = graph.add_value(graph.names().unique(node.name + "/buffer"), buffer_type);
  ir::Node* start = graph.make_node(opdef::kStartExchange, std::move(sent), {buffer}, node.name,
                                    spec.attributes(), ir::kFusedDomain);
  read.push_back(buffer);
  if (collective.kind != Collective::Kind::kReduceScatter) {
    for (std::size_t i = 0; i < node.outputs.size(); ++i) {
      if (node.outputs[i] != nullptr) node.outputs[i]->type = values[i]->type;
    }
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
                         const ViewRoots& roots, std::int64_t alignment) {
  const auto is_start = [](const ir::Node* node) {
    return exchange_role(*node).kind == ExchangeRole::Kind::kStart;
  };
  if (std::ranges::none_of(order, is_start)) return;
  std::unordered_map<const ir::Value*, int> readers;  // for roots of views
  for (const ir::Node* node : order) {
    for (const ir::Value* input : node->inputs) {
      if (input != nullptr) ++readers[roots.of(input)];
    }
  }
  for (const ir::Value* output : graph.outputs) ++readers[roots.of(output)];
  for (const ir::Node* node : order) {
    if (!is_start(node)) continue;
    const Exchange spec = Exchange::read(*node);
    const std::size_t first = spec.collective.is_conditional ? 1 : 0;
    for (std::size_t i = first; i < node->inputs.size(); ++i) {
      const ir::Value* root = roots.of(node->inputs[i]);
      const bool is_computed = root->producer != nullptr && !root->is_input;
      if (!is_computed || readers[root] != 1) continue;
      if (spec.sent[i - first] % alignment != 0) continue;
      sent_[root] = {.buffer = node->outputs[0], .offset = spec.sent[i - first]};
    }
  }
}

const BufferParts::Part* BufferParts::find_sent(const ir::Value* root) const {
  const auto found = sent_.find(root);
  return found == sent_.end() ? nullptr : &found->second;
}

std::vector<BufferParts::Part> BufferParts::received(const ir::Node& node, std::int64_t alignment) {
  std::vector<Part> parts;
  if (exchange_role(node).kind != ExchangeRole::Kind::kFinish) return parts;
  for (const std::int64_t offset : Exchange::read(node).received) {
    if (offset > 0 && offset % alignment != 0) return {};
    parts.push_back({.buffer = node.inputs.back(), .offset = offset});
  }
  return parts;
}

}  // namespace onnxgrad::runtime
