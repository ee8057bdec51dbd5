#include "autodiff/gradient.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "autodiff/activity.h"
#include "autodiff/carry.h"
#include "autodiff/widening.h"
#include "base/check.h"
#include "ir/inline.h"
#include "opdef/gradient_type.h"

// Reverse-mode differentiation of a graph: activity analysis, then one sweep over the active nodes
// from the outputs to the wanted values. Start reading at add_vjp. Gradients of float16 and
// bfloat16 are float32 (widening.h).

namespace onnxgrad::autodiff {
namespace {

using ir::Node;
using ir::Value;

// The cotangents that have arrived so far, per value.
class Cotangents {
 public:
  explicit Cotangents(ir::GraphBuilder& g) : g_(g) {}

  void add(const Value* primal, Value* cotangent) { parts_[primal].push_back(cotangent); }

  // Their sum; nullptr if none has arrived.
  Value* sum(const Value* primal) {
    const auto found = parts_.find(primal);
    if (found == parts_.end()) return nullptr;
    std::vector<Value*>& parts = found->second;
    Value* total = parts.front();
    for (std::size_t i = 1; i < parts.size(); ++i) {
      total = opdef::add_gradients(g_, total, parts[i]);
    }
    parts.assign(1, total);
    return total;
  }

 private:
  ir::GraphBuilder& g_;
  std::unordered_map<const Value*, std::vector<Value*>> parts_;
};

// A sweep and what its parts share.
struct Sweep {
  ir::GraphBuilder& g;
  const Rules& rules;
  Widening& widening;
};

std::vector<Value*> sweep(ir::GraphBuilder& g, ir::Graph& primal, const Rules& rules,
                          std::span<Value* const> outputs, std::span<Value* const> seeds,
                          std::span<Value* const> wrt, ZeroGradients* zeros,
                          Origins* origins = nullptr);

class Context : public opdef::VjpContext {
 public:
  Context(const Sweep& sweep, Node& node, std::vector<Value*> cotangents, std::vector<bool> needs,
          bool in_own_types)
      : g_(sweep.g),
        rules_(sweep.rules),
        widening_(in_own_types ? nullptr : &sweep.widening),
        node_(node),
        complete_(rules_.registry.complete(node)),
        cotangents_(std::move(cotangents)),
        needs_(std::move(needs)) {
    if (widening_ != nullptr) widening_->widen(complete_);
  }

  const Node& node() const override { return complete_; }
  Value* cotangent(std::size_t i) const override {
    return i < cotangents_.size() ? cotangents_[i] : nullptr;
  }
  bool needs(std::size_t i) const override { return i < needs_.size() && needs_[i]; }
  Value* require_output(std::size_t i) override {
    if (node_.output(i) != nullptr) return complete_.output(i);
    const auto named =
        std::ranges::find_if(node_.outputs, [](const Value* output) { return output != nullptr; });
    const std::string hint = fmt::format("{}_{}", (*named)->name, i);  // one received a gradient
    node_.graph->add_output(&node_, i, {}, hint);
    g_.inferer().infer(node_);
    complete_.outputs = node_.outputs;
    if (widening_ != nullptr) widening_->widen(complete_);
    return complete_.output(i);
  }
  std::vector<Value*> differentiate(opdef::GraphBuilder& g, ir::Graph& body,
                                    std::span<Value* const> outputs, std::span<Value* const> seeds,
                                    std::span<Value* const> wrt) override {
    // 16-bit values have float32 gradients.
    return sweep(g, body, rules_, outputs, seeds, wrt, nullptr);
  }
  void carry(opdef::GraphBuilder& g, ir::Graph& body,
             const std::function<Value*(Value*)>& save) override {
    carry_values(g, body, rules_.registry, save);
  }
  Value* add_output(ir::Type type, std::string_view hint) override {
    Value* output = node_.graph->add_output(&node_, node_.outputs.size(), std::move(type), hint);
    complete_.outputs = node_.outputs;
    return output;
  }

 private:
  ir::GraphBuilder& g_;
  const Rules& rules_;
  Widening* widening_;  // nullptr: the rule sees the types of the node
  Node& node_;
  Node complete_;  // node_ with all attributes, float32 for 16-bit types
  std::vector<Value*> cotangents_;
  std::vector<bool> needs_;
};

// The result of the rule, in the shape of the input, with all that is known about its type.
Value* conform(ir::GraphBuilder& g, bool broadcasts, const Node& node, Value* gradient,
               const Value* input) {
  if (broadcasts) gradient = g.sum_to(gradient, const_cast<Value*>(input));  // NOLINT: only read
  const auto given = gradient->type.static_dims();
  const auto wanted = input->type.static_dims();
  if (given && wanted && *given != *wanted) {
    // ONNX's inference of shapes accepts inputs that no runtime would.
    throw GradientError(
        {.what = fmt::format("'{}' has shape {}, and its gradient {}", input->name,
                             wanted->to_string(), given->to_string()),
         .where = {.node = node.name, .op_type = node.op_type, .value = input->name},
         .hint = "Check that the inputs and attributes of the node match: run the model. If it "
                 "runs, this is a bug in onnxgrad: please report it with the model."});
  }
  if (!input->type.is_tensor() || given) return gradient;
  ir::Type type = opdef::gradient_type(input->type);
  // A value that a body captures may have another shape in another branch.
  const bool is_captured = gradient->graph != &g.graph();
  if (is_captured && gradient->type.shape != type.shape) gradient = g.identity(gradient);
  gradient->type = std::move(type);
  return gradient;
}

// True: a gradient arrives at the node but does not reach its active inputs.
bool apply_rule(const Sweep& sweep, const Activity& activity, Node& node, Cotangents& cotangents) {
  ir::GraphBuilder& g = sweep.g;
  const Rules& rules = sweep.rules;
  const bool is_custom = rules.is_custom(node);
  const opdef::OpDef* def = rules.registry.find(node);
  std::vector<Value*> upstream;
  bool any = false;
  for (const Value* output : node.outputs) {
    Value* sum = output == nullptr ? nullptr : cotangents.sum(output);
    if (sum != nullptr && is_custom) sum = as_stored(g, sum, *output);
    upstream.push_back(sum);
    any = any || sum != nullptr;
  }
  if (!any) return false;
  const std::vector<Value*> inputs = gradient_inputs(node);
  std::vector<bool> needs;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    needs.push_back(inputs[i] != nullptr && activity.is_active(inputs[i]) &&
                    rules.can_flow_to(node, i));
  }
  Context context(sweep, node, std::move(upstream), needs, is_custom);
  const std::vector<Value*> gradients =
      is_custom ? rules.custom->apply(context, g, rules.registry) : def->vjp(context, g);
  const bool broadcasts = !is_custom && def->broadcasts;
  ONNXGRAD_ASSERT(gradients.size() <= inputs.size());
  bool is_end = true;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (!needs[i] || gradients[i] == nullptr) continue;
    Value* gradient = as_gradient(g, gradients[i]);
    cotangents.add(inputs[i], conform(g, broadcasts, node, gradient, inputs[i]));
    is_end = false;
  }
  return is_end;
}

std::string reason_for(const opdef::OpDef* def, const Value& input) {
  if (def == nullptr) return "onnxgrad does not know the operator; register_operator() defines it";
  if (def->vjp == nullptr) return "the operator has no gradient rule";
  return fmt::format("the operator's gradient rule does not cover '{}'", input.name);
}

// Nodes that depend on `wrt` and that no gradient passes.
void find_ends(const ir::Graph& graph, const Rules& rules, std::span<Value* const> outputs,
               std::span<Value* const> wrt, std::vector<const Node*>& ends) {
  std::unordered_set<const Value*> needed(outputs.begin(), outputs.end());
  std::unordered_set<const Node*> before;
  for (std::size_t n = graph.nodes.size(); n-- > 0;) {
    const Node& node = *graph.nodes[n];
    const auto is_needed = [&](const Value* value) { return needed.contains(value); };
    if (std::ranges::none_of(node.outputs, is_needed)) continue;
    before.insert(&node);
    for (const Value* input : gradient_inputs(node)) needed.insert(input);
  }
  std::unordered_set<const Value*> live(wrt.begin(), wrt.end());
  for (const Node* node : graph.nodes) {
    if (!before.contains(node)) continue;
    const std::vector<Value*> inputs = gradient_inputs(*node);
    bool is_reached = false;
    bool passes = false;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (!live.contains(inputs[i])) continue;
      is_reached = true;
      passes = passes || rules.can_flow_to(*node, i);
    }
    const bool has_floating = std::ranges::any_of(node->outputs, carries_gradient);
    if (is_reached && passes && has_floating) {
      for (const Value* output : node->outputs) live.insert(output);
    } else if (is_reached) {
      ends.push_back(node);
    }
  }
}

MissingGradient missing_at(const Node& node, std::size_t input, std::string reason) {
  const Value* first = node.outputs.empty() ? nullptr : node.outputs[0];
  return {.op_type = node.op_type,
          .node = node.name,
          .output = first == nullptr ? "" : first->name,
          .input = static_cast<int>(input),
          .reason = std::move(reason)};
}

// Nodes whose results are no floating-point numbers and whose slope nevertheless is not known to be
// zero: numbers that were quantized, and read in a way that no gradient follows.
void add_integer_ends(const ir::Graph& graph, const Rules& rules, std::span<Value* const> outputs,
                      std::span<Value* const> wrt, std::vector<MissingGradient>& missing) {
  std::vector<const Node*> ends;
  find_ends(graph, rules, outputs, wrt, ends);
  for (const Node* node : ends) {
    const opdef::OpDef* def = rules.registry.find(*node);
    const bool is_known = def == nullptr || def->zero_gradient || def->vjp != nullptr ||
                          def->lower != nullptr || !node->subgraphs().empty() ||
                          rules.is_custom(*node);
    if (is_known || std::ranges::any_of(node->outputs, carries_gradient)) continue;
    missing.push_back(missing_at(*node, 0, "its result is of integers, which carry no gradient"));
  }
}

std::vector<MissingGradient> missing_in(const ir::Graph& graph, const Activity& activity,
                                        const Rules& rules, std::span<Value* const> outputs,
                                        std::span<Value* const> wrt) {
  std::vector<MissingGradient> missing;
  add_integer_ends(graph, rules, outputs, wrt, missing);
  for (const Node* node : activity.nodes()) {
    const std::vector<Value*> inputs = gradient_inputs(*node);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (!activity.is_active(inputs[i]) || !rules.can_flow_to(*node, i)) continue;
      if (rules.has_rule_for(*node, i)) continue;
      missing.push_back(missing_at(*node, i, reason_for(rules.registry.find(*node), *inputs[i])));
      break;
    }
  }
  return missing;
}

// A node that the import left because no other operators express it: its lowering says why.
void refuse_unlowered(const Node& node, const Rules& rules, ir::GraphBuilder& g) {
  const opdef::OpDef* def = rules.registry.find(node);
  if (def == nullptr || def->vjp != nullptr || def->lower == nullptr) return;
  def->lower(rules.registry.complete(node), g);
}

[[noreturn]] void throw_missing(const std::vector<MissingGradient>& missing,
                                const std::string& graph) {
  constexpr std::size_t kListed = 10;
  std::string list;
  for (std::size_t i = 0; i < std::min(missing.size(), kListed); ++i) {
    const MissingGradient& m = missing[i];
    list += fmt::format("{}{} {} (input {}: {})", i > 0 ? "; " : "", m.op_type,
                        m.node.empty() ? "of '" + m.output + "'" : "'" + m.node + "'", m.input,
                        m.reason);
  }
  if (missing.size() > kListed) list += fmt::format("; ... {} in total", missing.size());
  throw GradientError(
      {.what = fmt::format("no gradient through {} node{} on the path to the weights",
                           missing.size(), missing.size() == 1 ? "" : "s"),
       .where = {.graph = graph, .node = missing[0].node, .op_type = missing[0].op_type},
       .detail = list + ".",
       .hint = "Freeze the weights before these nodes, replace the operators, or give them a "
               "gradient with register_gradient()."});
}

// Calls of functions whose operator has no rule are differentiated through their bodies.
void expand_functions(ir::GraphBuilder& g, ir::Graph& primal, const Rules& rules,
                      std::span<Value* const> outputs, std::span<Value* const> wrt) {
  bool expanded = true;
  while (expanded) {
    expanded = false;
    const Activity activity(primal, rules, outputs, wrt);
    for (Node* node : activity.nodes()) {
      const opdef::OpDef* def = rules.registry.find(*node);
      if ((def != nullptr && def->vjp != nullptr) || rules.is_custom(*node)) continue;
      const ir::Function* function = g.model().find_function(node->domain, node->op_type);
      if (function == nullptr) continue;
      ir::inline_call(*node, *function, g.inferer());
      expanded = true;
    }
  }
}

// The sweep over the nodes of `primal`: g.graph(), or a body whose values the new nodes read as if
// they were part of it. Seeds and gradients of 16-bit values are float32.
std::vector<Value*> sweep(ir::GraphBuilder& g, ir::Graph& primal, const Rules& rules,
                          std::span<Value* const> outputs, std::span<Value* const> seeds,
                          std::span<Value* const> wrt, ZeroGradients* zeros, Origins* origins) {
  ONNXGRAD_ASSERT(outputs.size() == seeds.size());
  expand_functions(g, primal, rules, outputs, wrt);
  std::size_t known = g.graph().nodes.size();
  const auto note_origin = [&](const Node* origin) {
    const std::vector<Node*>& written = g.graph().nodes;
    for (; origins != nullptr && known < written.size(); ++known) {
      origins->emplace(written[known], origin);
    }
  };
  const Activity activity(primal, rules, outputs, wrt);
  const std::vector<MissingGradient> missing = missing_in(primal, activity, rules, outputs, wrt);
  if (!missing.empty()) {
    for (const Node* node : activity.nodes()) refuse_unlowered(*node, rules, g);
    throw_missing(missing, primal.name);
  }

  Cotangents cotangents(g);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (activity.is_active(outputs[i])) cotangents.add(outputs[i], seeds[i]);
  }
  Widening widening(g, rules.registry, activity);
  const std::vector<Node*>& nodes = activity.nodes();
  for (std::size_t n = nodes.size(); n-- > 0;) {
    const bool is_end = apply_rule({g, rules, widening}, activity, *nodes[n], cotangents);
    note_origin(nodes[n]);
    if (is_end && zeros != nullptr) zeros->ends.push_back(nodes[n]);
  }

  std::vector<Value*> gradients;
  gradients.reserve(wrt.size());
  for (Value* value : wrt) {
    Value* gradient = cotangents.sum(value);
    if (zeros != nullptr) zeros->is_zero.push_back(gradient == nullptr);
    gradients.push_back(gradient == nullptr ? opdef::zero_gradient(g, value) : gradient);
  }
  note_origin(nullptr);
  widening.drop_unread(gradients);
  if (zeros != nullptr && std::ranges::find(zeros->is_zero, true) != zeros->is_zero.end()) {
    find_ends(primal, rules, outputs, wrt, zeros->ends);
  }
  return gradients;
}

// A sweep whose seeds and gradients have the types of the values.
std::vector<Value*> stored_sweep(ir::GraphBuilder& g, ir::Graph& primal, const Rules& rules,
                                 std::span<Value* const> outputs, std::span<Value* const> seeds,
                                 std::span<Value* const> wrt, ZeroGradients* zeros,
                                 Origins* origins = nullptr) {
  std::vector<Value*> wide_seeds;
  for (Value* seed : seeds) wide_seeds.push_back(as_gradient(g, seed));
  std::vector<Value*> gradients = sweep(g, primal, rules, outputs, wide_seeds, wrt, zeros, origins);
  for (std::size_t i = 0; i < wrt.size(); ++i) gradients[i] = as_stored(g, gradients[i], *wrt[i]);
  return gradients;
}

}  // namespace

std::vector<MissingGradient> find_missing_gradients(const ir::Model& model,
                                                    const opdef::OpRegistry& registry,
                                                    std::span<Value* const> outputs,
                                                    std::span<Value* const> wrt,
                                                    const opdef::CustomGradients* custom) {
  const Rules rules{registry, custom};
  const Activity activity(*model.graph, rules, outputs, wrt);
  std::vector<MissingGradient> missing = missing_in(*model.graph, activity, rules, outputs, wrt);
  std::erase_if(missing, [&](const MissingGradient& m) {
    return model.find_function(ir::kFunctionDomain, m.op_type) != nullptr;
  });
  return missing;
}

std::vector<Value*> add_vjp(ir::GraphBuilder& g, const opdef::OpRegistry& registry,
                            std::span<Value* const> outputs, std::span<Value* const> seeds,
                            std::span<Value* const> wrt, ZeroGradients* zeros,
                            const opdef::CustomGradients* custom, Origins* origins) {
  return stored_sweep(g, g.graph(), {registry, custom}, outputs, seeds, wrt, zeros, origins);
}

std::vector<Value*> add_vjp_inside(ir::GraphBuilder& g, ir::Graph& primal,
                                   const opdef::OpRegistry& registry,
                                   std::span<Value* const> outputs, std::span<Value* const> seeds,
                                   std::span<Value* const> wrt, ZeroGradients* zeros,
                                   const opdef::CustomGradients* custom) {
  return stored_sweep(g, primal, {registry, custom}, outputs, seeds, wrt, zeros);
}

}  // namespace onnxgrad::autodiff
