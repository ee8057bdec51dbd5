#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "ir/pattern.h"
#include "ir/uses.h"
#include "opdef/random_stream.h"
#include "passes/attention_match.h"
#include "passes/candidate.h"
#include "passes/passes.h"
#include "passes/strided_view.h"

// Pattern: see attention_match.h. Operands are read where they lie: heads that were split off by
// Reshape and Transpose, parts of one tensor of queries, keys and values, repeated keys. Results
// are written where the next node that is no Transpose reads them. A mask that is a constant
// triangle becomes an attribute.

namespace onnxgrad::passes {
namespace {

using ir::Node;
using ir::Value;
using opdef::StridedView;

// A substitute for minus infinity: a score with this value adds nothing to any sum.
constexpr double kNever = -1e30;

struct ReadOperand {
  Value* value = nullptr;
  StridedView view = {};
};

// A result: the value that the kernel writes, and the nodes between that and what it replaces.
struct WrittenResult {
  Value* value = nullptr;
  StridedView view = {};
  std::vector<const Node*> passed = {};
  bool is_transposed = false;  // `value` is new: the result is its transpose
};

/// AttentionSizes as in opdef/attention.h.
struct AttentionSizes {
  std::int64_t heads = 0;
  std::int64_t key_heads = 0;
  std::int64_t queries = 0;
  std::int64_t keys = 0;
  std::int64_t size = 0;
  std::int64_t value_size = 0;
};

std::int64_t dim(const Value* value, std::size_t from_end) {
  const auto& shape = *value->type.shape;
  return shape[shape.size() - 1 - from_end].value();
}

std::vector<std::int64_t> dims_of(const Value* value) {
  const auto dims = value->type.static_dims();
  return dims ? std::vector<std::int64_t>(dims->begin(), dims->end()) : std::vector<std::int64_t>{};
}

bool has_row_elements(const StridedView& view) { return view.strides.back() == 1; }

/// Makes the fused nodes of one match.
class Fusion {
 public:
  Fusion(ir::Graph& graph, const ir::Uses& uses, const AttentionMatch& match)
      : graph_(graph), uses_(uses), match_(match) {}

  /// False if an operand cannot be read in place.
  bool plan() {
    if (!find_sizes() || !plan_operands() || !plan_masks()) return false;
    const auto y = place(match_.product->outputs[0], y_dims(), false);
    if (!y) return false;
    y_ = *y;
    forward_.y = y_.view;
    for (const ScoreStep& step : match_.steps) {
      if (step.kind == ScoreStep::Kind::kScale) forward_.scale *= step.factor;
    }
    forward_.dropout = match_.dropped;
    forward_.probabilities_type = match_.probabilities_type;
    forward_.rounds_gradient = match_.rounds_gradient;
    if (is_rounded() && match_.softmax->outputs[0]->dtype() != DataType::kFloat32) return false;
    return !match_.has_gradient || plan_gradient();
  }

  /// The nodes that are gone: those of the match, and transposes of results.
  std::vector<const Node*> replaced() const {
    std::vector<const Node*> nodes(match_.nodes.begin(), match_.nodes.end());
    for (const WrittenResult* result : {&y_, &dq_, &dk_, &dv_}) {
      nodes.insert(nodes.end(), result->passed.begin(), result->passed.end());
    }
    return nodes;
  }

  /// Whether the device prefers the nodes: with probabilities that are stored for the gradient, or
  /// else computed again, if need be from a result of rounded ones.
  bool is_preferred(const PassContext& context) {
    forward_.stores_probabilities = match_.has_gradient;
    if (prefers_nodes(context)) return true;
    if (!match_.has_gradient) return false;
    forward_.stores_probabilities = false;
    if (prefers_nodes(context)) return true;
    if (!is_rounded()) return false;
    reads_rounded_ = true;
    return prefers_nodes(context);
  }

  Node* make_forward() {
    Node* node = add(forward_node(nullptr), 2);
    ir::Graph::set_output(node, 0, y_.value);
    if (!match_.has_gradient) {
      node->outputs[1] = nullptr;
    } else {
      stats_ = node->outputs[1];
      stats_->type = stats_type();
    }
    return node;
  }

  /// And a Transpose, where the gradient of transposed keys must be transposed.
  std::vector<Node*> make_gradient() {
    Node* node = add(gradient_node(stats_, dk_.value), 4);
    std::vector<Node*> nodes{node};
    if (dk_.is_transposed) {
      dk_.value = node->outputs[2];
      dk_.value->type = transposed_type();
      std::vector<std::int64_t> perm(dk_.value->type.rank());
      for (std::size_t i = 0; i < perm.size(); ++i) perm[i] = static_cast<std::int64_t>(i);
      std::swap(perm[perm.size() - 1], perm[perm.size() - 2]);
      nodes.push_back(graph_.make_node("Transpose", {dk_.value}, {match_.dkt->outputs[0]},
                                       "Transpose", {{.name = "perm", .value = perm}}));
    }
    const std::vector<Value*> results{dq_.value, dk_.value, dv_.value, match_.dscore};
    for (std::size_t i = 0; i < results.size(); ++i) {
      node->outputs[i] = nullptr;
      if (results[i] != nullptr) ir::Graph::set_output(node, i, results[i]);
    }
    return nodes;
  }

  bool has_gradient() const { return match_.has_gradient; }

 private:
  // The value that the gradient reads for an operand of the forward pass; `by` is a view of it.
  static Value* as_read(Value* operand, Value* by) {
    if (by == nullptr) return operand;
    for (const ValueView& found : views_of(by)) {
      if (before_rounding(found.base) == before_rounding(operand)) return found.base;
    }
    return operand;
  }

  bool is_rounded() const { return forward_.probabilities_type != DataType::kUndefined; }

  std::vector<std::int64_t> q_dims() const { return {sizes_.heads, sizes_.queries, sizes_.size}; }
  std::vector<std::int64_t> k_dims() const { return {sizes_.key_heads, sizes_.keys, sizes_.size}; }
  std::vector<std::int64_t> v_dims() const {
    return {sizes_.key_heads, sizes_.keys, sizes_.value_size};
  }
  std::vector<std::int64_t> y_dims() const {
    return {sizes_.heads, sizes_.queries, sizes_.value_size};
  }

  static ir::SymbolicShape swapped(const Value* value) {
    ir::SymbolicShape shape = *value->type.shape;
    std::swap(shape[shape.size() - 1], shape[shape.size() - 2]);
    return shape;
  }

  bool prefers_nodes(const PassContext& context) const {
    Value stats = candidate_value(stats_type());
    if (!context.prefers(forward_node(match_.has_gradient ? &stats : nullptr))) return false;
    if (!match_.has_gradient) return true;
    Value transposed = candidate_value(dk_.is_transposed ? transposed_type() : ir::Type());
    return context.prefers(gradient_node(&stats, dk_.is_transposed ? &transposed : dk_.value));
  }

  Node forward_node(Value* stats) const {
    std::vector<Value*> inputs{q_.value, k_.value, v_.value};
    inputs.insert(inputs.end(), masks_.begin(), masks_.end());
    return node_of(opdef::kAttention, std::move(inputs), {y_.value, stats}, forward_.attributes());
  }

  Node gradient_node(Value* stats, Value* dk) const {
    Value* const y = is_rounded() && !reads_rounded_ ? nullptr : y_.value;
    const auto at = [](Node* node, std::size_t i) { return node ? node->inputs[i] : nullptr; };
    std::vector<Value*> inputs{dy_.value,
                               y,
                               stats,
                               as_read(q_.value, at(match_.dkt, 0)),
                               as_read(k_.value, at(match_.dq, 1)),
                               as_read(v_.value, at(match_.dp, 1))};
    inputs.insert(inputs.end(), masks_.begin(), masks_.end());
    const opdef::AttentionGradient gradient{
        .forward = forward_, .dy = dy_.view, .dq = dq_.view, .dk = dk_.view, .dv = dv_.view};
    return node_of(opdef::kAttentionGradient, std::move(inputs),
                   {dq_.value, dk, dv_.value, match_.dscore}, gradient.attributes());
  }

  // A candidate that draws the random numbers of the dropout.
  Node node_of(std::string_view op_type, std::vector<Value*> inputs, std::vector<Value*> outputs,
               std::vector<ir::Attribute> attributes) const {
    Node node = candidate(op_type, std::move(inputs), std::move(outputs), std::move(attributes),
                          match_.product->name);
    if (match_.dropout != nullptr) {
      opdef::draw_like(*match_.dropout, node);
      if (const auto* seed = match_.dropout->find_attribute("seed")) {
        node.set_attribute("seed", *seed);
      }
    }
    return node;
  }

  // Adds a candidate to the graph with outputs of its own.
  Node* add(Node node, std::size_t num_outputs) {
    Node* added = graph_.add_node(node.op_type, std::move(node.inputs), num_outputs,
                                  std::move(node.attributes), node.domain, node.name);
    graph_.nodes.pop_back();
    added->metadata = std::move(node.metadata);
    return added;
  }

  ir::Type stats_type() const {
    const std::int64_t columns = forward_.stores_probabilities ? sizes_.keys : 2;
    const bool is_narrow = forward_.stores_probabilities && is_rounded();
    return ir::Type::tensor(is_narrow ? forward_.probabilities_type : y_.value->dtype(),
                            ir::SymbolicShape{sizes_.heads * sizes_.queries, columns});
  }

  // The gradient of transposed keys before its Transpose.
  ir::Type transposed_type() const {
    const Value* transposed = match_.dkt->outputs[0];
    return ir::Type::tensor(transposed->dtype(), swapped(transposed));
  }

  // All rows of scores, of both products, are queries of heads.
  bool find_sizes() {
    const Value* scores = match_.scores->outputs[0];
    const Value* y = match_.product->outputs[0];
    const auto all = scores->type.static_dims();
    if (!all || all->num_elements() == 0 || !y->type.static_dims()) return false;
    sizes_.keys = dim(scores, 0);
    sizes_.size = dim(match_.scores->inputs[0], 0);
    sizes_.value_size = dim(y, 0);
    sizes_.queries = dim(match_.softmax->outputs[0], 1);
    if (sizes_.size < 1 || sizes_.value_size < 1 || sizes_.queries < 1) return false;
    if (dim(match_.softmax->outputs[0], 0) != sizes_.keys) return false;
    const std::int64_t rows = all->num_elements() / sizes_.keys;
    sizes_.heads = rows / sizes_.queries;
    sizes_.key_heads = rows / dim(scores, 1);
    const std::int64_t matmul_rows = y->type.fixed_dims().num_elements() / sizes_.value_size;
    return dim(scores, 1) % sizes_.queries == 0 && matmul_rows == rows &&
           dim(y, 1) == dim(scores, 1) && dim(match_.product->inputs[1], 1) == sizes_.keys;
  }

  // `value`, an operand of a product with result `like`, repeated as the product repeats it.
  template <class Test>
  static std::optional<ReadOperand> operand(Value* value, const Value* like, bool is_transposed,
                                            const std::vector<std::int64_t>& dims,
                                            const Test& test) {
    std::vector<std::int64_t> all = dims_of(like);
    if (value->type.rank() < 2) return std::nullopt;
    all[all.size() - 2] = dim(value, 1);
    all[all.size() - 1] = dim(value, 0);
    for (const ValueView& found : views_of(value)) {
      AxisView view = found.view.broadcast(all);
      if (is_transposed) view = view.with_last_axes_swapped();
      const auto shaped = view.reshaped(dims);
      const auto strided = shaped ? shaped->matrices() : std::nullopt;
      if (strided && test(*strided)) return ReadOperand{.value = found.base, .view = *strided};
    }
    return std::nullopt;
  }

  bool plan_operands() {
    const auto one_is_adjacent = [](const StridedView& view) {
      return view.strides.back() == 1 || view.strides[view.strides.size() - 2] == 1;
    };
    const Node& scores = *match_.scores;
    const Node& product = *match_.product;
    const auto q = operand(scores.inputs[0], scores.outputs[0], false, q_dims(), has_row_elements);
    const auto k = operand(scores.inputs[1], scores.outputs[0], true, k_dims(), one_is_adjacent);
    const auto v =
        operand(product.inputs[1], product.outputs[0], false, v_dims(), has_row_elements);
    if (!q || !k || !v) return false;
    q_ = *q, k_ = *k, v_ = *v;
    forward_.q = q_.view, forward_.k = k_.view, forward_.v = v_.view;
    return true;
  }

  bool plan_masks() {
    for (const ScoreStep& step : match_.steps) {
      if (step.kind != ScoreStep::Kind::kMask) continue;
      const Value* masked = step.node->outputs[0];
      if (dim(masked, 1) != sizes_.queries) return false;
      if (!forward_.causal && take_triangle(step)) continue;
      const bool adds = step.mask_kind == opdef::MaskKind::kAdd;
      if (adds ? step.mask->dtype() != masked->dtype() : step.mask->dtype() != DataType::kBool) {
        return false;
      }
      if (!plan_mask(step, masked)) return false;
    }
    return true;
  }

  bool plan_mask(const ScoreStep& step, const Value* masked) {
    const std::vector<std::int64_t> dims{sizes_.heads, sizes_.queries, sizes_.keys};
    for (const ValueView& found : views_of(step.mask)) {
      const auto shaped = found.view.broadcast(dims_of(masked)).reshaped(dims);
      auto view = shaped ? shaped->matrices() : std::nullopt;
      if (!view || view->strides.back() > 1) continue;
      forward_.masks.push_back({.kind = step.mask_kind, .fill = step.fill, .view = *view});
      masks_.push_back(found.base);
      return true;
    }
    return false;
  }

  // A constant that leaves each query a number of first keys, one more for each next query.
  bool take_triangle(const ScoreStep& step) {
    const Value* mask = step.mask;
    const auto dims = mask->type.static_dims();
    const std::int64_t count = sizes_.queries * sizes_.keys;
    if (!mask->is_constant() || !dims || dims->num_elements() != count) return false;
    if (dims->rank() < 2 || dim(mask, 0) != sizes_.keys || dim(mask, 1) != sizes_.queries) {
      return false;
    }
    const bool adds = step.mask_kind == opdef::MaskKind::kAdd;
    if (!adds && static_cast<double>(step.fill) > kNever) return false;
    const Tensor& tensor = mask->initializer;
    const std::vector<double> numbers =
        tensor.dtype() == DataType::kBool ? as_numbers(tensor.to_int64s()) : tensor.to_doubles();
    const auto is_seen = [&](std::int64_t i) -> std::optional<bool> {
      const double number = numbers[static_cast<std::size_t>(i)];
      if (!adds) return (number != 0) == (step.mask_kind == opdef::MaskKind::kKeep);
      if (number == 0) return true;
      return number <= kNever ? std::optional<bool>(false) : std::nullopt;
    };
    std::int64_t first_row = 0;
    while (first_row < sizes_.keys && is_seen(first_row) == true) ++first_row;
    if (first_row == 0) return false;
    const std::int64_t offset = first_row - 1;
    for (std::int64_t i = 0; i < count; ++i) {
      const bool expected = i % sizes_.keys <= i / sizes_.keys + offset;
      if (is_seen(i) != expected) return false;
    }
    forward_.causal = true;
    forward_.causal_offset = offset;
    return true;
  }

  static std::vector<double> as_numbers(const std::vector<std::int64_t>& ints) {
    return {ints.begin(), ints.end()};
  }

  bool plan_gradient() {
    const auto dy =
        operand(match_.dy, match_.product->outputs[0], false, y_dims(), has_row_elements);
    if (!dy) return false;
    dy_ = *dy;
    return plan_result(match_.dq, q_dims(), false, dq_) &&
           plan_result(match_.dkt, k_dims(), true, dk_) &&
           plan_result(match_.dv, v_dims(), false, dv_);
  }

  bool plan_result(const Node* product, const std::vector<std::int64_t>& dims, bool is_transposed,
                   WrittenResult& result) {
    if (product == nullptr) return true;
    auto found = place(product->outputs[0], dims, is_transposed);
    if (!found) return false;
    result = *std::move(found);
    return true;
  }

  /// The place that a result is written to: past the Transposes that alone read it.
  std::optional<WrittenResult> place(Value* value, const std::vector<std::int64_t>& dims,
                                     bool is_transposed) const {
    std::optional<WrittenResult> best;
    std::vector<const Node*> chain;
    for (Value* last = value;;) {
      std::optional<AxisView> view(AxisView{dims_of(last)});
      for (auto node = chain.rbegin(); node != chain.rend() && view; ++node) {
        view = undo(**node, *view);
      }
      if (!view) break;
      if (is_transposed) view = view->with_last_axes_swapped();
      const auto shaped = view->reshaped(dims);
      const auto strided = shaped ? shaped->matrices() : std::nullopt;
      const bool is_end = chain.empty() || ir::is_op(chain.back(), "Transpose");
      if (is_end && strided && has_row_elements(*strided)) {
        best = WrittenResult{.value = last, .view = *strided, .passed = chain};
      }
      Node* next = uses_.only_reader(last);
      if (next == nullptr || next->input(0) != last) break;
      chain.push_back(next);
      last = next->output(0);
      if (last == nullptr || !last->type.static_dims()) break;
    }
    if (best || !is_transposed) return best;
    // Written as [K..., T, D], then transposed.
    std::vector<std::int64_t> all = dims_of(value);
    std::swap(all[all.size() - 1], all[all.size() - 2]);
    const auto shaped = AxisView(all).reshaped(dims);
    const auto strided = shaped ? shaped->matrices() : std::nullopt;
    if (!strided) return std::nullopt;
    return WrittenResult{.view = *strided, .is_transposed = true};
  }

  ir::Graph& graph_;
  const ir::Uses& uses_;
  const AttentionMatch& match_;
  AttentionSizes sizes_;
  opdef::Attention forward_;
  ReadOperand q_, k_, v_, dy_;
  std::vector<Value*> masks_;
  WrittenResult y_, dq_, dk_, dv_;
  bool reads_rounded_ = false;  // the gradient reads y, a sum of rounded probabilities
  Value* stats_ = nullptr;
};

bool overlaps(const std::vector<const Node*>& nodes,
              const std::unordered_set<const Node*>& replaced) {
  return std::ranges::any_of(nodes, [&](const Node* node) { return replaced.contains(node); });
}

}  // namespace

bool fuse_attention(ir::Graph& graph, const PassContext& context) {
  const ir::Uses uses(graph);
  std::vector<AttentionMatch> matches;
  for (Node* node : graph.nodes) {
    if (!ir::is_op(node, "Softmax")) continue;
    if (auto match = match_attention(*node, uses)) matches.push_back(*std::move(match));
  }
  std::unordered_set<const Node*> replaced;
  std::unordered_map<const Node*, std::vector<Node*>> made;  // before what they go
  for (const AttentionMatch& match : matches) {
    Fusion fusion(graph, uses, match);
    if (!fusion.plan()) continue;
    const std::vector<const Node*> gone = fusion.replaced();
    if (overlaps(gone, replaced) || !fusion.is_preferred(context)) continue;
    replaced.insert(gone.begin(), gone.end());
    made[match.product].push_back(fusion.make_forward());
    if (!fusion.has_gradient()) continue;
    // The gradient goes before the first node that reads dy: all its operands exist there.
    const auto reads_dy = [&](const Node* node) { return node == match.dp || node == match.dv; };
    const Node* first = *std::ranges::find_if(graph.nodes, reads_dy);
    for (Node* node : fusion.make_gradient()) made[first].push_back(node);
  }
  if (made.empty()) return false;
  std::vector<Node*> nodes;
  for (Node* node : graph.nodes) {
    if (const auto found = made.find(node); found != made.end()) {
      nodes.insert(nodes.end(), found->second.begin(), found->second.end());
    }
    if (!replaced.contains(node)) nodes.push_back(node);
  }
  graph.nodes = std::move(nodes);
  ir::eliminate_dead_nodes(graph);
  return true;
}

}  // namespace onnxgrad::passes
