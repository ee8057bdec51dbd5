#include <algorithm>
#include <bit>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "passes/passes.h"
#include "passes/rewriter.h"

// Pattern: the update of a weight by momentum, Adam, Adagrad, RMSProp or Lion, from the slots' new
// values to the weight's, as train/optimizers writes them. It becomes one
// onnxgrad.fused.WeightUpdate; where the gradient is an onnxgrad.fused.Gemm that nothing else
// reads, the product joins it as onnxgrad.fused.GemmWeightUpdate.
//
// The last node is w' = start - rate * direction, or start + velocity; everything is found from
// there, backwards.

namespace onnxgrad::passes {
namespace {

using ir::Node;
using ir::Value;

constexpr std::int64_t kMomentum = 0;
constexpr std::int64_t kNesterov = 1;
constexpr std::int64_t kAdam = 2;
constexpr std::int64_t kRoot = 3;
constexpr std::int64_t kLion = 4;
constexpr std::int64_t kVelocity = 5;
constexpr std::int64_t kNesterovVelocity = 6;

/// What a weight update is made of; see ops/fused/update_cpu.cpp.
struct Update {
  std::int64_t rule = kMomentum;
  Value* gradient = nullptr;
  Value* w = nullptr;
  Value* m = nullptr;
  Value* v = nullptr;
  Value* rate = nullptr;
  Value* epsilon = nullptr;
  Value* shrink = nullptr;
  Value* new_m = nullptr;
  Value* new_v = nullptr;
  double decay = 0, beta1 = 0, share1 = 1, beta2 = 0, share2 = 1;
};

struct Scaled {
  Value* value = nullptr;
  Value* scalar = nullptr;
};

bool is_plain(const Node* node, std::string_view op_type) {
  return node != nullptr && node->domain.empty() && node->op_type == op_type;
}

bool is_scalar(const Value* value) {
  const auto dims = value->type.static_dims();
  return dims && dims->rank() == 0;
}

// A weight or a slot: its value before the step.
bool is_leaf(const Value* value) { return value->producer == nullptr && !value->is_constant(); }

// value * scalar, either way round.
std::optional<Scaled> match_scaled(const Value* product) {
  const Node* node = product->producer;
  if (!is_plain(node, "Mul")) return std::nullopt;
  for (const std::size_t side : {std::size_t{0}, std::size_t{1}}) {
    Value* scalar = node->inputs[side];
    Value* value = node->inputs[1 - side];
    if (is_scalar(scalar) && !is_scalar(value)) return Scaled{.value = value, .scalar = scalar};
  }
  return std::nullopt;
}

struct ScaledBy {
  Value* value = nullptr;
  double factor = 1;
};

std::optional<ScaledBy> match_scaled_by_constant(const Value* product) {
  const auto scaled = match_scaled(product);
  if (!scaled || !scaled->scalar->is_constant()) return std::nullopt;
  return ScaledBy{.value = scaled->value,
                  .factor = scaled->scalar->initializer.to_doubles().front()};
}

bool is_square(const Value* value) {
  const Node* node = value->producer;
  return is_plain(node, "Mul") && node->inputs[0] == node->inputs[1];
}

class Matcher {
 public:
  explicit Matcher(const ir::Graph& graph) : outputs_(graph.outputs.begin(), graph.outputs.end()) {
    for (const Node* node : graph.nodes) {
      for (const Value* input : node->inputs) {
        if (input != nullptr) readers_[input].push_back(node);
      }
      for (const Value* captured : ir::captured_values(*node)) readers_[captured].push_back(node);
    }
  }

  std::optional<Update> match(const Node& last) {
    inner_.clear();
    Update update;
    const bool has_velocity = is_plain(&last, "Add");
    if (!has_velocity && !is_plain(&last, "Sub")) return std::nullopt;
    const Value* result = last.outputs[0];
    const bool is_float =
        result->dtype() == DataType::kFloat32 || result->dtype() == DataType::kFloat64;
    if (!is_float || !result->type.static_dims() || is_scalar(result)) return std::nullopt;
    inner_ = {&last};
    if (!match_start(last.inputs[0], update)) return std::nullopt;
    if (has_velocity) {
      if (!match_velocity(last.inputs[1], update)) return std::nullopt;
    } else {
      const auto step = match_scaled(last.inputs[1]);
      if (!step) return std::nullopt;
      inner_.insert(last.inputs[1]->producer);
      update.rate = step->scalar;
      if (!match_direction(step->value, update)) return std::nullopt;
    }
    match_decay(update);
    if (!has_one_shape(update, *result) || !is_closed(last, update)) return std::nullopt;
    return update;
  }

  /// After a match: true for a product that only the update reads.
  bool owns_product(const Value* gradient) const {
    const Node* node = gradient->producer;
    return node != nullptr && node->domain == ir::kFusedDomain && node->op_type == "Gemm" &&
           node->find_attribute("epilogue") == nullptr && gradient->type.rank() == 2 &&
           is_inside(gradient) && !outputs_.contains(gradient);
  }

 private:
  // w or w * shrink.
  bool match_start(Value* start, Update& update) {
    update.w = start;
    if (const auto shrunk = match_scaled(start)) {
      inner_.insert(start->producer);
      update.w = shrunk->value;
      update.shrink = shrunk->scalar;
    }
    return is_leaf(update.w);
  }

  bool match_direction(Value* direction, Update& update) {
    const auto inner = inner_;
    const Update given = update;
    for (const auto rule : {&Matcher::match_adam, &Matcher::match_root, &Matcher::match_lion,
                            &Matcher::match_momentum}) {
      if ((this->*rule)(direction, update)) return true;
      inner_ = inner;
      update = given;
    }
    return false;
  }

  struct RootQuotient {
    Value* dividend = nullptr;
    Value* square = nullptr;
    Value* epsilon = nullptr;
  };

  // dividend / (sqrt(square) + epsilon)
  std::optional<RootQuotient> match_root_quotient(const Value* direction) {
    const Node* quotient = direction->producer;
    if (!is_plain(quotient, "Div")) return std::nullopt;
    const Node* divisor = quotient->inputs[1]->producer;
    if (!is_plain(divisor, "Add") || !is_scalar(divisor->inputs[1])) return std::nullopt;
    const Node* root = divisor->inputs[0]->producer;
    if (!is_plain(root, "Sqrt")) return std::nullopt;
    inner_.insert({quotient, divisor, root});
    return RootQuotient{
        .dividend = quotient->inputs[0], .square = root->inputs[0], .epsilon = divisor->inputs[1]};
  }

  // m' / (sqrt(v') + epsilon)
  bool match_adam(Value* direction, Update& update) {
    const auto quotient = match_root_quotient(direction);
    if (!quotient) return false;
    update.rule = kAdam;
    update.new_m = quotient->dividend;
    update.new_v = quotient->square;
    update.epsilon = quotient->epsilon;
    const Node* sum_m = update.new_m->producer;
    const Node* sum_v = update.new_v->producer;
    if (!is_plain(sum_m, "Add") || !is_plain(sum_v, "Add")) return false;
    const auto old_m = match_scaled_by_constant(sum_m->inputs[0]);
    const auto old_v = match_scaled_by_constant(sum_v->inputs[0]);
    const auto share_m = match_scaled_by_constant(sum_m->inputs[1]);
    const auto share_v = match_scaled_by_constant(sum_v->inputs[1]);
    if (!old_m || !old_v || !share_m || !share_v || !is_square(share_v->value)) return false;
    const Node* square = share_v->value->producer;
    if (square->inputs[0] != share_m->value) return false;
    inner_.insert({sum_m, sum_v, square, sum_m->inputs[0]->producer, sum_v->inputs[0]->producer,
                   sum_m->inputs[1]->producer, sum_v->inputs[1]->producer});
    update.gradient = share_m->value;
    update.m = old_m->value;
    update.v = old_v->value;
    update.beta1 = old_m->factor;
    update.beta2 = old_v->factor;
    update.share1 = share_m->factor;
    update.share2 = share_v->factor;
    return is_leaf(update.m) && is_leaf(update.v);
  }

  // g / (sqrt(m') + epsilon), with m' = m + g^2 or beta1 m + share1 g^2
  bool match_root(Value* direction, Update& update) {
    const auto quotient = match_root_quotient(direction);
    if (!quotient) return false;
    const Node* sum = quotient->square->producer;
    if (!is_plain(sum, "Add")) return false;
    inner_.insert(sum);
    const auto take = [this](Value* value, double& factor) {
      const auto scaled = match_scaled_by_constant(value);
      if (!scaled) return value;
      inner_.insert(value->producer);
      factor = scaled->factor;
      return scaled->value;
    };
    update.rule = kRoot;
    update.beta1 = 1;
    update.m = take(sum->inputs[0], update.beta1);
    const Value* square = take(sum->inputs[1], update.share1);
    update.gradient = quotient->dividend;
    update.epsilon = quotient->epsilon;
    update.new_m = quotient->square;
    if (!is_square(square) || square->producer->inputs[0] != update.gradient) return false;
    inner_.insert(square->producer);
    return is_leaf(update.m) && outputs_.contains(update.new_m);
  }

  // sign(beta1 m + share1 g), and beside it m' = beta2 m + share2 g
  bool match_lion(Value* direction, Update& update) {
    const Node* sign = direction->producer;
    if (!is_plain(sign, "Sign")) return false;
    const auto ahead = match_average(sign->inputs[0]);
    if (!ahead || !is_leaf(ahead->first.value)) return false;
    inner_.insert(sign);
    update.rule = kLion;
    update.m = ahead->first.value;
    update.gradient = ahead->second.value;
    update.beta1 = ahead->first.factor;
    update.share1 = ahead->second.factor;
    for (const Node* product : readers_.at(update.m)) {
      const auto readers = readers_.find(product->outputs[0]);
      if (inner_.contains(product) || readers == readers_.end()) continue;
      Value* sum = readers->second.front()->outputs[0];
      const auto average = match_average(sum);
      if (!average || average->first.value != update.m ||
          average->second.value != update.gradient || !outputs_.contains(sum)) {
        continue;
      }
      update.new_m = sum;
      update.beta2 = average->first.factor;
      update.share2 = average->second.factor;
      return true;
    }
    return false;
  }

  // a x + b y with constants a and b
  std::optional<std::pair<ScaledBy, ScaledBy>> match_average(const Value* value) {
    const Node* sum = value->producer;
    if (!is_plain(sum, "Add")) return std::nullopt;
    const auto first = match_scaled_by_constant(sum->inputs[0]);
    const auto second = match_scaled_by_constant(sum->inputs[1]);
    if (!first || !second) return std::nullopt;
    inner_.insert({sum, sum->inputs[0]->producer, sum->inputs[1]->producer});
    return std::pair(*first, *second);
  }

  // m' = beta1 m + g, or with Nesterov's correction g + beta1 m'
  bool match_momentum(Value* direction, Update& update) {
    const Node* sum = direction->producer;
    if (!is_plain(sum, "Add")) return false;
    inner_.insert(sum);
    update.rule = kMomentum;
    update.new_m = direction;
    const Value* corrected = nullptr;
    double correction = 0;
    if (const auto ahead = match_scaled_by_constant(sum->inputs[1]);
        ahead && is_plain(ahead->value->producer, "Add") && !is_leaf_scaled(sum->inputs[0])) {
      update.rule = kNesterov;
      update.new_m = ahead->value;
      corrected = sum->inputs[0];
      correction = ahead->factor;
      inner_.insert(sum->inputs[1]->producer);
      sum = update.new_m->producer;
      inner_.insert(sum);
    }
    const auto old = match_scaled_by_constant(sum->inputs[0]);
    if (!old) return false;
    inner_.insert(sum->inputs[0]->producer);
    update.m = old->value;
    update.beta1 = old->factor;
    update.gradient = sum->inputs[1];
    const bool fits =
        update.rule == kMomentum || (corrected == update.gradient && correction == update.beta1);
    return fits && is_leaf(update.m) && outputs_.contains(update.new_m);
  }

  // m' = beta1 m - rate g, or with Nesterov's correction beta1 m' - rate g
  bool match_velocity(Value* velocity, Update& update) {
    const Node* last = velocity->producer;
    if (!is_plain(last, "Sub")) return false;
    const auto move = match_scaled(last->inputs[1]);
    auto old = match_scaled_by_constant(last->inputs[0]);
    if (!move || !old) return false;
    inner_.insert({last, last->inputs[0]->producer, last->inputs[1]->producer});
    update.rule = kVelocity;
    update.new_m = velocity;
    update.beta1 = old->factor;
    if (!is_leaf(old->value)) {
      update.rule = kNesterovVelocity;
      update.new_m = old->value;
      const Node* inner = update.new_m->producer;
      if (!is_plain(inner, "Sub") || inner->inputs[1] != last->inputs[1]) return false;
      old = match_scaled_by_constant(inner->inputs[0]);
      if (!old || old->factor != update.beta1) return false;
      inner_.insert({inner, inner->inputs[0]->producer});
    }
    update.m = old->value;
    update.rate = move->scalar;
    update.gradient = move->value;
    return is_leaf(update.m) && outputs_.contains(update.new_m);
  }

  static bool is_leaf_scaled(const Value* value) {
    const auto scaled = match_scaled_by_constant(value);
    return scaled && is_leaf(scaled->value);
  }

  // The gradient as g + decay * w, if only the update reads that sum.
  void match_decay(Update& update) {
    const Node* sum = update.gradient->producer;
    if (!is_plain(sum, "Add") || outputs_.contains(update.gradient)) return;
    const auto decayed = match_scaled_by_constant(sum->inputs[1]);
    if (!decayed || decayed->value != update.w || !is_inside(update.gradient)) return;
    const Value* product = sum->inputs[1];
    if (readers_.at(product).size() != 1 || outputs_.contains(product)) return;
    inner_.insert({sum, product->producer});
    update.gradient = sum->inputs[0];
    update.decay = decayed->factor;
  }

  bool is_inside(const Value* value) const {
    const auto readers = readers_.find(value);
    return readers == readers_.end() ||
           std::ranges::all_of(readers->second,
                               [&](const Node* reader) { return inner_.contains(reader); });
  }

  static bool has_one_shape(const Update& update, const Value& result) {
    const auto fits = [&](const Value* value) {
      return value == nullptr || (value->dtype() == result.dtype() &&
                                  value->type.static_dims() == result.type.static_dims());
    };
    const auto has_type = [&](const Value* scalar) {
      return scalar == nullptr || scalar->dtype() == result.dtype();
    };
    return fits(update.gradient) && fits(update.w) && fits(update.m) && fits(update.v) &&
           has_type(update.rate) && has_type(update.epsilon) && has_type(update.shrink);
  }

  // Nobody outside reads what is computed inside, but for the results.
  bool is_closed(const Node& last, const Update& update) const {
    return std::ranges::all_of(inner_, [&](const Node* node) {
      const Value* output = node->outputs[0];
      const bool is_slot = output == update.new_m || output == update.new_v;
      return node == &last || (is_inside(output) && (is_slot || !outputs_.contains(output)));
    });
  }

  std::unordered_map<const Value*, std::vector<const Node*>> readers_;
  std::unordered_set<const Value*> outputs_;
  std::unordered_set<const Node*> inner_;
};

std::int64_t bits(double number) { return std::bit_cast<std::int64_t>(number); }

std::vector<ir::Attribute> attributes_of(const Update& update) {
  return {{.name = "rule", .value = update.rule},
          {.name = "numbers",
           .value = std::vector<std::int64_t>{bits(update.decay), bits(update.beta1),
                                              bits(update.share1), bits(update.beta2),
                                              bits(update.share2)}}};
}

// The fused node, in the place of the last one of the pattern.
Node* emit(ir::Graph& graph, const Node& last, const Update& update, bool with_product) {
  std::vector<Value*> inputs;
  std::vector<ir::Attribute> attributes = attributes_of(update);
  if (with_product) {
    const Node& product = *update.gradient->producer;
    inputs = {product.inputs[0], product.inputs[1]};
    for (const char* name : {"transA", "transB"}) {
      attributes.push_back({.name = name, .value = product.int_attribute(name, 0)});
    }
  } else {
    inputs = {update.gradient};
  }
  inputs.insert(inputs.end(),
                {update.w, update.m, update.v, update.rate, update.epsilon, update.shrink});
  Node* node = graph.add_node(with_product ? "GemmWeightUpdate" : "WeightUpdate", std::move(inputs),
                              0, std::move(attributes), ir::kFusedDomain, last.name);
  graph.nodes.pop_back();
  ir::Graph::set_output(node, 0, last.outputs[0]);
  ir::Graph::set_output(node, 1, update.new_m);
  if (update.new_v != nullptr) ir::Graph::set_output(node, 2, update.new_v);
  return node;
}

}  // namespace

bool fuse_weight_updates(ir::Graph& graph, const PassContext&) {
  Matcher matcher(graph);
  bool changed = false;
  std::vector<Node*> nodes;
  for (Node* node : std::vector<Node*>(graph.nodes)) {
    const auto update = matcher.match(*node);
    changed = changed || update;
    const bool with_product = update && matcher.owns_product(update->gradient);
    nodes.push_back(update ? emit(graph, *node, *update, with_product) : node);
  }
  graph.nodes = std::move(nodes);
  if (changed) ir::eliminate_dead_nodes(graph);
  return changed;
}

}  // namespace onnxgrad::passes
