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
#include "passes/candidate.h"
#include "passes/passes.h"
#include "passes/rewriter.h"

// Pattern: BatchNormalization in training mode, float32, followed by Relu or Clip, by a sum with a
// residual, or by a sum and Relu; and the onnxgrad.BatchNormalizationGrad of the same input,
// preceded by the mask of the Relu or Clip and by the sum of two cotangents. Each becomes one node;
// the statistics are computed once. What else reads a value that would no longer be computed
// prevents it. A gradient whose input is what 16 bits have kept of the other's has statistics of
// its own.

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

// A BatchNormalization to be fused with the nodes after it.
struct Forward {
  Node* norm = nullptr;
  std::vector<Node*> after = {};  // nodes fused into it, in order
  Value* residual = nullptr;
  bool has_relu = false;
  bool has_clip = false;
  FusedNormalization op = {};

  Node* last() const { return after.empty() ? norm : after.back(); }
  Value* result() const { return last()->outputs[0]; }
};

// A BatchNormalizationGrad to be fused with the nodes before it.
struct Backward {
  Node* grad = nullptr;
  std::vector<Node*> before = {};  // nodes fused into it, from the gradient back
  Value* dy = nullptr;
  Value* more = nullptr;
  Value* result = nullptr;  // for NormMask::kResult
  NormMask mask = NormMask::kNone;
  bool is_late = false;  // goes where the gradient is, not where the first node is

  Node* place() const { return before.empty() || is_late ? grad : before.front(); }
};

// Where(max(y, low) > high, 0, Where(y < low, 0, kept)), each part if there is such a bound.
struct ClipMask {
  std::vector<Node*> nodes = {};  // from the gradient back
  Value* kept = nullptr;
  const Value* y = nullptr;
  std::optional<float> low = {};
  std::optional<float> high = {};
};

// True for a Cast of a 16-bit value to float32.
bool is_widened(const Value* value) {
  return is_op(value->producer, "Cast") && ir::holds_f16(value->producer->inputs[0]);
}

// The float32 value that is rounded to 16 bits and widened again, or the value itself.
const Value* before_rounding(const Value* value) {
  if (!is_widened(value)) return value;
  const Value* half = value->producer->inputs[0];
  return is_op(half->producer, "Cast") ? half->producer->inputs[0] : value;
}

class NormalizationFusion {
 public:
  NormalizationFusion(ir::Graph& graph, const PassContext& context)
      : graph_(graph), context_(context), uses_(graph) {
    for (std::size_t i = 0; i < graph.nodes.size(); ++i) places_[graph.nodes[i]] = i;
  }

  bool run() {
    bool changed = false;
    const std::vector<Node*> before = graph_.nodes;  // making a node moves the list
    for (Node* node : before) {
      if (is_gradient(*node) && is_free(node)) changed = fuse_alone(node) || changed;
      if (!is_normalization(*node)) continue;
      Forward forward = follow(node);
      Node* grad = find_gradient(*node);
      if (grad == nullptr || places_[forward.last()] > places_[grad]) {
        const bool has_mask = forward.has_clip && uses_.count(node->outputs[0]) > 1;
        if (forward.after.empty() || has_mask || !prefers(forward)) continue;
        emit(forward);
      } else {
        Backward backward = follow_back(forward, grad);
        if (!prefers(forward) || !prefers(forward.op, node->inputs[2], backward)) continue;
        const auto [mean, inverse] = emit(forward);
        emit(forward.op, forward.norm->inputs[2], backward, mean, inverse);
      }
      changed = true;
    }
    if (!changed) return false;
    std::vector<Node*> nodes;
    for (Node* node : before) {
      if (const auto found = statistics_.find(node); found != statistics_.end()) {
        nodes.push_back(found->second);
      }
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
      if (node == nullptr || use.input != 1 || !is_gradient(*node) || !places_.contains(node)) {
        continue;
      }
      if (is_gradient_of(*node, norm)) return node;
    }
    return nullptr;
  }

  static bool is_gradient(const Node& node) {
    return node.domain == ir::kFunctionDomain &&
           opdef::base_name(node.domain, node.op_type) == kGradName &&
           is_static_float32(node.inputs[0]);
  }

  static bool is_gradient_of(const Node& grad, const Node& norm) {
    return grad.inputs[1] == norm.inputs[0] && grad.inputs[2] == norm.inputs[1] &&
           grad.float_attribute("epsilon", 1e-5F) == norm.float_attribute("epsilon");
  }

  // A gradient whose input is the only thing that is left of the forward pass.
  bool fuse_alone(Node* grad) {
    const Value* x = grad->inputs[1];
    if (!is_static_float32(x) || !is_widened(x) || x->type.rank() < 2 ||
        x->type.fixed_dims().num_elements() == 0) {
      return false;
    }
    for (const ir::Use& use : uses_.of(x)) {
      const Node* norm = use.input == 0 ? use.node : nullptr;
      if (norm != nullptr && is_normalization(*norm)) return false;
    }
    Backward backward{.grad = grad, .dy = grad->inputs[0]};
    const FusedNormalization op{.epsilon = grad->float_attribute("epsilon", 1e-5F)};
    Value* shift = grad->inputs[2];  // any numbers
    if (Value* kept = masked(backward.dy, /*drops=*/false)) take_mask_of_result(backward, kept);
    backward.is_late = places_.at(x->producer) > places_.at(backward.place());
    if (backward.is_late && uses_.count(grad->inputs[0]) > 1) {  // others may read it before
      backward = {.grad = grad, .dy = grad->inputs[0]};
    }
    const std::vector<Value*> inputs{grad->inputs[1], grad->inputs[2], shift, grad->inputs[2],
                                     grad->inputs[2]};
    if (!prefers(inputs, {nullptr}, op, *grad) || !prefers(op, shift, backward)) return false;
    Node* statistics = graph_.make_node(opdef::kFusedNormalization, inputs, {nullptr}, grad->name,
                                        op.attributes(), ir::kFusedDomain);
    statistics_[backward.place()] = statistics;
    const auto [mean, inverse] = add_statistics(*statistics, *grad->inputs[2], x->name);
    emit(op, shift, backward, mean, inverse);
    return true;
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
    const Node* condition = backward.dy->producer->inputs[0]->producer;
    if (!is_op(condition, "Greater") || before_rounding(condition->inputs[0]) != forward.result()) {
      return;
    }
    take_mask_of_result(backward, kept);
    const bool is_exact = backward.result == forward.result();
    if (backward.mask == NormMask::kResult && is_exact && forward.residual == nullptr) {
      backward.mask = NormMask::kPositive;
      backward.result = nullptr;
    }
  }

  // Where(result > 0, kept, 0)
  void take_mask_of_result(Backward& backward, Value* kept) const {
    Node* where = backward.dy->producer;
    const Node* condition = where->inputs[0]->producer;
    if (!is_op(condition, "Greater") || !has_shape_of(condition->inputs[0], backward.dy) ||
        !is_zero(condition->inputs[1])) {
      return;
    }
    backward.before.insert(backward.before.begin(), where);
    backward.dy = kept;
    backward.result = condition->inputs[0];
    backward.mask = NormMask::kResult;
  }

  // Nothing else may read the conditions. No y: there is no mask.
  ClipMask clip_mask_of(Value* dy) const {
    ClipMask mask{.kept = dy};
    std::optional<float> raised_to;
    if (const Node* above = condition_of(mask, "Greater")) {
      mask.high = scalar_of(above->inputs[1]);
      const Value* raised = above->inputs[0];
      const Node* max = raised->producer;
      if (is_op(max, "Max") && max->inputs.size() == 2 && uses_.count(raised) == 1) {
        raised_to = scalar_of(max->inputs[1]);
        raised = max->inputs[0];
      }
      if (!mask.high) return {};
      take_condition(mask, raised);
    }
    if (const Node* below = condition_of(mask, "Less")) {
      const bool is_inner =
          mask.nodes.empty() || (below->inputs[0] == mask.y && uses_.count(mask.kept) == 1);
      mask.low = scalar_of(below->inputs[1]);
      if (!is_inner || !mask.low) return {};
      take_condition(mask, below->inputs[0]);
    }
    return raised_to == mask.low || !mask.high ? mask : ClipMask();
  }

  // The condition under which what is left of the gradient is dropped, if it is such a comparison.
  const Node* condition_of(const ClipMask& mask, std::string_view op_type) const {
    if (masked(mask.kept, /*drops=*/true) == nullptr) return nullptr;
    const Value* condition = mask.kept->producer->inputs[0];
    const bool is_one = is_op(condition->producer, op_type) && uses_.count(condition) == 1;
    return is_one ? condition->producer : nullptr;
  }

  void take_condition(ClipMask& mask, const Value* y) const {
    mask.y = y;
    mask.nodes.push_back(mask.kept->producer);
    mask.kept = masked(mask.kept, /*drops=*/true);
  }

  // All readers of y must be the Clip and the masks.
  bool take_clip_mask(const Forward& forward, Backward& backward) const {
    const Node& clip = *forward.last();
    const ClipMask mask = clip_mask_of(backward.dy);
    if (mask.y != forward.norm->outputs[0] || mask.low != scalar_of(clip.input(1)) ||
        mask.high != scalar_of(clip.input(2)) || uses_.count(mask.y) != mask.nodes.size() + 1 ||
        places_.at(mask.nodes.front()) < places_.at(forward.last())) {
      return false;
    }
    backward.before = mask.nodes;
    backward.dy = mask.kept;
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

  static std::vector<Value*> inputs_of(const Forward& forward) {
    const Node& norm = *forward.norm;
    std::vector<Value*> inputs(norm.inputs.begin(), norm.inputs.begin() + 5);
    if (forward.residual != nullptr) inputs.push_back(forward.residual);
    return inputs;
  }

  // The result and the running statistics.
  static std::vector<Value*> outputs_of(const Forward& forward) {
    const Node& norm = *forward.norm;
    std::vector<Value*> outputs{forward.result()};
    for (std::size_t i = 1; i < 3; ++i) outputs.push_back(norm.output(i));
    return outputs;
  }

  bool prefers(const Forward& forward) const {
    return prefers(inputs_of(forward), outputs_of(forward), forward.op, *forward.norm);
  }

  // Asks for a normalization with these results before its statistics.
  bool prefers(std::vector<Value*> inputs, std::vector<Value*> outputs,
               const FusedNormalization& op, const Node& like) const {
    Value mean = candidate_value(inputs[1]->type);
    Value inverse = candidate_value(inputs[1]->type);
    outputs.resize(3, nullptr);
    outputs.insert(outputs.end(), {&mean, &inverse});
    return context_.prefers(candidate(opdef::kFusedNormalization, std::move(inputs),
                                      std::move(outputs), op.attributes(), like.name));
  }

  // Returns the saved mean and inverse.
  std::pair<Value*, Value*> emit(const Forward& forward) {
    const Node& norm = *forward.norm;
    Node* node =
        graph_.make_node(opdef::kFusedNormalization, inputs_of(forward), outputs_of(forward),
                         norm.name, forward.op.attributes(), ir::kFusedDomain);
    taken_.insert(forward.norm);
    taken_.insert(forward.after.begin(), forward.after.end());
    fused_[forward.last()] = node;
    return add_statistics(*node, *norm.inputs[1], norm.outputs[0]->name);
  }

  std::pair<Value*, Value*> add_statistics(Node& node, const Value& scale,
                                           const std::string& name) {
    Value* mean = graph_.add_output(&node, 3, scale.type, name + "_mean");
    Value* inverse = graph_.add_output(&node, 4, scale.type, name + "_inverse");
    return {mean, inverse};
  }

  // The gradient with what surrounds it, in no graph.
  Node gradient_of(const FusedNormalization& surroundings, Value* shift, const Backward& backward,
                   Value* mean, Value* inverse) const {
    const Node& grad = *backward.grad;
    FusedNormalization op = surroundings;
    op.mask = backward.mask;
    std::vector<Value*> inputs = {backward.dy, grad.inputs[1], grad.inputs[2],
                                  shift,       mean,           inverse};
    if (backward.more != nullptr || backward.result != nullptr) inputs.push_back(backward.more);
    if (backward.result != nullptr) inputs.push_back(backward.result);
    std::vector<Value*> outputs = grad.outputs;
    Value* g = grad.inputs[0];
    if (!backward.before.empty() && uses_.count(g) > 1) {
      outputs.resize(3, nullptr);
      outputs.push_back(g);
    }
    return candidate(opdef::kFusedNormalizationGrad, std::move(inputs), std::move(outputs),
                     op.attributes(), grad.name);
  }

  bool prefers(const FusedNormalization& surroundings, Value* shift,
               const Backward& backward) const {
    Value mean = candidate_value(backward.grad->inputs[2]->type);
    Value inverse = candidate_value(backward.grad->inputs[2]->type);
    return context_.prefers(gradient_of(surroundings, shift, backward, &mean, &inverse));
  }

  void emit(const FusedNormalization& surroundings, Value* shift, const Backward& backward,
            Value* mean, Value* inverse) {
    Node made = gradient_of(surroundings, shift, backward, mean, inverse);
    taken_.insert(backward.grad);
    taken_.insert(backward.before.begin(), backward.before.end());
    fused_[backward.place()] = graph_.make_node(made.op_type, std::move(made.inputs), made.outputs,
                                                made.name, std::move(made.attributes), made.domain);
  }

  ir::Graph& graph_;
  const PassContext& context_;
  ir::Uses uses_;
  std::unordered_map<const Node*, std::size_t> places_;
  std::unordered_set<const Node*> taken_;
  std::unordered_map<const Node*, Node*> fused_;       // by the node in whose place it is
  std::unordered_map<const Node*, Node*> statistics_;  // by the node before which it is
};

}  // namespace

bool fuse_normalization(ir::Graph& graph, const PassContext& context) {
  const bool has_normalizations = any_node(graph, [](const Node& node) {
    return opdef::base_name(node.domain, node.op_type).starts_with("BatchNormalization");
  });
  return has_normalizations && NormalizationFusion(graph, context).run();
}

}  // namespace onnxgrad::passes
