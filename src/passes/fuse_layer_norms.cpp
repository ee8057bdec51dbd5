#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "ir/builder.h"
#include "ir/pattern.h"
#include "ir/uses.h"
#include "opdef/fused_layer_norm.h"
#include "opdef/random_stream.h"
#include "opdef/registry.h"
#include "passes/passes.h"

// Patterns: LayerNormalization of a sum with a residual, whose other term may be a Dropout; and
// onnxgrad.LayerNormalizationGrad, followed by the sum with another cotangent (pre-norm), by the
// mask of the Dropout (post-norm) and by the sum over rows that is the gradient of a bias. Each
// becomes one node (opdef/fused_layer_norm.h). A product adds terms as it stores its result: a sum
// with one stays there, unless a Dropout is between them.

namespace onnxgrad::passes {
namespace {

using ir::is_op;
using ir::Node;
using ir::Value;

class LayerNormFusion {
 public:
  LayerNormFusion(ir::Graph& graph, const PassContext& context)
      : graph_(graph), context_(context), uses_(graph) {}

  bool run() {
    for (Node* node : graph_.nodes) {
      if (is_op(node, "LayerNormalization")) fuse_forward(node);
      if (node->domain == ir::kFunctionDomain &&
          opdef::base_name(node->domain, node->op_type) == opdef::kFusedLayerNormGrad) {
        fuse_gradient(node);
      }
    }
    if (gone_.empty()) return false;
    std::erase_if(graph_.nodes, [&](const Node* node) { return gone_.contains(node); });
    ir::eliminate_dead_nodes(graph_);
    ir::sort_topologically(graph_);
    return true;
  }

 private:
  static bool is_float32(const Value* value) {
    return value != nullptr && value->dtype() == DataType::kFloat32 && value->type.static_dims();
  }

  static bool has_shape_of(const Value* value, const Value* like) {
    return is_float32(value) && value->type.static_dims() == like->type.static_dims();
  }

  static bool is_leaf(const Value* value) { return value == nullptr || value->producer == nullptr; }

  // A product, which may be followed by a bias.
  static bool is_matmul(const Value* value) {
    const auto makes_matmul = [](const Node* node) {
      return is_op(node, "MatMul") || is_op(node, "Gemm");
    };
    const Node* node = value->producer;
    if (!is_op(node, "Add")) return makes_matmul(node);
    return std::ranges::any_of(node->inputs, [&](const Value* term) {
      return makes_matmul(term->producer) || (is_op(term->producer, "Add") && is_matmul(term));
    });
  }

  // Replaces a node's description if the device prefers the new one.
  bool change(Node* node, std::string_view op_type, std::vector<Value*> inputs,
              std::vector<Value*> outputs) {
    const Node before = *node;
    node->domain = ir::kFusedDomain;
    node->op_type = op_type;
    node->inputs = std::move(inputs);
    node->outputs = outputs;
    const bool is_preferred = context_.prefers(*node);
    node->outputs = before.outputs;
    if (!is_preferred) {
      *node = before;
      return false;
    }
    node->outputs.resize(std::max(node->outputs.size(), outputs.size()));
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (node->outputs[i] == outputs[i]) continue;
      if (outputs[i] == nullptr) {
        node->outputs[i] = nullptr;
      } else {
        ir::Graph::set_output(node, i, outputs[i]);
      }
    }
    return true;
  }

  void fuse_forward(Node* node) {
    Value* sum = node->inputs[0];
    Node* add = sum->producer;
    for (std::size_t i = 1; i < node->outputs.size(); ++i) {
      if (node->outputs[i] != nullptr) return;
    }
    if (!is_op(add, "Add") || gone_.contains(add) || add->inputs[0] == add->inputs[1] ||
        !has_shape_of(add->inputs[0], sum) || !has_shape_of(add->inputs[1], sum) ||
        !is_leaf(node->inputs[1]) || !is_leaf(node->input(2))) {
      return;
    }
    Node* dropout = nullptr;
    std::size_t side = 0;
    for (const std::size_t i : {std::size_t{0}, std::size_t{1}}) {
      Node* producer = add->inputs[i]->producer;
      if (dropout != nullptr || !is_op(producer, "Dropout") || gone_.contains(producer) ||
          uses_.only_reader(add->inputs[i]) != add) {
        continue;
      }
      dropout = producer;
      side = i;
    }
    const bool is_stored_by_matmul = is_matmul(add->inputs[0]) || is_matmul(add->inputs[1]);
    if (dropout == nullptr && is_stored_by_matmul) return;
    std::vector<Value*> inputs{dropout == nullptr ? add->inputs[0] : dropout->inputs[0],
                               add->inputs[1 - side], node->inputs[1], node->input(2)};
    if (dropout == nullptr) inputs[1] = add->inputs[1];
    std::vector<Value*> outputs{node->outputs[0], sum};
    const Node before = *node;
    if (dropout != nullptr) {
      inputs.push_back(dropout->input(1));
      inputs.push_back(dropout->input(2));
      Value* mask = dropout->outputs.size() > 1 ? dropout->outputs[1] : nullptr;
      if (mask != nullptr) outputs.push_back(mask);
      node->set_attribute("drops", std::int64_t{1});
      if (const auto* seed = dropout->find_attribute("seed")) node->set_attribute("seed", *seed);
      opdef::draw_like(*dropout, *node);
    }
    if (!change(node, opdef::kFusedLayerNorm, std::move(inputs), std::move(outputs))) {
      *node = before;
      return;
    }
    gone_.insert(add);
    if (dropout != nullptr) gone_.insert(dropout);
  }

  // Mul(gradient, Mul(Cast(mask), factor)), as Dropout's rule writes it.
  struct Masked {
    Node* product = nullptr;
    Value* mask = nullptr;
    Value* factor = nullptr;
  };

  static bool is_single_float(const Value* value) {
    return is_float32(value) && value->type.fixed_dims().num_elements() == 1;
  }

  Masked find_mask(const Value* gradient) const {
    for (const ir::Use& use : uses_.of(gradient)) {
      if (use.node == nullptr || !is_op(use.node, "Mul") || gone_.contains(use.node) ||
          !has_shape_of(use.node->outputs[0], gradient)) {
        continue;
      }
      const Node* scaled = use.node->inputs[1 - static_cast<std::size_t>(use.input)]->producer;
      if (!is_op(scaled, "Mul")) continue;
      for (const std::size_t i : {std::size_t{0}, std::size_t{1}}) {
        const Node* cast = scaled->inputs[i]->producer;
        Value* factor = scaled->inputs[1 - i];
        if (!is_op(cast, "Cast") || !is_single_float(factor)) continue;
        Value* mask = cast->inputs[0];
        if (mask->dtype() == DataType::kBool &&
            mask->type.static_dims() == gradient->type.static_dims()) {
          return {use.node, mask, factor};
        }
      }
    }
    return {};
  }

  // The sum over all axes that are not normalised.
  Node* find_column_sum(const Value* gradient, const Value* scale) const {
    const auto rank = static_cast<std::int64_t>(gradient->type.rank());
    const auto leading = rank - static_cast<std::int64_t>(scale->type.rank());
    for (const ir::Use& use : uses_.of(gradient)) {
      Node* node = use.node;
      if (node == nullptr || !is_op(node, "ReduceSum") || use.input != 0 || gone_.contains(node) ||
          node->input(1) == nullptr || !node->inputs[1]->is_constant() ||
          !has_shape_of(node->outputs[0], scale)) {
        continue;
      }
      std::vector<std::int64_t> axes = node->inputs[1]->initializer.to_int64s();
      for (std::int64_t& axis : axes) axis += axis < 0 ? rank : 0;
      std::ranges::sort(axes);
      bool is_leading = static_cast<std::int64_t>(axes.size()) == leading;
      for (std::size_t i = 0; is_leading && i < axes.size(); ++i) {
        is_leading = axes[i] == static_cast<std::int64_t>(i);
      }
      if (is_leading) return node;
    }
    return nullptr;
  }

  void fuse_gradient(Node* node) {
    Value* gradient = node->outputs[0];
    if (gradient == nullptr || !is_float32(gradient) || node->outputs.size() != 3) return;
    std::vector<Value*> inputs = node->inputs;
    std::vector<Value*> outputs = node->outputs;
    std::vector<Node*> taken;
    inputs.resize(3);
    Node* add = uses_.only_reader(gradient);
    if (is_op(add, "Add") && !gone_.contains(add) && add->inputs[0] != add->inputs[1]) {
      Value* other = add->inputs[add->inputs[0] == gradient ? 1 : 0];
      if (has_shape_of(other, gradient) && has_shape_of(add->outputs[0], gradient) &&
          !is_matmul(other) && !feeds_matmul_sum(add)) {
        inputs.push_back(other);
        taken.push_back(add);
        outputs[0] = gradient = add->outputs[0];
      }
    }
    const Masked masked = find_mask(gradient);
    if (masked.product != nullptr) {
      inputs.resize(4);
      inputs.push_back(masked.mask);
      inputs.push_back(masked.factor);
      outputs.push_back(masked.product->outputs[0]);
      taken.push_back(masked.product);
      if (uses_.only_reader(gradient) == masked.product) outputs[0] = nullptr;
    }
    const Value* summed = masked.product == nullptr ? gradient : masked.product->outputs[0];
    if (Node* sum = find_column_sum(summed, inputs[2])) {
      outputs.resize(5);
      outputs[4] = sum->outputs[0];
      taken.push_back(sum);
      if (masked.product == nullptr && uses_.only_reader(gradient) == sum) outputs[0] = nullptr;
    }
    if (taken.empty() || !are_earlier(inputs, node)) return;
    if (change(node, opdef::kFusedLayerNormGrad, std::move(inputs), std::move(outputs))) {
      gone_.insert(taken.begin(), taken.end());
    }
  }

  // Whether a sum is one of the terms that a product adds as it stores its result.
  bool feeds_matmul_sum(const Node* add) const {
    const Node* next = uses_.only_reader(add->outputs[0]);
    if (!is_op(next, "Add")) return false;
    return std::ranges::any_of(next->inputs, [](const Value* term) { return is_matmul(term); });
  }

  // No input depends on a result of `node`: none of them is computed after it.
  bool are_earlier(const std::vector<Value*>& inputs, const Node* node) {
    if (places_.empty()) {
      for (const Node* each : graph_.nodes) places_.emplace(each, places_.size());
    }
    return std::ranges::all_of(inputs, [&](const Value* input) {
      if (input == nullptr || input->producer == nullptr) return true;
      const auto place = places_.find(input->producer);
      return place == places_.end() || place->second < places_.at(node);
    });
  }

  ir::Graph& graph_;
  const PassContext& context_;
  ir::Uses uses_;
  std::unordered_set<const Node*> gone_;
  std::unordered_map<const Node*, std::size_t> places_;
};

}  // namespace

bool fuse_layer_norms(ir::Graph& graph, const PassContext& context) {
  return LayerNormFusion(graph, context).run();
}

}  // namespace onnxgrad::passes
