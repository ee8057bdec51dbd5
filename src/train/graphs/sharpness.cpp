#include "train/graphs/sharpness.h"

#include <algorithm>
#include <iterator>
#include <unordered_map>
#include <unordered_set>

#include "ir/uses.h"
#include "opdef/collectives.h"
#include "opdef/registry.h"
#include "train/optimizers/optimizers.h"

namespace onnxgrad::train {
namespace {

using ir::GraphBuilder;
using ir::Node;
using ir::Value;

// Whether a node adds up a number over the workers: within a loss a count of rows, which depends on
// weights only through shapes.
bool adds_up_number(const Node& node) {
  const bool is_collective =
      node.domain == ir::kFunctionDomain &&
      std::ranges::find(opdef::kCollectives, opdef::base_name(node.domain, node.op_type)) !=
          std::end(opdef::kCollectives);
  return is_collective && std::ranges::all_of(node.outputs, [](const Value* output) {
           return output == nullptr || (output->type.has_rank() && output->type.rank() == 0);
         });
}

// The nodes before `results` that depend on one of `changed`, in order.
std::vector<const Node*> dependent_nodes(const ir::Graph& graph, std::span<Value* const> results,
                                         std::span<Value* const> changed) {
  const std::vector<const Value*> ends(results.begin(), results.end());
  std::unordered_set<const Value*> dependent(changed.begin(), changed.end());
  std::vector<const Node*> nodes;
  for (const Node* node : ir::nodes_for(graph, ends)) {
    bool depends = false;
    for (const Value* value : ir::values_read(*node)) depends |= dependent.contains(value);
    if (!depends || adds_up_number(*node)) continue;
    nodes.push_back(node);
    dependent.insert(node->outputs.begin(), node->outputs.end());
  }
  return nodes;
}

}  // namespace

std::vector<Value*> sharpness_aware(GraphBuilder& g, const SharpnessAware& options,
                                    std::span<Value* const> weights,
                                    std::span<Value* const> gradients,
                                    std::span<Value* const> directions) {
  const std::vector<const Node*> nodes = dependent_nodes(g.graph(), gradients, weights);
  std::vector<Value*> scaled(directions.begin(), directions.end());
  if (options.adaptive) {
    for (std::size_t i = 0; i < scaled.size(); ++i) scaled[i] = g.mul(weights[i], directions[i]);
  }
  Value* norm = write_global_norm(g, scaled);
  Value* factor = g.div(g.scalar_like(norm, options.rho), g.add(norm, g.scalar_like(norm, 1e-12)));
  std::unordered_map<const Value*, Value*> map;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    Value* direction = options.adaptive ? g.mul(weights[i], scaled[i]) : directions[i];
    map[weights[i]] = g.add(weights[i], g.mul(direction, g.cast_like(factor, weights[i])));
  }
  ir::append_nodes(nodes, g.graph(), map, "sharpness/");
  std::vector<Value*> result;
  for (Value* gradient : gradients) {
    const auto found = map.find(gradient);
    result.push_back(found == map.end() ? gradient : found->second);
  }
  return result;
}

}  // namespace onnxgrad::train
