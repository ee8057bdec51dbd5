#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <deque>
#include <numbers>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ir/pattern.h"
#include "ir/uses.h"
#include "opdef/activation.h"
#include "passes/candidate.h"
#include "passes/passes.h"

// Pattern: y = f(u), f being GELU, its approximation with tanh, or SiLU, as any exporter writes it;
// and du = f'(u) dy, as rules write it. What nodes compute is found by evaluating them: functions
// of u at some numbers, the nodes that are linear in dy with 1 for dy. Two functions that agree to
// rounding at all these numbers are taken for the same.

namespace onnxgrad::passes {
namespace {

using ir::Node;
using ir::Value;
using opdef::ActivationFunction;

constexpr int kMaxNodesBack = 12;
constexpr std::size_t kMaxNodesOn = 64;

constexpr std::array kPoints = {-5.5,   -3.75, -2.5, -1.625, -1.0,  -0.5, -0.125, 0.0,
                                0.0625, 0.375, 0.75, 1.25,   2.125, 3.5,  6.0};
using Samples = std::array<double, kPoints.size()>;

template <class F>
Samples at_points(const F& f) {
  Samples samples;
  for (std::size_t i = 0; i < samples.size(); ++i) samples[i] = f(i);
  return samples;
}

struct ActivationSamples {
  Samples value;
  Samples slope;
};

ActivationSamples samples_of(ActivationFunction function) {
  const auto gated = [](double x, double w, double w_slope) {
    const double s = 1 / (1 + std::exp(-w));
    return std::pair{x * s, s + x * s * (1 - s) * w_slope};
  };
  const auto at = [&](std::size_t i) {
    const double x = kPoints[i];
    if (function == ActivationFunction::kSilu) return gated(x, x, 1);
    if (function == ActivationFunction::kTanhGelu) {
      const double scale = 2 * std::numbers::sqrt2 * std::numbers::inv_sqrtpi;
      return gated(x, scale * (x + 0.044715 * x * x * x), scale * (1 + 3 * 0.044715 * x * x));
    }
    const double p = (1 + std::erf(x / std::numbers::sqrt2)) / 2;
    const double density = std::exp(-x * x / 2) * std::numbers::inv_sqrtpi / std::numbers::sqrt2;
    return std::pair{x * p, p + x * density};
  };
  return {at_points([&](std::size_t i) { return at(i).first; }),
          at_points([&](std::size_t i) { return at(i).second; })};
}

bool agree(const Samples& a, const Samples& b, DataType dtype) {
  const double tolerance = dtype == DataType::kFloat64 ? 1e-12 : 2e-6;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!(std::abs(a[i] - b[i]) <= tolerance)) return false;
  }
  return true;
}

std::optional<double> single_number(const Value* value) {
  if (!value->is_constant() || value->initializer.num_elements() != 1) return std::nullopt;
  if (!is_floating(value->initializer.dtype())) return std::nullopt;
  return value->initializer.to_doubles().front();
}

std::optional<Samples> computed_by(const Node& node, const std::vector<Samples>& in) {
  const auto unary = [&](const auto& f) {
    return at_points([&](std::size_t i) { return f(in[0][i]); });
  };
  const auto binary = [&](const auto& f) {
    return at_points([&](std::size_t i) { return f(in[0][i], in[1][i]); });
  };
  const std::string& op = node.op_type;
  if (in.size() == 1) {
    if (op == "Erf") return unary([](double x) { return std::erf(x); });
    if (op == "Exp") return unary([](double x) { return std::exp(x); });
    if (op == "Tanh") return unary([](double x) { return std::tanh(x); });
    if (op == "Neg") return unary([](double x) { return -x; });
    if (op == "Sigmoid") return unary([](double x) { return 1 / (1 + std::exp(-x)); });
    if (op == "Reciprocal") return unary([](double x) { return 1 / x; });
    return std::nullopt;
  }
  if (in.size() != 2) return std::nullopt;
  if (op == "Add") return binary([](double x, double y) { return x + y; });
  if (op == "Sub") return binary([](double x, double y) { return x - y; });
  if (op == "Mul") return binary([](double x, double y) { return x * y; });
  if (op == "Div") return binary([](double x, double y) { return x / y; });
  if (op == "Pow") return binary([](double x, double y) { return std::pow(x, y); });
  return std::nullopt;
}

/// The values that are functions of some first value, by their samples.
class Functions {
 public:
  Functions(const ir::Uses& uses, Value* first, const Samples& samples)
      : uses_(uses), dims_(first->type.static_dims()) {
    add(first, samples);
  }

  /// Adds what readers compute, with `evaluate(node)` being its samples or nullopt.
  template <class Evaluate>
  void close(const Evaluate& evaluate) {
    for (std::size_t next = 0; next < order_.size() && order_.size() < kMaxNodesOn; ++next) {
      for (const ir::Use& use : uses_.of(order_[next])) {
        Node* node = use.node;
        if (node == nullptr || !node->domain.empty() || node->outputs.size() != 1) continue;
        Value* result = node->outputs[0];
        if (find(result) != nullptr || result->type.static_dims() != dims_) continue;
        if (const auto samples = evaluate(*node)) add(result, *samples);
      }
    }
  }

  const Samples* find(const Value* value) const {
    const auto found = samples_.find(value);
    return found == samples_.end() ? nullptr : &found->second;
  }
  const std::vector<Value*>& values() const { return order_; }

  Value* find_value(const Samples& wanted, DataType dtype) const {
    for (Value* value : order_) {
      if (agree(*find(value), wanted, dtype)) return value;
    }
    return nullptr;
  }

 private:
  void add(Value* value, const Samples& samples) {
    samples_.emplace(value, samples);
    order_.push_back(value);
  }

  const ir::Uses& uses_;
  std::optional<Dims> dims_;
  std::unordered_map<const Value*, Samples> samples_;
  std::vector<Value*> order_;
};

// Samples of an operand: of a function, or a number.
std::optional<Samples> operand_samples(const Functions& functions, const Value* value) {
  if (value == nullptr) return std::nullopt;
  if (const Samples* known = functions.find(value)) return *known;
  const auto number = single_number(value);
  if (!number) return std::nullopt;
  return at_points([&](std::size_t) { return *number; });
}

Functions functions_of(const ir::Uses& uses, Value* u) {
  Functions functions(uses, u, at_points([](std::size_t i) { return kPoints[i]; }));
  functions.close([&](const Node& node) -> std::optional<Samples> {
    std::vector<Samples> in;
    for (const Value* input : node.inputs) {
      const auto samples = operand_samples(functions, input);
      if (!samples) return std::nullopt;
      in.push_back(*samples);
    }
    return computed_by(node, in);
  });
  return functions;
}

/// Values that are linear in `dy`, with their samples for dy = 1.
Functions linear_in(const ir::Uses& uses, Value* dy, const Functions& functions) {
  Functions linear(uses, dy, at_points([](std::size_t) { return 1.0; }));
  linear.close([&](const Node& node) -> std::optional<Samples> {
    const auto is_linear = [&](std::size_t i) { return linear.find(node.inputs[i]) != nullptr; };
    const std::size_t count = node.inputs.size();
    if (node.op_type == "Neg" && is_linear(0))
      return computed_by(node, {*linear.find(node.inputs[0])});
    if (count != 2) return std::nullopt;
    const bool both = is_linear(0) && is_linear(1);
    if (both && (node.op_type == "Add" || node.op_type == "Sub")) {
      return computed_by(node, {*linear.find(node.inputs[0]), *linear.find(node.inputs[1])});
    }
    if (both || !(node.op_type == "Mul" || (node.op_type == "Div" && is_linear(0)))) {
      return std::nullopt;
    }
    std::vector<Samples> in;
    for (std::size_t i = 0; i < 2; ++i) {
      const auto samples = is_linear(i) ? std::optional(*linear.find(node.inputs[i]))
                                        : operand_samples(functions, node.inputs[i]);
      if (!samples) return std::nullopt;
      in.push_back(*samples);
    }
    return computed_by(node, in);
  });
  return linear;
}

struct ActivationMatch {
  ActivationFunction function = {};
  Value* u = nullptr;
  Value* y = nullptr;   // absent: only its gradient
  Value* dy = nullptr;  // absent: no gradient
  Value* du = nullptr;
};

/// The values that an anchor's operand may be a function of alone, nearest first.
std::vector<Value*> arguments_of(const Node& anchor) {
  std::vector<Value*> found;
  std::vector<Value*> frontier{anchor.inputs[0]};
  for (int i = 0; i < kMaxNodesBack; ++i) {
    if (frontier.size() == 1) found.push_back(frontier[0]);
    const auto node_of = [](const Value* value) -> const Node* {
      const Node* node = value->producer;
      const bool is_known =
          node != nullptr && ir::is_op(*node, {"Add", "Sub", "Mul", "Div", "Pow", "Neg"});
      return is_known ? node : nullptr;
    };
    const auto at = std::ranges::find_if(frontier, node_of);
    if (at == frontier.end()) break;
    const Node* node = node_of(*at);
    frontier.erase(at);
    for (Value* input : node->inputs) {
      const bool is_new = std::ranges::find(frontier, input) == frontier.end();
      if (!single_number(input) && is_new) frontier.push_back(input);
    }
  }
  return found;
}

// The tensors that functions of u are multiplied by, before numbers they are multiplied by.
std::vector<Value*> factors_of(const ir::Uses& uses, const Functions& functions) {
  std::vector<Value*> found;
  for (const Value* value : functions.values()) {
    for (const ir::Use& use : uses.of(value)) {
      if (!ir::is_op(use.node, "Mul")) continue;
      Value* other = use.node->inputs[static_cast<std::size_t>(1 - use.input)];
      if (functions.find(other) != nullptr || single_number(other)) continue;
      while (other->producer != nullptr && ir::is_op(*other->producer, {"Mul", "Div"})) {
        const Node& scale = *other->producer;
        if (single_number(scale.inputs[1])) {
          other = scale.inputs[0];
        } else if (scale.op_type == "Mul" && single_number(scale.inputs[0])) {
          other = scale.inputs[1];
        } else {
          break;
        }
      }
      if (std::ranges::find(found, other) == found.end()) found.push_back(other);
    }
  }
  return found;
}

void find_gradient(const ir::Uses& uses, const Functions& functions, const Samples& slope,
                   ActivationMatch& match) {
  for (Value* dy : factors_of(uses, functions)) {
    if (dy->type.static_dims() != match.u->type.static_dims()) continue;
    const Functions linear = linear_in(uses, dy, functions);
    match.du = linear.find_value(slope, match.u->dtype());
    if (match.du != nullptr) {
      match.dy = dy;
      return;
    }
  }
}

bool is_stored_as_f16(const Value& u) {
  return u.producer != nullptr && ir::is_op(*u.producer, {"Cast"}) &&
         u.dtype() == DataType::kFloat32 && ir::holds_f16(u.producer->inputs[0]);
}

// True if the forward pass reads the value too. False for the 16-bit copy that is stored for the
// gradient, which computes y again where it needs it.
bool is_read_forward(const Value& half, const ir::Uses& uses) {
  const Node* rounding = half.producer;
  return rounding == nullptr || !ir::is_op(*rounding, {"Cast"}) ||
         uses.count(rounding->inputs[0]) == 1;
}

Node activation(ActivationFunction function, Value* u, std::vector<Value*> results) {
  return candidate(opdef::kActivation, {u}, std::move(results),
                   {{.name = "function", .value = static_cast<std::int64_t>(function)}},
                   "Activation");
}

Node activation_gradient(const ActivationMatch& match) {
  return candidate(opdef::kActivationGradient, {match.u, match.dy}, {match.du},
                   {{.name = "function", .value = static_cast<std::int64_t>(match.function)}},
                   "ActivationGradient");
}

// Whether the device has any use for a match of this type: the search takes longer than the
// question.
bool may_be_preferred(Value* at, const PassContext& context) {
  constexpr std::array kAll = {ActivationFunction::kGelu, ActivationFunction::kTanhGelu,
                               ActivationFunction::kSilu};
  return std::ranges::any_of(kAll, [&](ActivationFunction function) {
    return context.prefers(activation(function, at, {at}));
  });
}

std::optional<ActivationMatch> match_activation(const Node& anchor, const ir::Uses& uses,
                                                const PassContext& context) {
  Value* at = anchor.outputs[0];
  const auto dims = at->type.static_dims();
  const bool is_real = at->dtype() == DataType::kFloat32 || at->dtype() == DataType::kFloat64;
  if (!is_real || !dims || !may_be_preferred(at, context)) return std::nullopt;
  static const std::array shapes = {samples_of(ActivationFunction::kGelu),
                                    samples_of(ActivationFunction::kTanhGelu),
                                    samples_of(ActivationFunction::kSilu)};
  if (anchor.op_type == "Gelu") {
    const bool is_tanh = anchor.string_attribute("approximate") == "tanh";
    ActivationMatch match{
        .function = is_tanh ? ActivationFunction::kTanhGelu : ActivationFunction::kGelu,
        .u = anchor.inputs[0],
        .y = anchor.outputs[0]};
    find_gradient(uses, functions_of(uses, match.u), shapes[is_tanh ? 1 : 0].slope, match);
    return match;
  }
  for (Value* u : arguments_of(anchor)) {
    if (u->type.static_dims() != dims) continue;
    const Functions functions = functions_of(uses, u);
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      ActivationMatch match{.function = static_cast<ActivationFunction>(i), .u = u};
      match.y = functions.find_value(shapes[i].value, u->dtype());
      // The function may be absent if a 16-bit value is read by the gradient alone.
      if (match.y == nullptr && !is_stored_as_f16(*u)) continue;
      find_gradient(uses, functions, shapes[i].slope, match);
      if (match.y != nullptr || match.du != nullptr) return match;
    }
  }
  return std::nullopt;
}

// `value` rounded to the 16-bit type that `widening` reads, and widened again.
Value* rounded(ir::Graph& graph, Value* value, const Node& widening) {
  const auto cast = [&](Value* from, DataType dtype) {
    Node* node = graph.add_node("Cast", {from}, 1, widening.attributes, "", value->name);
    node->set_attribute("to", static_cast<std::int64_t>(dtype));
    node->outputs[0]->type = value->type;
    node->outputs[0]->type.dtype = dtype;
    return node->outputs[0];
  };
  return cast(cast(value, widening.inputs[0]->dtype()), value->dtype());
}

// Before `place`, a node that computes these values, which it takes from their producers.
Node* take(ir::Graph& graph, std::string_view op_type, std::vector<Value*> inputs, Value* result,
           std::string_view domain, const std::string& hint) {
  Node* node = graph.add_node(op_type, std::move(inputs), 1, {}, domain, hint);
  graph.nodes.pop_back();
  for (Value*& output : result->producer->outputs) {
    if (output == result) output = nullptr;
  }
  ir::Graph::set_output(node, 0, result);
  return node;
}

// The slope of a 16-bit u is stored in 16 bits too, instead of u, or else computed again from u.
bool computes_slope_again(const ActivationMatch& match, const ir::Uses& uses) {
  return is_stored_as_f16(*match.u) &&
         (match.y == nullptr || !is_read_forward(*match.u->producer->inputs[0], uses));
}

bool is_preferred(const ActivationMatch& match, const ir::Uses& uses, const PassContext& context) {
  const bool is_again = match.du != nullptr && computes_slope_again(match, uses);
  if (is_again && !context.prefers(activation_gradient(match))) return false;
  if (match.y == nullptr) return true;
  std::vector<Value*> results{match.y};
  Value slope = candidate_value(match.u->type);
  if (match.du != nullptr && !is_again) results.push_back(&slope);
  return context.prefers(activation(match.function, match.u, std::move(results)));
}

}  // namespace

bool fuse_activations(ir::Graph& graph, const PassContext& context) {
  const ir::Uses uses(graph);
  std::vector<ActivationMatch> matches;
  std::unordered_map<const Value*, bool> is_taken;
  for (const Node* node : graph.nodes) {
    if (!ir::is_op(*node, {"Erf", "Tanh", "Sigmoid", "Gelu"})) continue;
    const auto match = match_activation(*node, uses, context);
    if (!match || (match->y != nullptr && is_taken[match->y]) ||
        (match->du != nullptr && is_taken[match->du]) || !is_preferred(*match, uses, context)) {
      continue;
    }
    if (match->y != nullptr) is_taken[match->y] = true;
    if (match->du != nullptr) is_taken[match->du] = true;
    matches.push_back(*match);
  }
  if (matches.empty()) return false;
  // Each replaces the node whose result it takes.
  std::unordered_map<const Node*, Node*> replaced;
  for (const ActivationMatch& match : matches) {
    const Node* old_y = match.y == nullptr ? nullptr : match.y->producer;
    const Node* old_du = match.du == nullptr ? nullptr : match.du->producer;
    const auto function = static_cast<std::int64_t>(match.function);
    Node* node = nullptr;
    if (old_y != nullptr) {
      node = take(graph, opdef::kActivation, {match.u}, match.y, ir::kFusedDomain, old_y->name);
      node->set_attribute("function", function);
      replaced[old_y] = node;
    }
    if (old_du == nullptr) continue;
    if (computes_slope_again(match, uses)) {
      Node* gradient = take(graph, opdef::kActivationGradient, {match.u, match.dy}, match.du,
                            ir::kFusedDomain, old_du->name);
      gradient->set_attribute("function", function);
      replaced[old_du] = gradient;
      continue;
    }
    Value* slope = graph.add_output(node, 1, match.u->type, "slope");
    if (is_stored_as_f16(*match.u)) slope = rounded(graph, slope, *match.u->producer);
    replaced[old_du] = take(graph, "Mul", {match.dy, slope}, match.du, "", old_du->name);
  }
  for (Node*& node : graph.nodes) {
    if (const auto found = replaced.find(node); found != replaced.end()) node = found->second;
  }
  ir::sort_topologically(graph);  // a gradient that is no rule's may have come first
  ir::eliminate_dead_nodes(graph);
  return true;
}

}  // namespace onnxgrad::passes
