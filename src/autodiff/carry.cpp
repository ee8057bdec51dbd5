#include "autodiff/carry.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/check.h"
#include "opdef/random_stream.h"

// The gradient of a subgraph is another subgraph, which reads values of the first. One walk
// over the nodes of the first, backwards, decides for each value that is read whether it is
// saved or recomputed, for which its node's inputs are then read.

namespace onnxgrad::autodiff {
namespace {

using ir::Node;
using ir::Value;

class Carrier {
 public:
  Carrier(ir::GraphBuilder& g, ir::Graph& body, const opdef::OpRegistry& registry,
          const std::function<Value*(Value*)>& save)
      : g_(g), body_(body), registry_(registry), save_(save) {}

  void run() {
    move_shapes();
    const auto first_new = std::ssize(g_.graph().nodes);
    for (Value* value : ir::captured_values(g_.graph())) read(value);
    for (std::size_t n = body_.nodes.size(); n-- > 0;) {
      Node* node = body_.nodes[n];
      if (is_read(*node) && !save_outputs(*node)) repeat(*node);
    }
    const std::vector<Value*> inputs = body_.inputs;  // save_() may add some
    for (Value* input : inputs) {
      if (!read_.contains(input)) continue;
      stand_ins_[input] = save_(input);
      ONNXGRAD_ASSERT(stand_ins_[input] != nullptr);
    }
    for (Value* constant : body_.initializers) {
      if (!read_.contains(constant) || constant->is_input) continue;
      stand_ins_[constant] = g_.constant(constant->initializer, constant->name);
    }
    append_repeated();
    // Values that save() wrote or that are recomputed come before everything that reads them.
    std::vector<Node*>& nodes = g_.graph().nodes;
    std::rotate(nodes.begin(), nodes.begin() + first_new, nodes.end());
    ir::replace_uses(g_.graph(), stand_ins_);
  }

 private:
  void read(Value* value) {
    if (value != nullptr && value->graph == &body_) read_.insert(value);
  }

  bool is_read(const Node& node) const {
    return std::ranges::any_of(node.outputs,
                               [this](const Value* output) { return read_.contains(output); });
  }

  bool is_shape_of_body(const Node& node) const {
    const opdef::OpDef* def = registry_.find(node);
    return def != nullptr && def->fold_types != nullptr &&
           std::ranges::any_of(node.inputs,
                               [this](const Value* input) { return input->graph == &body_; });
  }

  // Shapes are computed next to the tensor: no tensor is saved for its shape.
  void move_shapes() {
    std::vector<Node*> shapes;
    std::ranges::copy_if(g_.graph().nodes, std::back_inserter(shapes),
                         [this](const Node* node) { return is_shape_of_body(*node); });
    std::erase_if(g_.graph().nodes,
                  [&](Node* node) { return std::ranges::find(shapes, node) != shapes.end(); });
    std::unordered_map<const Value*, Value*> moved;
    ir::append_nodes(shapes, body_, moved);
    ir::replace_uses(g_.graph(), moved);
  }

  // Element-wise work and data movement; shapes of what is available anyway.
  bool is_cheap(const Node& node) const {
    const opdef::OpDef* def = registry_.find(node);
    if (def == nullptr || def->is_random || !node.subgraphs().empty()) return false;
    if (def->fold_types != nullptr) return !is_shape_of_body(node);
    return def->expression != nullptr || def->passage != opdef::Passage::kNone;
  }

  // True if each output that is read now has a replacement.
  bool save_outputs(const Node& node) {
    if (is_cheap(node)) return false;
    std::unordered_map<const Value*, Value*> saved;
    for (Value* output : node.outputs) {
      if (!read_.contains(output)) continue;
      saved[output] = save_(output);
      if (saved[output] == nullptr) return false;
    }
    stand_ins_.insert(saved.begin(), saved.end());
    return true;
  }

  void repeat(const Node& node) {
    repeated_.push_back(&node);
    for (Value* input : node.inputs) read(input);
    for (Value* captured : ir::captured_values(node)) read(captured);
  }

  void append_repeated() {
    std::ranges::reverse(repeated_);
    const std::vector<Node*>& nodes = g_.graph().nodes;
    const std::size_t first_new = nodes.size();
    ir::append_nodes(repeated_, g_.graph(), stand_ins_);
    for (std::size_t i = 0; i < repeated_.size(); ++i) {
      repeat_draws(*repeated_[i], *nodes[first_new + i]);
    }
  }

  void repeat_draws(const Node& node, Node& copy) {
    const opdef::OpDef* def = registry_.find(node);
    if (def != nullptr && def->is_random) opdef::draw_like(node, copy);
    const std::vector<ir::Graph*> from = node.subgraphs();
    const std::vector<ir::Graph*> to = copy.subgraphs();
    for (std::size_t b = 0; b < from.size(); ++b) {
      for (std::size_t i = 0; i < from[b]->nodes.size(); ++i) {
        repeat_draws(*from[b]->nodes[i], *to[b]->nodes[i]);
      }
    }
  }

  ir::GraphBuilder& g_;
  ir::Graph& body_;
  const opdef::OpRegistry& registry_;
  const std::function<Value*(Value*)>& save_;
  std::unordered_set<const Value*> read_;
  std::unordered_map<const Value*, Value*> stand_ins_;
  std::vector<const Node*> repeated_;
};

}  // namespace

void carry_values(ir::GraphBuilder& g, ir::Graph& body, const opdef::OpRegistry& registry,
                  const std::function<Value*(Value*)>& save) {
  Carrier(g, body, registry, save).run();
}

}  // namespace onnxgrad::autodiff
