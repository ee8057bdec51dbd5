#include "autodiff/gradient_at.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "autodiff/gradient.h"
#include "ir/uses.h"
#include "opdef/random_stream.h"

namespace onnxgrad::autodiff {
namespace {

using ir::Graph;
using ir::Node;
using ir::Value;

// The nodes through which y depends on some values, in the order of the graphs, outermost first.
class Between {
 public:
  Between(Value* y, std::span<Value* const> from) : from_(from.begin(), from.end()) { visit(y); }

  const std::vector<const Node*>& nodes() const { return nodes_; }
  /// True if `value` is computed from one of the values.
  bool depends(const Value* value) const {
    return from_.contains(value) ||
           (value->producer != nullptr && dependent_.contains(value->producer));
  }

 private:
  // Depth first, without recursion: a node is appended after what it reads.
  void visit(Value* y) {
    std::vector<std::pair<const Node*, bool>> open;
    const auto push = [&](const Value* value) {
      if (from_.contains(value) || value->producer == nullptr) return;
      if (!seen_.contains(value->producer)) open.emplace_back(value->producer, false);
    };
    push(y);
    while (!open.empty()) {
      const auto [node, is_left] = open.back();
      if (is_left) {
        open.pop_back();
        const std::vector<Value*> read = ir::values_read(*node);
        const bool is_dependent =
            std::ranges::any_of(read, [this](const Value* value) { return depends(value); });
        if (is_dependent && dependent_.insert(node).second) nodes_.push_back(node);
        continue;
      }
      open.back().second = true;
      if (!seen_.insert(node).second) {
        open.pop_back();
        continue;
      }
      for (const Value* value : ir::values_read(*node)) push(value);
    }
  }

  std::unordered_set<const Value*> from_;
  std::unordered_set<const Node*> seen_;
  std::unordered_set<const Node*> dependent_;
  std::vector<const Node*> nodes_;
};

// True if some of the values are computed from others.
bool are_dependent(std::span<Value* const> values) {
  return std::ranges::any_of(values, [&](Value* value) {
    std::vector<Value*> others(values.begin(), values.end());
    std::erase(others, value);
    return Between(value, others).depends(value);
  });
}

// Copies draw what the originals draw.
void repeat_draws(const opdef::OpRegistry& registry, const Node& node, Node& copy) {
  const opdef::OpDef* def = registry.find(node);
  if (def != nullptr && def->is_random) opdef::draw_like(node, copy);
  const std::vector<Graph*> from = node.subgraphs();
  const std::vector<Graph*> to = copy.subgraphs();
  for (std::size_t b = 0; b < from.size(); ++b) {
    for (std::size_t i = 0; i < from[b]->nodes.size(); ++i) {
      repeat_draws(registry, *from[b]->nodes[i], *to[b]->nodes[i]);
    }
  }
}

// Types that were inferred for other shapes.
void forget_types(Node& node) {
  for (Value* output : node.outputs) {
    if (output != nullptr) output->type = {};
  }
  for (Graph* body : node.subgraphs()) {
    for (Node* inner : body->nodes) forget_types(*inner);
  }
}

std::vector<Value*> slopes(ir::GraphBuilder& g, const opdef::OpRegistry& registry, Value* y,
                           std::span<Value* const> xs, const opdef::CustomGradients* custom) {
  Value* const seed = g.ones_like(y);
  return add_vjp(g, registry, std::span(&y, 1), std::span(&seed, 1), xs, nullptr, custom);
}

}  // namespace

std::vector<Value*> add_gradient_at(ir::GraphBuilder& g, const opdef::OpRegistry& registry,
                                    const opdef::GradientAt& request,
                                    const opdef::CustomGradients* custom) {
  const Between between(request.y, request.named);
  const bool is_here =
      std::ranges::equal(request.named, request.fed) &&
      std::ranges::all_of(between.nodes(),
                          [&](const Node* node) { return node->graph == &g.graph(); }) &&
      !are_dependent(request.named);
  if (is_here) return slopes(g, registry, request.y, request.named.first(request.num_xs), custom);

  const bool has_same_types = std::ranges::equal(
      request.named, request.fed,
      [](const Value* a, const Value* b) { return a->type.to_string() == b->type.to_string(); });
  std::unordered_map<const Value*, Value*> map;
  std::vector<Value*> points;
  for (std::size_t i = 0; i < request.named.size(); ++i) {
    points.push_back(g.identity(request.fed[i]));  // each independent of all others
    map[request.named[i]] = points.back();
  }
  const std::size_t first_new = g.graph().nodes.size();
  ir::append_nodes(between.nodes(), g.graph(), map);
  for (std::size_t i = 0; i < between.nodes().size(); ++i) {
    Node& copy = *g.graph().nodes[first_new + i];
    repeat_draws(registry, *between.nodes()[i], copy);
    if (!has_same_types) forget_types(copy);
    g.inferer().infer(copy);
  }
  const auto copied = map.find(request.y);
  Value* const y = copied == map.end() ? request.y : copied->second;
  return slopes(g, registry, y, std::span<Value* const>(points).first(request.num_xs), custom);
}

}  // namespace onnxgrad::autodiff
