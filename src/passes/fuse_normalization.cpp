#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "ir/pattern.h"
#include "ir/uses.h"
#include "opdef/fused_normalization.h"
#include "opdef/registry.h"
#include "passes/passes.h"

// Pattern: BatchNormalization in training mode, float32, followed by Relu or Clip, by a sum with a
// residual, or by a sum and Relu; and the onnxgrad.BatchNormalizationGrad of the same input,
// preceded by the mask of the Relu or Clip and by the sum of two cotangents. Each becomes one node;
// the statistics are computed once. What else reads a value that would no longer be computed
// prevents it.

namespace onnxgrad::passes {
namespace {

using ir::is_op;
using ir::Node;
using ir::Value;
using opdef::FusedNormalization;
using opdef::NormMask;

constexpr std::string_view kGradName = "BatchNormalizationGrad";

bool is_static_float32(const Value* value) {
  return value != nullptr && value->dtype() == DataType::kFloat32 && value->type.static_dims();
}

bool has_shape_of(const Value* value, const Value* other) {
  return is_static_float32(value) && value->type.static_dims() == other->type.static_dims();
}

// Read where it is needed, not copied to a whole tensor before.
bool is_expanded(const Value* value) { return is_op(value->producer, "Expand"); }

std::optional<float> scalar_of(const Value* value) {
  if (value == nullptr || !value->is_constant() || value->dtype() != DataType::kFloat32 ||
      value->initializer.num_elements() != 1) {
    return std::nullopt;
  }
  return value->initializer.data<float>().front();
}

bool is_zero(const Value* value) { return scalar_of(value) == 0.0F; }

// What a BatchNormalization becomes.
struct Forward {
  Node* norm = nullptr;
  std::vector<Node*> after = {};  // that it takes in, in order
  Value* residual = nullptr;
  bool has_relu = false;
  bool has_clip = false;
  FusedNormalization op = {};

  Node* last() const { return after.empty() ? norm : after.back(); }
  Value* result() const { return last()->outputs[0]; }
};

// What a BatchNormalizationGrad becomes.
struct Backward {
  Node* grad = nullptr;
  std::vector<Node*> before = {};  // that it takes in, from the gradient back
  Value* dy = nullptr;
  Value* more = nullptr;
  NormMask mask = NormMask::kNone;

  Node* first() const { return before.empty() ? grad : before.front(); }
};

class NormalizationFusion {
 public:
  explicit NormalizationFusion(ir::Graph& graph) : graph_(graph), uses_(graph) {
    for (std::size_t i = 0; i < graph.nodes.size(); ++i) places_[graph.nodes[i]] = i;
  }

  bool run() {
    bool changed = false;
    const std::vector<Node*> before = graph_.nodes;  // making a node moves the list
    for (Node* node : before) {
      if (!is_normalization(*node)) continue;
      Forward forward = follow(node);
      Node* grad = find_gradient(*node);
      if (grad == nullptr || places_[forward.last()] > places_[grad]) {
        if (forward.after.empty() || forward.has_clip) continue;  // a mask may read it
        emit(forward);
      } else {
        Backward backward = follow_back(forward, grad);
        const auto [mean, inverse] = emit(forward);
        emit(forward, backward, mean, inverse);
      }
      changed = true;
    }
    if (!changed) return false;
    std::vector<Node*> nodes;
    for (Node* node : before) {
      if (const auto fused = fused_.find(node); fused != fused_.end()) {
        nodes.push_back(fused->second);
      } else if (!taken_.contains(node)) {
        nodes.push_back(node);
      }
    }
    graph_.nodes = std::move(nodes);
    ir::eliminate_dead_nodes(graph_);
    return true;
  }

 private:
  static bool is_normalization(const Node& node) {
    if (!is_op(&node, "BatchNormalization") || node.int_attribute("training_mode", 0) == 0 ||
        node.inputs.size() < 5 || node.outputs[0] == nullptr) {
      return false;
    }
    const auto dims = node.inputs[0]->type.static_dims();
    return std::ranges::all_of(node.inputs, is_static_float32) && dims->rank() >= 2 &&
           dims->num_elements() > 0;
  }

  bool is_free(const Node* node) const { return node != nullptr && !taken_.contains(node); }

  // The only reader of a value, if nothing has taken it.
  Node* next(const Value* value) const {
    Node* reader = uses_.count(value) == 1 ? uses_.only_reader(value) : nullptr;
    return is_free(reader) ? reader : nullptr;
  }

  Forward follow(Node* norm) const {
    Forward forward{.norm = norm};
    forward.op.epsilon = norm->float_attribute("epsilon");
    forward.op.momentum = norm->float_attribute("momentum");
    Value* y = norm->outputs[0];
    if (Node* add = next(y); is_op(add, "Add")) {
      Value* other = add->inputs[add->inputs[0] == y ? 1 : 0];
      if (other != y && has_shape_of(other, y) && has_shape_of(add->outputs[0], y)) {
        forward.residual = other;
        forward.after.push_back(add);
      }
    }
    if (Node* relu = next(forward.result()); is_op(relu, "Relu")) {
      forward.after.push_back(relu);
      forward.has_relu = true;
      forward.op.low = 0;
    } else if (forward.after.empty()) {
      follow_clip(forward);
    }
    if (!forward.after.empty() && !can_be_late(forward)) {
      return {.norm = norm, .op = {.epsilon = forward.op.epsilon, .momentum = forward.op.momentum}};
    }
    return forward;
  }

  // A Clip with constant bounds; whatever else reads its input must be its mask.
  void follow_clip(Forward& forward) const {
    Node* clip = nullptr;
    for (const ir::Use& use : uses_.of(forward.norm->outputs[0])) {
      if (is_op(use.node, "Clip") && use.input == 0 && clip == nullptr) clip = use.node;
    }
    if (!is_free(clip)) return;
    for (const std::size_t i : {std::size_t{1}, std::size_t{2}}) {
      if (clip->input(i) == nullptr) continue;
      const auto bound = scalar_of(clip->input(i));
      if (!bound) return;
      (i == 1 ? forward.op.low : forward.op.high) = *bound;
    }
    if (forward.op.low > forward.op.high) return;
    forward.after.push_back(clip);
    forward.has_clip = true;
  }

  // Whether the running statistics may be computed where the last node is.
  bool can_be_late(const Forward& forward) const {
    const std::size_t last = places_.at(forward.last());
    for (std::size_t i = 1; i < forward.norm->outputs.size(); ++i) {
      if (forward.norm->outputs[i] == nullptr) continue;
      for (const ir::Use& use : uses_.of(forward.norm->outputs[i])) {
        const auto place = places_.find(use.node);
        if (use.node != nullptr && (place == places_.end() || place->second < last)) return false;
      }
    }
    return true;
  }

  // The gradient of the same normalisation.
  Node* find_gradient(const Node& norm) const {
    for (const ir::Use& use : uses_.of(norm.inputs[0])) {
      Node* node = use.node;
      if (node == nullptr || node->domain != ir::kFunctionDomain || use.input != 1 ||
          opdef::base_name(node->domain, node->op_type) != kGradName || !places_.contains(node)) {
        continue;
      }
      if (node->inputs[2] == norm.inputs[1] && is_static_float32(node->inputs[0]) &&
          node->float_attribute("epsilon", 1e-5F) == norm.float_attribute("epsilon")) {
        return node;
      }
    }
    return nullptr;
  }

  // Drops what `forward` cannot take in.
  Backward follow_back(Forward& forward, Node* grad) const {
    Backward backward{.grad = grad, .dy = grad->inputs[0]};
    if (forward.has_clip) {
      if (!take_clip_mask(forward, backward)) {
        forward.after.clear();
        forward.has_clip = false;
        forward.op.low = -std::numeric_limits<float>::infinity();
        forward.op.high = std::numeric_limits<float>::infinity();
      }
    } else if (forward.has_relu) {
      take_relu_mask(forward, backward);
    }
    take_sum(forward, backward);
    return backward;
  }

  // Where(condition, kept, 0), or with `drops` Where(condition, 0, kept): the kept value.
  Value* masked(const Value* value, bool drops) const {
    const Node* where = value->producer;
    if (!is_op(where, "Where") || !is_free(where) || !is_zero(where->inputs[drops ? 1 : 2])) {
      return nullptr;
    }
    Value* kept = where->inputs[drops ? 2 : 1];
    // NOLINTNEXTLINE(readability-suspicious-call-argument)
    return has_shape_of(kept, value) && !is_expanded(kept) ? kept : nullptr;
  }

  void take_relu_mask(const Forward& forward, Backward& backward) const {
    Value* kept = masked(backward.dy, /*drops=*/false);
    if (kept == nullptr) return;
    Node* where = backward.dy->producer;
    const Node* condition = where->inputs[0]->producer;
    if (!is_op(condition, "Greater") || condition->inputs[0] != forward.result() ||
        !is_zero(condition->inputs[1])) {
      return;
    }
    backward.before.insert(backward.before.begin(), where);
    backward.dy = kept;
    backward.mask = forward.residual == nullptr ? NormMask::kPositive : NormMask::kResult;
  }

  // Where(max(y, low) > high, 0, Where(y < low, 0, d)), each part if there is such a bound. All
  // readers of y and of the conditions must be those.
  bool take_clip_mask(const Forward& forward, Backward& backward) const {
    const Value* y = forward.norm->outputs[0];
    const Node& clip = *forward.last();
    std::size_t readers = 1;
    std::vector<Node*> before;
    Value* value = backward.dy;
    if (const Value* high = clip.input(2)) {
      Value* kept = masked(value, /*drops=*/true);
      if (kept == nullptr || uses_.count(value->producer->inputs[0]) != 1) return false;
      const Node* above = value->producer->inputs[0]->producer;
      if (!is_op(above, "Greater") || scalar_of(above->inputs[1]) != scalar_of(high)) return false;
      const Value* raised = above->inputs[0];
      if (clip.input(1) != nullptr) {
        const Node* max = raised->producer;
        if (!is_op(max, "Max") || max->inputs.size() != 2 || uses_.count(raised) != 1 ||
            scalar_of(max->inputs[1]) != scalar_of(clip.input(1))) {
          return false;
        }
        raised = max->inputs[0];
      }
      if (raised != y) return false;
      ++readers;
      before.push_back(value->producer);
      value = kept;
    }
    if (const Value* low = clip.input(1)) {
      Value* kept = masked(value, /*drops=*/true);
      if (kept == nullptr || uses_.count(value->producer->inputs[0]) != 1) return false;
      const Node* below = value->producer->inputs[0]->producer;
      if (!is_op(below, "Less") || below->inputs[0] != y ||
          scalar_of(below->inputs[1]) != scalar_of(low) ||
          (!before.empty() && uses_.count(value) != 1)) {
        return false;
      }
      ++readers;
      before.push_back(value->producer);
      value = kept;
    }
    if (before.empty() || uses_.count(y) != readers ||
        places_.at(before.front()) < places_.at(forward.last())) {
      return false;
    }
    backward.before = std::move(before);
    backward.dy = value;
    backward.mask = NormMask::kInside;
    return true;
  }

  // dy as the sum of two cotangents; behind a mask nothing else may read it.
  void take_sum(const Forward& forward, Backward& backward) const {
    Node* add = backward.dy->producer;
    if (!is_op(add, "Add") || !is_free(add) || places_.at(add) < places_.at(forward.last())) return;
    if (!backward.before.empty() && uses_.count(backward.dy) != 1) return;
    for (const Value* operand : add->inputs) {
      if (!has_shape_of(operand, backward.dy) || is_expanded(operand)) return;
    }
    backward.before.push_back(add);
    backward.more = add->inputs[1];
    backward.dy = add->inputs[0];
  }

  // Returns the saved mean and inverse.
  std::pair<Value*, Value*> emit(const Forward& forward) {
    const Node& norm = *forward.norm;
    std::vector<Value*> inputs(norm.inputs.begin(), norm.inputs.begin() + 5);
    if (forward.residual != nullptr) inputs.push_back(forward.residual);
    Node* node = graph_.make_node(opdef::kFusedNormalization, std::move(inputs), {forward.result()},
                                  norm.name, forward.op.attributes(), ir::kFusedDomain);
    for (std::size_t i = 1; i < norm.outputs.size() && i < 3; ++i) {
      if (norm.outputs[i] != nullptr) ir::Graph::set_output(node, i, norm.outputs[i]);
    }
    const ir::Type type = norm.inputs[1]->type;
    Value* mean = graph_.add_output(node, 3, type, norm.outputs[0]->name + "_mean");
    Value* inverse = graph_.add_output(node, 4, type, norm.outputs[0]->name + "_inverse");
    taken_.insert(forward.norm);
    taken_.insert(forward.after.begin(), forward.after.end());
    fused_[forward.last()] = node;
    return {mean, inverse};
  }

  void emit(const Forward& forward, const Backward& backward, Value* mean, Value* inverse) {
    const Node& grad = *backward.grad;
    FusedNormalization op = forward.op;
    op.mask = backward.mask;
    std::vector<Value*> inputs = {
        backward.dy, grad.inputs[1], grad.inputs[2], forward.norm->inputs[2], mean, inverse};
    if (backward.more != nullptr || backward.mask == NormMask::kResult) {
      inputs.push_back(backward.more);
    }
    if (backward.mask == NormMask::kResult) inputs.push_back(forward.result());
    Node* node = graph_.make_node(opdef::kFusedNormalizationGrad, std::move(inputs), grad.outputs,
                                  grad.name, op.attributes(), ir::kFusedDomain);
    Value* g = grad.inputs[0];
    if (!backward.before.empty() && uses_.count(g) > 1) ir::Graph::set_output(node, 3, g);
    taken_.insert(backward.grad);
    taken_.insert(backward.before.begin(), backward.before.end());
    fused_[backward.first()] = node;
  }

  ir::Graph& graph_;
  ir::Uses uses_;
  std::unordered_map<const Node*, std::size_t> places_;
  std::unordered_set<const Node*> taken_;
  std::unordered_map<const Node*, Node*> fused_;  // by the node in whose place it is
};

}  // namespace

bool fuse_normalization(ir::Graph& graph, const PassContext& /*context*/) {
  return NormalizationFusion(graph).run();
}

}  // namespace onnxgrad::passes
