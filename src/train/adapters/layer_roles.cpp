#include "train/adapters/layer_roles.h"

#include <algorithm>
#include <array>
#include <functional>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "ir/uses.h"

namespace onnxgrad::train {
namespace {

using ir::Node;
using ir::Value;
using Operators = std::unordered_set<std::string_view>;

// Operators between a projection and the attention that reads it: bias, scale, rotary embedding,
// heads, a cache of earlier keys.
const Operators& movements() {
  static const Operators kOperators{"Add",
                                    "Sub",
                                    "Mul",
                                    "Div",
                                    "Neg",
                                    "Cast",
                                    "Identity",
                                    "Transpose",
                                    "Reshape",
                                    "Squeeze",
                                    "Expand",
                                    "Unsqueeze",
                                    "Split",
                                    "Slice",
                                    "Gather",
                                    "Concat",
                                    "Flatten",
                                    "Tile",
                                    "Einsum",
                                    "Dropout",
                                    "Clip",
                                    "Sqrt",
                                    "RotaryEmbedding",
                                    "ScatterND",
                                    "Where",
                                    "LayerNormalization",
                                    "RMSNormalization",
                                    "SimplifiedLayerNormalization",
                                    "QuantizeLinear",
                                    "DequantizeLinear"};
  return kOperators;
}

// Operators between the scores of an attention's first MatMul and its Softmax, and behind that.
const Operators& score_operators() {
  static const Operators kOperators{"Add",  "Mul",  "Div",      "Sub",     "Where", "Cast",
                                    "Clip", "Tanh", "Identity", "Dropout", "IsNaN", "Reshape"};
  return kOperators;
}

const Operators& activations() {
  static const Operators kOperators{"Relu",      "Gelu",      "FastGelu",        "BiasGelu",
                                    "QuickGelu", "Erf",       "Sigmoid",         "Tanh",
                                    "Swish",     "Elu",       "LeakyRelu",       "Selu",
                                    "Softplus",  "HardSwish", "HardSigmoid",     "Mish",
                                    "PRelu",     "Celu",      "ThresholdedRelu", "Softsign",
                                    "Clip"};
  return kOperators;
}

// Operators of an MLP beside its layers: an activation may be written out.
const Operators& mlp_operators() {
  static const Operators kOperators = [] {
    Operators all = activations();
    all.insert({"Add",
                "Sub",
                "Mul",
                "Div",
                "Pow",
                "Sqrt",
                "Cast",
                "Identity",
                "Dropout",
                "Split",
                "Slice",
                "Reshape",
                "Squeeze",
                "Unsqueeze",
                "Flatten",
                "Exp",
                "Neg",
                "Reciprocal",
                "Where",
                "Min",
                "Max",
                "QuantizeLinear",
                "DequantizeLinear"});
    return all;
  }();
  return kOperators;
}

// Operators between a head and the outputs of its model.
const Operators& head_operators() {
  static const Operators kOperators{"Add",
                                    "Mul",
                                    "Div",
                                    "Sub",
                                    "Softmax",
                                    "LogSoftmax",
                                    "Sigmoid",
                                    "ArgMax",
                                    "Cast",
                                    "Reshape",
                                    "Squeeze",
                                    "Unsqueeze",
                                    "Identity",
                                    "Transpose",
                                    "ZipMap",
                                    "Normalizer",
                                    "Flatten",
                                    "Clip",
                                    "Tanh",
                                    "Relu",
                                    "Concat",
                                    "Slice",
                                    "Softplus",
                                    "Exp",
                                    "Gather",
                                    "TopK",
                                    "ReduceMax",
                                    "ReduceSum",
                                    "ReduceMean",
                                    "ArrayFeatureExtractor",
                                    "QuantizeLinear",
                                    "DequantizeLinear"};
  return kOperators;
}

bool is_attention(const Node& node) {
  static const Operators kOperators{"Attention", "MultiHeadAttention", "GroupQueryAttention",
                                    "DecoderMaskedMultiHeadAttention"};
  const bool reads_operands = node.domain.empty() || node.op_type != "Attention";
  return reads_operands && kOperators.contains(node.op_type);
}

class Roles {
 public:
  Roles(const ir::Graph& graph, std::span<AdaptableLayer> layers) : layers_(layers), uses_(graph) {
    for (AdaptableLayer& layer : layers_) {
      for (const Node* node : layer.nodes) {
        if (layer.kind != LayerKind::kEmbedding) by_node_.emplace(node, &layer);
      }
      switch (layer.kind) {
        case LayerKind::kLinear:
          layer.role = "linear";
          break;
        case LayerKind::kConvolution:
          layer.role = "conv";
          break;
        case LayerKind::kEmbedding:
          layer.role = "embedding";
          break;
      }
    }
    read(graph);
    for (AdaptableLayer& layer : layers_) {
      if (layer.kind == LayerKind::kLinear) find_mlp(layer);
    }
    for (AdaptableLayer& layer : layers_) find_head(layer);
  }

 private:
  void read(const ir::Graph& graph) {
    for (const Node* node : graph.nodes) {
      if (node->op_type == "Softmax") read_softmax(*node);
      if (is_attention(*node)) {
        constexpr std::array kOperands{"query", "key", "value"};
        for (std::size_t i = 0; i < kOperands.size(); ++i) name(node->input(i), kOperands[i]);
        if (node->output(0) != nullptr) name_output(*node->output(0));
      }
      for (const ir::Graph* body : node->subgraphs()) read(*body);
    }
  }

  // Softmax(q k) v, with anything that keeps the shape of the scores between them.
  void read_softmax(const Node& softmax) {
    const Node* scores = nullptr;
    walk_back(softmax.input(0), score_operators(), [&](const Node& node) {
      if (node.op_type == "MatMul" && !by_node_.contains(&node)) scores = &node;
    });
    const Node* result = nullptr;
    walk_ahead(*softmax.output(0), score_operators(), [&](const Node& node) {
      if (node.op_type == "MatMul" && !by_node_.contains(&node)) result = &node;
    });
    if (scores == nullptr || result == nullptr) return;
    name(scores->input(0), "query");
    name(scores->input(1), "key");
    name(result->input(1), "value");
    name_output(*result->output(0));
  }

  // Gives `role` to the linear layers that `value` comes from.
  void name(const Value* value, std::string_view role) {
    walk_back(value, movements(), [&](const Node& node) {
      AdaptableLayer* const layer = linear(node);
      if (layer == nullptr) return;
      const bool is_new = layer->role == "linear" || layer->role == "attention_output";
      if (is_new) layer->role = role;
      if (layer->role != role) layer->role = "qkv";
    });
  }

  void name_output(const Value& value) {
    walk_ahead(value, movements(), [&](const Node& node) {
      AdaptableLayer* const layer = linear(node);
      if (layer != nullptr && layer->role == "linear") layer->role = "attention_output";
    });
  }

  void find_mlp(AdaptableLayer& layer) {
    if (layer.role != "linear") return;
    bool is_activated = false;
    std::vector<AdaptableLayer*> up;
    walk_back(
        layer.nodes.front()->input(0), mlp_operators(),
        [&](const Node& node) {
          if (AdaptableLayer* const found = linear(node)) up.push_back(found);
        },
        [&](const Node& node) {
          is_activated = is_activated || activations().contains(node.op_type);
        });
    if (!is_activated || up.empty()) return;
    layer.role = "mlp_down";
    for (AdaptableLayer* const found : up) {
      if (found->role == "linear") found->role = "mlp_up";
    }
  }

  // A sum of two results, as around a block, is no bias: what follows is not the scores.
  void find_head(AdaptableLayer& layer) {
    if (layer.kind == LayerKind::kEmbedding) return;
    bool is_head = true;
    std::unordered_set<const Value*> seen;
    std::vector<const Value*> open;
    for (const Node* node : layer.nodes) open.push_back(node->output(0));
    while (!open.empty() && is_head) {
      const Value* value = open.back();
      open.pop_back();
      if (value == nullptr || !seen.insert(value).second) continue;
      for (const ir::Use& use : uses_.of(value)) {
        if (use.node == nullptr) continue;
        const bool passes = head_operators().contains(use.node->op_type) &&
                            !by_node_.contains(use.node) && has_one_result(*use.node, seen);
        is_head = is_head && passes;
        open.insert(open.end(), use.node->outputs.begin(), use.node->outputs.end());
      }
    }
    if (is_head) layer.role = "head";
  }

  // Whether the other operands are constants, or results of the same layer.
  bool has_one_result(const Node& node, const std::unordered_set<const Value*>& seen) const {
    static const Operators kSums{"Add", "Sub", "Mul", "Div", "Concat"};
    if (!kSums.contains(node.op_type)) return true;
    return std::ranges::all_of(node.inputs, [&](const Value* input) {
      return input == nullptr || seen.contains(input) || is_constant(input);
    });
  }

  static bool is_constant(const Value* value) {
    if (value->is_constant()) return true;
    const Node* node = value->producer;
    if (node == nullptr) return false;
    return std::ranges::all_of(node->inputs, [](const Value* input) {
      return input != nullptr && (input->is_constant() ||
                                  (input->producer != nullptr && input->producer->inputs.empty()));
    });
  }

  AdaptableLayer* linear(const Node& node) const {
    const auto found = by_node_.find(&node);
    const bool is_linear = found != by_node_.end() && found->second->kind == LayerKind::kLinear;
    return is_linear ? found->second : nullptr;
  }

  // Visits the nodes that `value` is computed by through `passed` operators, layers and others
  // too, which end the walk.
  void walk_back(const Value* value, const Operators& passed,
                 const std::function<void(const Node&)>& visit_end,
                 const std::function<void(const Node&)>& visit_passed = nullptr) const {
    std::unordered_set<const Node*> seen;
    std::vector<const Value*> open{value};
    while (!open.empty()) {
      const Value* next = open.back();
      open.pop_back();
      const Node* node = next == nullptr ? nullptr : next->producer;
      if (node == nullptr || !seen.insert(node).second) continue;
      if (by_node_.contains(node) || !passed.contains(node->op_type)) {
        visit_end(*node);
        continue;
      }
      if (visit_passed != nullptr) visit_passed(*node);
      // Behind a sum of two layers there is another block.
      open.insert(open.end(), node->inputs.begin(), node->inputs.end());
    }
  }

  void walk_ahead(const Value& value, const Operators& passed,
                  const std::function<void(const Node&)>& visit_end) const {
    std::unordered_set<const Value*> seen;
    std::vector<const Value*> open{&value};
    while (!open.empty()) {
      const Value* next = open.back();
      open.pop_back();
      if (next == nullptr || !seen.insert(next).second) continue;
      for (const ir::Use& use : uses_.of(next)) {
        if (use.node == nullptr) continue;
        if (by_node_.contains(use.node) || !passed.contains(use.node->op_type)) {
          visit_end(*use.node);
        } else {
          open.insert(open.end(), use.node->outputs.begin(), use.node->outputs.end());
        }
      }
    }
  }

  std::span<AdaptableLayer> layers_;
  ir::Uses uses_;
  std::unordered_map<const Node*, AdaptableLayer*> by_node_;
};

}  // namespace

void give_roles(const ir::Graph& graph, std::span<AdaptableLayer> layers) {
  const Roles roles(graph, layers);
}

}  // namespace onnxgrad::train
