#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "ir/builder.h"
#include "ir/uses.h"
#include "opdef/fused.h"
#include "opdef/guarded_update.h"
#include "opdef/registry.h"
#include "passes/passes.h"
#include "passes/rewriter.h"
#include "passes/step_patterns.h"

// Pattern, as train/precision/loss_scale.cpp writes it: a gradient G = op(A) op(B) of float16
// numbers is multiplied by a number of at most 1 and read by a FaultSum and by an update,
// onnxgrad.WeightUpdate or plain descent, whose results Where guards.
//
// Numbers of float16 are at most 65,504, so that no sum of their products overflows in float32: G
// is finite if and only if A and B are (infinity times 0 is NaN, and each element of A and B is in
// some sum). So FaultSum reads A and B, which are there before all gradients are known to be
// finite, and the product can wait for that: it joins the update, and G is never stored. What lives
// until then instead are A and B.

namespace onnxgrad::passes {
namespace {

using ir::Node;
using ir::Value;

Value* float16_behind(const Value* wide) {
  const Node* cast = wide->producer;
  if (!is_standard(cast, "Cast") || wide->dtype() != DataType::kFloat32) return nullptr;
  return cast->inputs[0]->dtype() == DataType::kFloat16 ? cast->inputs[0] : nullptr;
}

struct Match {
  Node* check = nullptr;    // FaultSum
  Node* product = nullptr;  // G
  Value* a = nullptr;       // float16
  Value* b = nullptr;
  Value* factor = nullptr;
  Node* update = nullptr;  // WeightUpdate, or the Sub of a descent
  Value* rate = nullptr;   // of a descent
  std::vector<Node*> guards = {};
};

// The other of the two operands of a Mul, of which one has one element.
std::optional<std::pair<Value*, Value*>> number_and_other(const Node* node) {
  if (!is_standard(node, "Mul")) return std::nullopt;
  const std::size_t number = num_elements(node->inputs[0]) == 1 ? 0 : 1;
  if (num_elements(node->inputs[number]) != 1) return std::nullopt;
  return std::pair(node->inputs[number], node->inputs[1 - number]);
}

class GuardedProducts {
 public:
  GuardedProducts(ir::Graph& graph, const PassContext& context)
      : graph_(graph), context_(context), uses_(graph) {}

  bool run() {
    bool changed = false;
    for (Node* node : std::vector<Node*>(graph_.nodes)) {
      if (!is_function(node, opdef::kFaultSum)) continue;
      if (const auto match = find(node)) changed = rewrite(*match) || changed;
    }
    if (!changed) return false;
    place_checks();
    ir::sort_topologically(graph_);  // an update now follows its condition
    ir::eliminate_dead_nodes(graph_);
    return true;
  }

 private:
  // What is stored until the end of the step: A and B, or G. The forward pass leaves one of the
  // operands anyway.
  static bool saves_memory(std::int64_t m, std::int64_t n, std::int64_t k) {
    constexpr std::int64_t kHalfBytes = 2, kWideBytes = 4;
    return kHalfBytes * k * (m + n) <= 3 * kWideBytes * m * n / 2;
  }

  std::optional<Match> find(Node* check) const {
    Match match{.check = check};
    const Value* gradient = check->inputs[0];
    if (uses_.count(gradient) != 2) return std::nullopt;
    const auto scaled = number_and_other(gradient->producer);
    if (!scaled || uses_.count(scaled->second) != 1) return std::nullopt;
    match.factor = scaled->first;
    match.product = scaled->second->producer;
    if (!opdef::is_plain_product(match.product) || match.factor->dtype() != DataType::kFloat32) {
      return std::nullopt;
    }
    match.a = float16_behind(match.product->inputs[0]);
    match.b = float16_behind(match.product->inputs[1]);
    const auto dims = gradient->type.static_dims();
    if (match.a == nullptr || match.b == nullptr || !dims || dims->rank() != 2 ||
        dims->num_elements() == 0 || match.a->type.rank() != 2) {
      return std::nullopt;
    }
    const std::int64_t k = num_elements(match.a) / (*dims)[0];
    if (k == 0 || !saves_memory((*dims)[0], (*dims)[1], k)) return std::nullopt;
    for (const ir::Use& use : uses_.of(gradient)) {
      if (use.node != check) match.update = use.node;
    }
    return find_update(gradient, match) ? std::optional(match) : std::nullopt;
  }

  bool find_update(const Value* gradient, Match& match) const {
    Node* reader = match.update;
    if (reader == nullptr || reader->graph != &graph_) return false;
    if (is_function(reader, opdef::kWeightUpdate)) {
      if (reader->inputs[0] != gradient) return false;
      match.guards = guards_of(*reader, uses_);
      return !match.guards.empty();
    }
    const auto step = number_and_other(reader);
    if (!step || step->second != gradient) return false;
    match.rate = step->first;
    match.update = uses_.only_reader(reader->outputs[0]);
    if (!is_standard(match.update, "Sub") || match.update->inputs[1] != reader->outputs[0] ||
        match.rate->dtype() != DataType::kFloat32) {
      return false;
    }
    const Value* weight = match.update->inputs[0];
    if (weight->producer != nullptr || weight->is_constant() ||
        weight->type.static_dims() != gradient->type.static_dims()) {
      return false;
    }
    Node* guard = guard_of(*match.update->outputs[0], *weight, uses_);
    if (guard != nullptr) match.guards = {guard};
    return guard != nullptr;
  }

  // The update takes in the product; false: no kernel does that.
  bool take_in(const Match& match) {
    Node& node = *match.update;
    const Node before = node;
    const auto gemm = opdef::Gemm::read(*match.product);
    node.domain = ir::kFusedDomain;
    if (match.rate == nullptr) {
      node.op_type = opdef::kGuardedGemmWeightUpdate;
      node.attributes = opdef::GemmWeightUpdate{.transpose_a = gemm.transpose_a,
                                                .transpose_b = gemm.transpose_b,
                                                .update = opdef::WeightUpdate::read(before)}
                            .attributes();
      node.inputs.assign({match.a, match.b});
      node.inputs.insert(node.inputs.end(), before.inputs.begin() + 1, before.inputs.end());
      node.inputs.push_back(match.factor);
    } else {
      node.op_type = opdef::kGuardedGemmUpdate;
      node.attributes =
          opdef::GemmUpdate{
              .transpose_a = gemm.transpose_a, .transpose_b = gemm.transpose_b, .scale = -1}
              .attributes();
      node.inputs.assign({before.inputs[0], match.a, match.b, match.factor});
    }
    node.inputs.push_back(match.guards.front()->inputs[0]);
    const std::size_t b = match.rate == nullptr ? 1 : 2;
    if (Value* const feed = source_of(match.b); feed != nullptr) {
      node.inputs[b] = feed;  // rounded as it is packed
      if (context_.has_kernel(node)) return true;
      node.inputs[b] = match.b;
    }
    if (context_.has_kernel(node)) return true;
    node.domain = before.domain;
    node.op_type = before.op_type;
    node.attributes = before.attributes;
    node.inputs = before.inputs;
    return false;
  }

  // The float32 input that a half is the rounding of, or nullptr.
  static Value* source_of(const Value* half) {
    if (!is_standard(half->producer, "Cast")) return nullptr;
    Value* const wide = half->producer->inputs[0];
    return wide->producer == nullptr && wide->dtype() == DataType::kFloat32 ? wide : nullptr;
  }

  bool rewrite(const Match& match) {
    if (!take_in(match)) return false;
    if (match.rate != nullptr) {
      Value*& factor = match.update->inputs[3];
      Value* const rate = match.rate;
      factor = make("Mul", "", {rate, factor}, factor->type);
    }
    for (std::size_t i = 0; i < match.guards.size(); ++i) {
      ir::Graph::set_output(match.update, i, match.guards[i]->outputs[0]);
      gone_.insert(match.guards[i]);
    }
    // The check of G becomes the sum of those of A and B.
    Value* const of_a = fault_of(match.a, *match.check);
    Value* const of_b = fault_of(match.b, *match.check);
    Node& check = *match.check;
    check.domain.clear();
    check.op_type = "Add";
    check.attributes.clear();
    check.inputs = {of_a, of_b};
    return true;
  }

  Value* make(std::string_view op_type, std::string_view domain, std::vector<Value*> inputs,
              const ir::Type& type) {
    Node* node = graph_.add_node(op_type, std::move(inputs), 1, {}, domain, op_type);
    node->outputs[0]->type = type;
    return node->outputs[0];
  }

  // FaultSum of a half, once.
  Value* fault_of(Value* half, const Node& like) {
    Value*& fault = faults_[half];
    if (fault == nullptr) {
      fault = make(like.op_type, like.domain, {half}, like.outputs[0]->type);
      graph_.nodes.pop_back();
    }
    return fault;
  }

  // Each half is checked where it has just been written.
  void place_checks() {
    std::vector<Node*> nodes;
    std::unordered_set<const Value*> placed;
    const auto place = [&](const Value* half) {
      const auto found = faults_.find(half);
      if (found != faults_.end() && placed.insert(half).second) {
        nodes.push_back(found->second->producer);
      }
    };
    for (const Value* input : graph_.inputs) place(input);
    for (Node* node : graph_.nodes) {
      if (!gone_.contains(node)) nodes.push_back(node);
      for (const Value* output : node->outputs) {
        if (output != nullptr) place(output);
      }
    }
    graph_.nodes = std::move(nodes);
  }

  ir::Graph& graph_;
  const PassContext& context_;
  ir::Uses uses_;
  std::unordered_map<const Value*, Value*> faults_;  // by half
  std::unordered_set<const Node*> gone_;
};

}  // namespace

bool fuse_guarded_products(ir::Graph& graph, const PassContext& context) {
  const bool has_checks = any_node(graph, [](const Node& node) {
    return opdef::base_name(node.domain, node.op_type) == opdef::kFaultSum;
  });
  return context.has_kernel && has_checks && GuardedProducts(graph, context).run();
}

}  // namespace onnxgrad::passes
