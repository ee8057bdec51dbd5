#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "opdef/fused.h"
#include "passes/candidate.h"
#include "passes/passes.h"
#include "passes/rewriter.h"
#include "passes/step_patterns.h"

// Pattern: everything that depends on the scores X w of a linear model is a polynomial of them: the
// squared error, summed over the rows, its gradient and the updates. Each value is followed as
// factor * z^power with z = X w + sum of coefficient * leaf + shift, whatever operators spell it.

namespace onnxgrad::passes {
namespace {

constexpr std::size_t kMostLeaves = 2;  // the bias and the target

struct Leaf {
  ir::Value* value = nullptr;
  double coefficient = 0;
};

// (scores * a + leaves + shift)^power * factor * rate, of each row, or summed over the rows.
struct Polynomial {
  double scores = 0;
  std::vector<Leaf> leaves = {};
  double shift = 0;
  int power = 1;
  double factor = 1;  ///< 1 if power is 1
  ir::Value* rate = nullptr;
  bool is_sum = false;
};

bool is_close(double a, double b) { return std::abs(a - b) <= 1e-12 * std::abs(b); }

double coefficient_of(const Polynomial& p, const ir::Value* leaf) {
  for (const Leaf& known : p.leaves) {
    if (known.value == leaf) return known.coefficient;
  }
  return 0;
}

// r with a = r * b for polynomials of power 1.
std::optional<double> ratio(const Polynomial& a, const Polynomial& b) {
  if (b.scores == 0) return std::nullopt;
  const double r = a.scores / b.scores;
  if (r == 0 || !is_close(a.shift, r * b.shift) || a.leaves.size() != b.leaves.size()) {
    return std::nullopt;
  }
  const bool is_multiple = std::ranges::all_of(a.leaves, [&](const Leaf& leaf) {
    return is_close(leaf.coefficient, r * coefficient_of(b, leaf.value));
  });
  return is_multiple ? std::optional(r) : std::nullopt;
}

Polynomial scaled(Polynomial p, double by) {
  if (p.power == 2) {
    p.factor *= by;
    return p;
  }
  p.scores *= by;
  p.shift *= by;
  for (Leaf& leaf : p.leaves) leaf.coefficient *= by;
  return p;
}

// The next value of the bias: leaf + step * rate * sum(z).
struct BiasUpdate {
  ir::Node* node = nullptr;
  ir::Value* bias = nullptr;
  Polynomial move = {};
};

class LinearStepMatch {
 public:
  LinearStepMatch(const ir::Graph& graph, const PassContext& context, ir::Node* update)
      : graph_(graph), context_(context), update_(update) {}

  /// Whether all that reads the scores is part of the step.
  bool find();
  /// The step, in no graph.
  ir::Node step() const;
  void rewrite(ir::Graph& graph) const;

 private:
  bool find_scores();
  bool follow(ir::Node& node);
  std::optional<Polynomial> value_of(const ir::Node& node);
  std::optional<Polynomial> sum_of(const ir::Node& node);
  std::optional<Polynomial> product_of(const ir::Node& node);
  std::optional<Polynomial> combination_of(ir::Node& node);
  std::optional<Polynomial> with_leaf(Polynomial p, double factor, ir::Value* leaf) const;
  std::optional<Polynomial> added(const Polynomial& a, double sign, const Polynomial& b) const;
  const Polynomial* known(const ir::Value* value) const {
    const auto at = values_.find(value);
    return at == values_.end() ? nullptr : &at->second;
  }
  bool find_results();
  bool choose_leaves();
  bool comes_in_time() const;

  const ir::Graph& graph_;
  const PassContext& context_;
  ir::Node* update_;  ///< GemmUpdate
  ir::Node* scores_ = nullptr;
  ir::Value* weight_ = nullptr;
  ir::Value* x_ = nullptr;
  ir::Value* slope_ = nullptr;  ///< the gradient of the scores, an operand of update_
  std::int64_t rows_ = 0;
  std::unordered_map<const ir::Value*, Polynomial> values_;
  std::vector<ir::Node*> nodes_;  ///< nodes that the step replaces
  BiasUpdate bias_update_;
  ir::Value* loss_ = nullptr;
  ir::Value* bias_ = nullptr;
  ir::Value* target_ = nullptr;
  ir::Value* rate_ = nullptr;
  opdef::LinearStep step_;
};

bool LinearStepMatch::find_scores() {
  const auto op = opdef::GemmUpdate::read(*update_);
  weight_ = update_->inputs[0];
  const auto dims = weight_->type.static_dims();
  const bool is_float =
      weight_->dtype() == DataType::kFloat32 || weight_->dtype() == DataType::kFloat64;
  if (!is_float || !dims || dims->rank() != 2 || std::min((*dims)[0], (*dims)[1]) != 1)
    return false;
  // dw = X^T slope for a column, slope^T X for a row.
  const bool is_column = (*dims)[1] == 1;
  const std::int64_t features = dims->num_elements();
  for (ir::Node* node : graph_.nodes) {
    if (!opdef::is_plain_matmul(node) || node->inputs[1] != weight_) continue;
    const auto product = opdef::Gemm::read(*node);
    ir::Value* x = node->inputs[0];
    rows_ = num_elements(node->outputs[0]);
    const auto x_dims = x->type.static_dims();
    if (product.transpose_a || !x_dims || x_dims->rank() == 0 || rows_ < 1 ||
        x_dims->num_elements() != rows_ * features || (*x_dims)[x_dims->rank() - 1] != features ||
        (features > 1 && product.transpose_b == is_column)) {
      continue;
    }
    const std::size_t x_at = update_->inputs[1] == x ? 1 : 2;
    if (update_->inputs[x_at] != x) continue;
    slope_ = update_->inputs[3 - x_at];
    // The product must sum over the rows of X; the other operand is a vector either way.
    const bool sums_rows = x_at == 1 ? op.transpose_a : !op.transpose_b;
    if ((!sums_rows && features > 1 && rows_ > 1) || num_elements(slope_) != rows_) continue;
    scores_ = node;
    x_ = x;
    return true;
  }
  return false;
}

std::optional<Polynomial> LinearStepMatch::with_leaf(Polynomial p, double factor,
                                                     ir::Value* leaf) const {
  if (p.power != 1 || p.rate != nullptr) return std::nullopt;
  // A Gemm's beta times its bias.
  while (is_standard(leaf->producer, "Mul") && num_elements(leaf) > 0) {
    const auto& factors = leaf->producer->inputs;
    const auto first = constant_number(factors[0], rows_);
    const auto by = first ? first : constant_number(factors[1], rows_);
    ir::Value* other = factors[first ? 1 : 0];
    if (!by || *by == 0 || num_elements(other) != num_elements(leaf)) break;
    factor *= *by;
    leaf = other;
  }
  if (const auto constant = constant_number(leaf, rows_)) {
    if (p.is_sum && rows_ > 1) return std::nullopt;
    p.shift += factor * *constant;
    return p;
  }
  const std::int64_t size = num_elements(leaf);
  const bool fits =
      (size == 1 || (size == rows_ && !p.is_sum)) && leaf->dtype() == weight_->dtype();
  if (!fits || leaf->is_constant() || (p.is_sum && rows_ > 1)) return std::nullopt;
  for (Leaf& old : p.leaves) {
    if (old.value != leaf) continue;
    old.coefficient += factor;
    return p;
  }
  if (p.leaves.size() == kMostLeaves) return std::nullopt;
  p.leaves.push_back({leaf, factor});
  return p;
}

std::optional<Polynomial> LinearStepMatch::added(const Polynomial& a, double sign,
                                                 const Polynomial& b) const {
  if (a.power != b.power || a.rate != b.rate || (a.is_sum != b.is_sum && rows_ > 1)) {
    return std::nullopt;
  }
  Polynomial sum = a;
  sum.is_sum = a.is_sum || b.is_sum;
  if (a.power == 2) {
    const auto r = ratio(b, a);
    if (!r) return std::nullopt;
    sum.factor += sign * b.factor * *r * *r;
    return sum;
  }
  sum.scores += sign * b.scores;
  sum.shift += sign * b.shift;
  for (const Leaf& leaf : b.leaves) {
    const auto old = std::ranges::find(sum.leaves, leaf.value, &Leaf::value);
    if (old != sum.leaves.end()) {
      old->coefficient += sign * leaf.coefficient;
    } else if (sum.leaves.size() < kMostLeaves) {
      sum.leaves.push_back({leaf.value, sign * leaf.coefficient});
    } else {
      return std::nullopt;
    }
  }
  return sum;
}

// Add and Sub. The update of the bias is remembered, not followed.
std::optional<Polynomial> LinearStepMatch::combination_of(ir::Node& node) {
  const double sign = node.op_type == "Sub" ? -1 : 1;
  const Polynomial* a = known(node.inputs[0]);
  const Polynomial* b = known(node.inputs[1]);
  if (a != nullptr && b != nullptr) return added(*a, sign, *b);
  ir::Value* other = node.inputs[a == nullptr ? 0 : 1];
  Polynomial signed_one = a != nullptr ? *a : scaled(*b, sign);
  const bool is_bias_update = signed_one.power == 1 && num_elements(node.outputs[0]) == 1 &&
                              context_.next_states.contains(node.outputs[0]) &&
                              (signed_one.is_sum || rows_ == 1);
  if (is_bias_update && bias_update_.node == nullptr && (a == nullptr || sign == 1) &&
      other->producer == nullptr && !other->is_constant() && num_elements(other) == 1) {
    bias_update_ = {.node = &node, .bias = other, .move = signed_one};
    return signed_one;  // replaced by the step, and read by nothing else: see find_results()
  }
  return with_leaf(std::move(signed_one), a == nullptr ? 1 : sign, other);
}

std::optional<Polynomial> LinearStepMatch::product_of(const ir::Node& node) {
  const bool divides = node.op_type == "Div";
  const Polynomial* a = known(node.inputs[0]);
  const Polynomial* b = known(node.inputs[1]);
  if (a != nullptr && b != nullptr) {
    if (divides || a->power != 1 || b->power != 1 || a->rate != nullptr || b->rate != nullptr) {
      return std::nullopt;
    }
    if ((a->is_sum || b->is_sum) && rows_ > 1) return std::nullopt;
    const auto r = ratio(*b, *a);
    if (!r) return std::nullopt;
    Polynomial square = *a;
    square.power = 2;
    square.factor = *r;
    return square;
  }
  if (divides && a == nullptr) return std::nullopt;
  Polynomial p = a != nullptr ? *a : *b;
  ir::Value* by = node.inputs[a != nullptr ? 1 : 0];
  if (const auto constant = constant_number(by, rows_)) {
    const double factor = divides ? 1 / *constant : *constant;
    if (!std::isfinite(factor) || factor == 0) return std::nullopt;
    return scaled(std::move(p), factor);
  }
  const bool is_rate = !divides && p.rate == nullptr && by->producer == nullptr &&
                       !by->is_constant() && num_elements(by) == 1 &&
                       by->dtype() == weight_->dtype();
  if (!is_rate) return std::nullopt;
  p.rate = by;
  return p;
}

std::optional<Polynomial> LinearStepMatch::sum_of(const ir::Node& node) {
  const Polynomial* p = known(node.inputs[0]);
  if (p == nullptr) return std::nullopt;
  const bool keeps_size = num_elements(node.outputs[0]) == num_elements(node.inputs[0]);
  if (!keeps_size && (num_elements(node.outputs[0]) != 1 || p->is_sum)) return std::nullopt;
  Polynomial sum = *p;
  if (keeps_size) return sum;
  sum.is_sum = true;
  return node.op_type == "ReduceMean" ? scaled(sum, 1.0 / static_cast<double>(rows_)) : sum;
}

std::optional<Polynomial> LinearStepMatch::value_of(const ir::Node& node) {
  if (is_standard(&node, "Neg")) return scaled(*known(node.inputs[0]), -1);
  if (is_standard(&node, "Mul") || is_standard(&node, "Div")) return product_of(node);
  if (is_standard(&node, "ReduceSum") || is_standard(&node, "ReduceMean")) return sum_of(node);
  if (is_standard(&node, "Pow")) {
    const Polynomial* p = known(node.inputs[0]);
    const auto exponent = constant_number(node.inputs[1], rows_);
    const bool is_square = p != nullptr && p->power == 1 && p->rate == nullptr && exponent == 2 &&
                           (!p->is_sum || rows_ == 1);
    if (!is_square) return std::nullopt;
    Polynomial square = *p;
    square.power = 2;
    return square;
  }
  const opdef::OpDef* def = context_.ops.find(node);
  const bool keeps_all = def != nullptr && def->is_view() && known(node.inputs[0]) != nullptr &&
                         num_elements(node.outputs[0]) == num_elements(node.inputs[0]);
  return keeps_all ? std::optional(*known(node.inputs[0])) : std::nullopt;
}

// False: a node that reads what depends on the scores does something else.
bool LinearStepMatch::follow(ir::Node& node) {
  const bool depends = std::ranges::any_of(
      node.inputs, [&](const ir::Value* in) { return in != nullptr && known(in) != nullptr; });
  if (!depends) return true;
  if (&node == update_) {
    nodes_.push_back(&node);
    return true;
  }
  if (node.outputs.size() != 1 || node.outputs[0] == nullptr) return false;
  const bool combines = is_standard(&node, "Add") || is_standard(&node, "Sub");
  std::optional<Polynomial> value = combines ? combination_of(node) : value_of(node);
  // An [N] beside an [N, 1] would be [N, N].
  const std::int64_t size = num_elements(node.outputs[0]);
  if (!value || size != (value->is_sum ? 1 : rows_)) return false;
  values_.emplace(node.outputs[0], std::move(*value));
  nodes_.push_back(&node);
  return true;
}

// The loss is the only result besides the new weights, and all are multiples of one z.
bool LinearStepMatch::find_results() {
  for (ir::Value* output : graph_.outputs) {
    const bool is_bias = bias_update_.node != nullptr && output == bias_update_.node->outputs[0];
    if (known(output) == nullptr || is_bias || output == loss_) continue;
    if (loss_ != nullptr) return false;
    loss_ = output;
  }
  const Polynomial* slope = known(slope_);
  const Polynomial* loss = loss_ == nullptr ? nullptr : known(loss_);
  if (slope == nullptr || loss == nullptr || slope->power != 1 || loss->power != 2 ||
      loss->rate != nullptr || num_elements(loss_) != 1 || slope->scores == 0 ||
      (rows_ > 1 && (slope->is_sum || !loss->is_sum))) {
    return false;
  }
  Polynomial z = scaled(*slope, 1 / slope->scores);
  z.rate = nullptr;
  ir::Value* const update_rate = update_->input(3);
  if (slope->rate != nullptr && update_rate != nullptr) return false;
  rate_ = update_rate != nullptr ? update_rate : slope->rate;
  const auto loss_ratio =
      ratio({.scores = loss->scores, .leaves = loss->leaves, .shift = loss->shift}, z);
  if (!loss_ratio) return false;
  step_.loss_scale = loss->factor * *loss_ratio * *loss_ratio;
  step_.weight_step = opdef::GemmUpdate::read(*update_).scale * slope->scores;
  step_.shift = z.shift;
  step_.bias_step = 0;
  if (bias_update_.node != nullptr) {
    const auto step = ratio(bias_update_.move, z);
    if (!step || bias_update_.move.rate != rate_) return false;
    step_.bias_step = *step;
    // Nothing may follow it as a polynomial.
    const ir::Value* next = bias_update_.node->outputs[0];
    for (const ir::Node* node : nodes_) {
      if (std::ranges::find(node->inputs, next) != node->inputs.end()) return false;
    }
  }
  values_.insert_or_assign(slope_, std::move(z));
  return choose_leaves();
}

bool LinearStepMatch::choose_leaves() {
  step_.bias = step_.target = 0;
  for (const Leaf& leaf : known(slope_)->leaves) {
    const bool may_be_bias = bias_update_.node != nullptr
                                 ? leaf.value == bias_update_.bias
                                 : bias_ == nullptr && num_elements(leaf.value) == 1;
    const bool may_be_target = target_ == nullptr && num_elements(leaf.value) == rows_;
    // With one row, target and bias both have one element: the trained one is the bias.
    if (may_be_target && (bias_update_.node == nullptr || !may_be_bias)) {
      target_ = leaf.value;
      step_.target = leaf.coefficient;
    } else if (may_be_bias) {
      bias_ = leaf.value;
      step_.bias = leaf.coefficient;
    } else {
      return false;
    }
  }
  if (target_ == nullptr) return false;
  return bias_update_.node == nullptr || bias_ == bias_update_.bias;
}

// The step takes the place of the update of the weight: what it reads is there, and nothing before
// reads its results.
bool LinearStepMatch::comes_in_time() const {
  const std::array inputs{x_, weight_, bias_, target_, rate_};
  const ir::Value* next_bias =
      bias_update_.node == nullptr ? nullptr : bias_update_.node->outputs[0];
  bool is_before = true;
  for (const ir::Node* node : graph_.nodes) {
    if (node == update_) is_before = false;
    if (is_before) {
      if (next_bias != nullptr &&
          std::ranges::find(node->inputs, next_bias) != node->inputs.end()) {
        return false;
      }
      continue;
    }
    for (const ir::Value* output : node->outputs) {
      if (output != nullptr && std::ranges::find(inputs, output) != inputs.end()) return false;
    }
  }
  return true;
}

bool LinearStepMatch::find() {
  const bool has_bodies = std::ranges::any_of(
      graph_.nodes, [](const ir::Node* node) { return !node->subgraphs().empty(); });
  if (has_bodies || !find_scores()) return false;
  values_.emplace(scores_->outputs[0], Polynomial{.scores = 1});
  nodes_.push_back(scores_);
  bool is_after = false;
  for (ir::Node* node : graph_.nodes) {
    if (node == scores_) {
      is_after = true;
    } else if (is_after && !follow(*node)) {
      return false;
    }
  }
  return find_results() && comes_in_time();
}

ir::Node LinearStepMatch::step() const {
  std::vector<ir::Value*> outputs{loss_, update_->outputs[0]};
  if (bias_update_.node != nullptr) outputs.push_back(bias_update_.node->outputs[0]);
  return candidate(opdef::kLinearStep, {x_, weight_, bias_, target_, rate_}, std::move(outputs),
                   step_.attributes(), update_->name);
}

void LinearStepMatch::rewrite(ir::Graph& graph) const {
  ir::Node made = step();
  for (ir::Value* output : made.outputs) output->producer = nullptr;
  ir::Node* step = graph.make_node(made.op_type, std::move(made.inputs), made.outputs, made.name,
                                   std::move(made.attributes), made.domain);
  std::ranges::replace(graph.nodes, update_, step);
  std::erase_if(graph.nodes, [&](const ir::Node* node) {
    return std::ranges::find(nodes_, node) != nodes_.end();
  });
}

}  // namespace

bool fuse_linear_steps(ir::Graph& graph, const PassContext& context) {
  for (ir::Node* node : graph.nodes) {
    if (!opdef::is_fused(node, opdef::kGemmUpdate)) continue;
    LinearStepMatch match(graph, context, node);
    if (!match.find() || !context.prefers(match.step())) continue;
    match.rewrite(graph);
    ir::eliminate_dead_nodes(graph);
    return true;
  }
  return false;
}

}  // namespace onnxgrad::passes
