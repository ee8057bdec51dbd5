#include "passes/attention_match.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "ir/pattern.h"
#include "passes/strided_view.h"

namespace onnxgrad::passes {
namespace {

using ir::is_op;
using ir::Node;
using ir::Value;

constexpr int kMaxSteps = 16;

std::optional<double> fixed_number(const Value* value) {
  if (value == nullptr || !value->is_constant() || value->initializer.num_elements() != 1) {
    return std::nullopt;
  }
  const Tensor& tensor = value->initializer;
  if (tensor.dtype() == DataType::kBool) return static_cast<double>(tensor.to_int64s().front());
  return tensor.to_doubles().front();
}

bool has_dims_of(const Value* a, const Value* b) {
  const auto dims = a->type.static_dims();
  return dims && dims == b->type.static_dims();
}

std::int64_t dim_from_end(const Value* value, std::size_t i) {
  const auto dims = value->type.static_dims();
  return dims && dims->rank() > i ? (*dims)[dims->rank() - 1 - i] : -1;
}

bool is_batched_matmul(const Node* node) {
  return is_op(node, "MatMul") && node->inputs[0]->type.rank() >= 3 &&
         node->inputs[1]->type.rank() >= 2 && node->outputs[0]->type.static_dims();
}

// The nodes from MatMul(q, kt) to `value`, in order; false if there is no such way.
bool find_scores(Value* value, AttentionMatch& match, int depth) {
  Node* node = value->producer;
  if (node == nullptr || !node->domain.empty() || depth > kMaxSteps) return false;
  if (is_batched_matmul(node)) {
    match.scores = node;
    return true;
  }
  const auto via = [&](std::size_t input, ScoreStep step) {
    Value* from = node->input(input);
    if (from == nullptr || !find_scores(from, match, depth + 1)) return false;
    step.node = node;
    match.steps.push_back(step);
    return true;
  };
  if (is_reshape(*node)) {
    return dim_from_end(value, 0) == dim_from_end(node->inputs[0], 0) &&
           via(0, {.kind = ScoreStep::Kind::kReshape});
  }
  if (node->op_type == "Mul" || node->op_type == "Div") {
    for (const std::size_t side : {0U, 1U}) {
      const auto factor = fixed_number(node->inputs[1 - side]);
      if (!factor || !has_dims_of(node->inputs[side], value)) continue;
      if (node->op_type == "Mul") return via(side, {.factor = *factor});
      if (side == 0) return via(side, {.factor = 1 / *factor});
    }
    return false;
  }
  if (node->op_type == "Add") {
    for (const std::size_t side : {0U, 1U}) {
      const ScoreStep step{.kind = ScoreStep::Kind::kMask,
                           .mask_kind = opdef::MaskKind::kAdd,
                           .mask = node->inputs[1 - side]};
      if (has_dims_of(node->inputs[side], value) && via(side, step)) return true;
    }
    return false;
  }
  if (node->op_type == "Where") {
    for (const std::size_t side : {1U, 2U}) {
      const auto fill = fixed_number(node->inputs[3 - side]);
      if (!fill || !has_dims_of(node->inputs[side], value)) continue;
      return via(side,
                 {.kind = ScoreStep::Kind::kMask,
                  .mask_kind = side == 1 ? opdef::MaskKind::kKeep : opdef::MaskKind::kOverwrite,
                  .mask = node->inputs[0],
                  .fill = static_cast<float>(*fill)});
    }
  }
  return false;
}

// A scale after a mask would scale the mask too.
bool scales_come_first(const std::vector<ScoreStep>& steps) {
  bool is_masked = false;
  for (const ScoreStep& step : steps) {
    if (step.kind == ScoreStep::Kind::kScale && is_masked) return false;
    is_masked = is_masked || step.kind == ScoreStep::Kind::kMask;
  }
  return true;
}

/// Follows readers of values and collects the nodes of a match.
class Finder {
 public:
  Finder(const ir::Uses& uses, AttentionMatch& match) : uses_(uses), match_(match) {}

  bool find_forward() {
    Node& softmax = *match_.softmax;
    const std::size_t rank = softmax.outputs[0]->type.rank();
    const std::int64_t axis = softmax.int_attribute("axis");
    if (rank < 3 || (axis != -1 && axis != static_cast<std::int64_t>(rank) - 1)) return false;
    if (!find_scores(softmax.inputs[0], match_, 0) || !scales_come_first(match_.steps)) {
      return false;
    }
    take(match_.scores);
    for (const ScoreStep& step : match_.steps) take(step.node);
    take(&softmax);
    used_ = find_rounding(softmax.outputs[0]);
    if (Node* dropout = reader(used_, "Dropout", 0); dropout != nullptr) {
      if (!match_dropout(*dropout)) return false;
      take(dropout);
      used_ = dropout->outputs[0];
    }
    Value* probabilities = used_;
    while (Node* reshape = forward_reshape(probabilities)) {
      take(reshape);
      probabilities = reshape->outputs[0];
    }
    match_.product = reader(probabilities, "MatMul", 0);
    if (!is_batched_matmul(match_.product)) return false;
    take(match_.product);
    return true;
  }

  bool find_gradient() {
    Value* p = rounded_ == nullptr ? match_.softmax->outputs[0] : rounded_;
    // p without unused NaN: Where(And(IsNaN(p), dp == 0), 0, p).
    Node* used = reader(p, "Where", 2);
    Node* is_nan = reader(p, "IsNaN", 0);
    Node* both = used == nullptr ? nullptr : used->inputs[0]->producer;
    if (is_nan == nullptr || !is_op(both, "And")) return false;
    Node* equal = other_input(*both, is_nan->outputs[0]) == nullptr
                      ? nullptr
                      : other_input(*both, is_nan->outputs[0])->producer;
    if (!is_op(equal, "Equal") || fixed_number(equal->inputs[1]) != 0.0 ||
        fixed_number(used->inputs[1]) != 0.0) {
      return false;
    }
    Value* dp = equal->inputs[0];
    Value* probabilities = used->outputs[0];
    Node* along = product_of(probabilities, dp);
    Node* sum = along == nullptr ? nullptr : reader(along->outputs[0], "ReduceSum", 0);
    if (sum == nullptr || !sums_last_axis(*sum)) return false;
    Node* centred = reader(sum->outputs[0], "Sub", 1);
    if (centred == nullptr || centred->inputs[0] != dp) return false;
    Node* ds = product_of(probabilities, centred->outputs[0]);
    if (ds == nullptr) return false;
    for (Node* node : {is_nan, both, equal, used, along, sum, centred, ds}) take(node);
    return find_matmul_gradient(dp) && find_score_gradient(ds->outputs[0]);
  }

  /// After find_gradient(): of the gradients of masked scores, the one that other nodes read, for
  /// the gradient of a mask (a learned bias of positions). More than one leave the match open.
  void find_dscore() {
    for (Value* value : candidates_) {
      if (has_other_reader(value)) {
        match_.dscore = value;
        return;
      }
    }
  }

  /// Whether everything that the nodes compute and the fused kernels do not return is read by
  /// these nodes only, and not as a mask or as v, which the kernels read.
  bool is_closed() const {
    std::vector<const Value*> operands{match_.product->inputs[1]};
    for (const ScoreStep& step : match_.steps) operands.push_back(step.mask);
    const bool reads_own = std::ranges::any_of(operands, [&](const Value* value) {
      return value != nullptr && match_.nodes.contains(value->producer);
    });
    if (reads_own) return false;
    std::unordered_set<const Value*> returned{match_.product->outputs[0]};
    for (const Node* node : {match_.dq, match_.dkt, match_.dv}) {
      if (node != nullptr) returned.insert(node->outputs[0]);
    }
    if (match_.dscore != nullptr) returned.insert(match_.dscore);
    for (const Node* node : match_.nodes) {
      for (const Value* value : node->outputs) {
        if (value != nullptr && !returned.contains(value) && has_other_reader(value)) return false;
      }
    }
    return true;
  }

 private:
  void take(const Node* node) { match_.nodes.insert(node); }

  bool has_other_reader(const Value* value) const {
    return std::ranges::any_of(uses_.of(value), [&](const ir::Use& use) {
      return use.node == nullptr || !match_.nodes.contains(use.node);
    });
  }

  /// The first node with this operator that reads `value` there.
  Node* reader(const Value* value, std::string_view op_type, int input) const {
    for (const ir::Use& use : uses_.of(value)) {
      if (is_op(use.node, op_type) && use.input == input) return use.node;
    }
    return nullptr;
  }

  /// A reshape that leads to a product; those of the gradient lead to other nodes.
  Node* forward_reshape(const Value* value) const {
    for (const ir::Use& use : uses_.of(value)) {
      if (use.node == nullptr || use.input != 0 || !is_reshape(*use.node)) continue;
      const Value* next = use.node->outputs[0];
      if (reader(next, "MatMul", 0) != nullptr || forward_reshape(next) != nullptr) return use.node;
    }
    return nullptr;
  }

  /// Takes the Casts that round p, if there are any; returns what the forward pass reads.
  Value* find_rounding(Value* p) {
    Node* narrow = reader(p, "Cast", 0);
    if (narrow == nullptr || !ir::holds_f16(narrow->outputs[0])) return p;
    Node* wide = reader(narrow->outputs[0], "Cast", 0);
    if (wide == nullptr || wide->outputs[0]->dtype() != p->dtype()) return p;
    take(narrow);
    take(wide);
    rounded_ = wide->outputs[0];
    match_.probabilities_type = narrow->outputs[0]->dtype();
    const bool is_read = reader(p, "Dropout", 0) != nullptr || reader(p, "MatMul", 0) != nullptr ||
                         forward_reshape(p) != nullptr;
    match_.rounds_gradient = is_read;
    return is_read ? p : rounded_;
  }

  static Value* other_input(const Node& node, const Value* one) {
    return node.inputs[0] == one   ? node.inputs[1]
           : node.inputs[1] == one ? node.inputs[0]
                                   : nullptr;
  }

  Node* product_of(const Value* a, const Value* b) const {
    for (const ir::Use& use : uses_.of(a)) {
      if (is_op(use.node, "Mul") && other_input(*use.node, a) == b) return use.node;
    }
    return nullptr;
  }

  static bool sums_last_axis(const Node& sum) {
    const auto rank = static_cast<std::int64_t>(sum.inputs[0]->type.rank());
    const std::vector<std::int64_t> axes = ir::constant_integers(sum.input(1));
    return axes.size() == 1 && (axes[0] == -1 || axes[0] == rank - 1) &&
           sum.int_attribute("keepdims") == 1;
  }

  bool match_dropout(Node& dropout) {
    const Value* mode = dropout.input(2);
    if (mode == nullptr) return true;
    if (!mode->is_constant()) return false;
    if (fixed_number(mode) == 0.0) return true;
    const auto ratio = dropout.input(1) == nullptr ? 0.5 : fixed_number(dropout.input(1));
    if (!ratio || *ratio < 0 || *ratio >= 1) return false;
    if (*ratio == 0) return true;
    match_.dropped = *ratio;
    match_.dropout = &dropout;
    return true;
  }

  // Back from `value` through reshapes, all of which belong to the match.
  Value* before_reshapes(Value* value) {
    while (value->producer != nullptr && is_reshape(*value->producer)) {
      take(value->producer);
      value = value->producer->inputs[0];
    }
    return value;
  }

  // dp = MatMul(dy, Transpose(v)), dropped as p is, and dv.
  bool find_matmul_gradient(Value* dp) {
    if (match_.dropout != nullptr) {
      dp = find_dropout_gradient(dp);
      if (dp == nullptr) return false;
    }
    Node* product = before_reshapes(dp)->producer;
    if (!is_batched_matmul(product)) return false;
    if (!is_transposed(product->inputs[1], match_.product->inputs[1])) return false;
    take(product);
    match_.dp = product;
    match_.dy = product->inputs[0];
    if (!has_dims_of(match_.dy, match_.product->outputs[0])) return false;
    match_.dv = find_matmul_with(used_, /*input=*/0, [&](const Node& node) {
      return is_same_view(node.inputs[1], match_.dy);
    });
    return true;
  }

  // dp = dpd * (Cast(mask) * scale); returns dpd.
  Value* find_dropout_gradient(const Value* dp) {
    const Value* mask = match_.dropout->output(1);
    Node* cast = mask == nullptr ? nullptr : reader(mask, "Cast", 0);
    Node* scaled = nullptr;
    if (cast != nullptr) scaled = reader(cast->outputs[0], "Mul", 0);
    if (cast != nullptr && scaled == nullptr) scaled = reader(cast->outputs[0], "Mul", 1);
    Node* last = dp->producer;
    if (scaled == nullptr || !is_op(last, "Mul")) return nullptr;
    const auto factor = fixed_number(other_input(*scaled, cast->outputs[0]));
    Value* before = other_input(*last, scaled->outputs[0]);
    if (!factor || before == nullptr) return nullptr;
    if (std::abs(*factor * (1 - match_.dropped) - 1) > 1e-6) return nullptr;
    for (Node* node : {cast, scaled, last}) take(node);
    return before;
  }

  // From the gradient of the last masked scores to those of the operands.
  bool find_score_gradient(Value* ds) {
    candidates_.push_back(ds);
    for (auto step = match_.steps.rbegin(); step != match_.steps.rend(); ++step) {
      Node* node = nullptr;
      switch (step->kind) {
        case ScoreStep::Kind::kReshape:
          node = reshape_of(ds, step->node->inputs[0]);
          break;
        case ScoreStep::Kind::kScale:
          node = scaled_by(ds, *step->node);
          break;
        case ScoreStep::Kind::kMask:
          if (step->mask_kind == opdef::MaskKind::kAdd) continue;
          node = kept_by(ds, *step);
          break;
      }
      if (node == nullptr) return false;
      take(node);
      ds = node->outputs[0];
      if (step->kind == ScoreStep::Kind::kMask) candidates_.push_back(ds);
    }
    const Node& scores = *match_.scores;
    match_.dq = find_direct_matmul(ds, 0, scores.inputs[1]);
    match_.dkt = find_direct_matmul(ds, 1, scores.inputs[0]);
    return match_.dq != nullptr || match_.dkt != nullptr || match_.dscore != nullptr;
  }

  Node* reshape_of(const Value* ds, const Value* like) const {
    for (const ir::Use& use : uses_.of(ds)) {
      if (use.node != nullptr && use.input == 0 && is_reshape(*use.node) &&
          has_dims_of(use.node->outputs[0], like)) {
        return use.node;
      }
    }
    return nullptr;
  }

  Node* scaled_by(const Value* ds, const Node& scale) const {
    const bool divides = scale.op_type == "Div";
    const Value* constant = fixed_number(scale.inputs[1]) ? scale.inputs[1] : scale.inputs[0];
    for (const ir::Use& use : uses_.of(ds)) {
      if (!is_op(use.node, scale.op_type) || (divides && use.input != 0)) continue;
      const Value* other = other_input(*use.node, ds);
      if (other != nullptr && fixed_number(other) == fixed_number(constant) &&
          has_dims_of(use.node->outputs[0], ds)) {
        return use.node;
      }
    }
    return nullptr;
  }

  Node* kept_by(const Value* ds, const ScoreStep& step) const {
    const int side = step.mask_kind == opdef::MaskKind::kKeep ? 1 : 2;
    for (const ir::Use& use : uses_.of(ds)) {
      if (!is_op(use.node, "Where") || use.input != side) continue;
      if (use.node->inputs[0] == step.mask &&
          fixed_number(use.node->inputs[static_cast<std::size_t>(3 - side)]) == 0.0) {
        return use.node;
      }
    }
    return nullptr;
  }

  /// MatMul of `value`, transposed and perhaps reshaped, as that input, that satisfies `test`.
  template <class Test>
  Node* find_matmul_with(Value* value, int input, const Test& test) {
    for (const ir::Use& use : uses_.of(value)) {
      if (use.node == nullptr || use.input != 0) continue;
      Value* next = use.node->output(0);
      if (is_reshape(*use.node)) {
        if (Node* found = find_matmul_with(next, input, test)) {
          take(use.node);
          return found;
        }
      } else if (is_op(use.node, "Transpose") && is_transposed(next, value)) {
        for (const ir::Use& product : uses_.of(next)) {
          if (is_batched_matmul(product.node) && product.input == input && test(*product.node)) {
            take(use.node);
            take(product.node);
            return product.node;
          }
        }
      }
    }
    return nullptr;
  }

  /// MatMul of `ds` itself as that input, with the transpose of `operand` as the other.
  Node* find_direct_matmul(const Value* ds, int input, Value* operand) {
    for (const ir::Use& use : uses_.of(ds)) {
      if (!is_batched_matmul(use.node) || use.input != input) continue;
      if (is_transposed(use.node->inputs[static_cast<std::size_t>(1 - input)], operand)) {
        take(use.node);
        return use.node;
      }
    }
    return nullptr;
  }

  static bool is_transposed(Value* a, Value* b) {
    std::vector<ValueView> views = views_of(a);
    if (views.empty() || a->type.rank() < 2) return false;
    for (ValueView& view : views) view.view = view.view.with_last_axes_swapped();
    return meets(views, views_of(b));
  }

  static bool is_same_view(Value* a, Value* b) {
    return has_dims_of(a, b) && meets(views_of(a), views_of(b));
  }

  static bool meets(const std::vector<ValueView>& a, const std::vector<ValueView>& b) {
    return std::ranges::any_of(a, [&](const ValueView& one) {
      return std::ranges::any_of(b, [&](const ValueView& other) {
        return one.view == other.view && before_rounding(one.base) == before_rounding(other.base);
      });
    });
  }

  const ir::Uses& uses_;
  AttentionMatch& match_;
  Value* used_ = nullptr;           // p after the dropout
  Value* rounded_ = nullptr;        // p rounded to 16 bits
  std::vector<Value*> candidates_;  // gradients of masked scores
};

}  // namespace

const Value* before_rounding(const Value* value) {
  const Node* wide = value->producer;
  if (!is_op(wide, "Cast") || wide->input(0) == nullptr) return value;
  const Node* narrow = wide->inputs[0]->producer;
  const bool rounds = ir::holds_f16(wide->inputs[0]) && is_op(narrow, "Cast") &&
                      narrow->inputs[0]->dtype() == value->dtype();
  return rounds ? narrow->inputs[0] : value;
}

std::optional<AttentionMatch> match_attention(Node& softmax, const ir::Uses& uses) {
  AttentionMatch match{.softmax = &softmax};
  const DataType dtype = softmax.outputs[0]->dtype();
  if (dtype != DataType::kFloat32 && dtype != DataType::kFloat64) return std::nullopt;
  Finder finder(uses, match);
  if (!finder.find_forward()) return std::nullopt;
  const AttentionMatch forward = match;
  if (finder.find_gradient()) {
    finder.find_dscore();
    match.has_gradient = true;
    if (finder.is_closed()) return match;
  }
  match = forward;
  if (!finder.is_closed()) return std::nullopt;
  return match;
}

}  // namespace onnxgrad::passes
