#include "train/precision.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "ir/uses.h"
#include "onnxgrad/option_error.h"
#include "train/loss_scale.h"
#include "train/patterns.h"

// Start reading at Lowering::run. Forward and backward nodes are in one graph; what "a later
// product" means is computed once, backwards (find_ahead), then one pass in graph order inserts the
// Casts.

namespace onnxgrad::train {
namespace {

using ir::GraphBuilder;
using ir::Node;
using ir::Value;

// Which operands of an operator are multiplied and added up.
struct ProductOperator {
  std::string_view domain;
  std::string_view op_type;
  std::size_t operands;  // the first ones
};
constexpr std::array kProducts = {
    ProductOperator{"", "MatMul", 2},
    ProductOperator{"", "Gemm", 2},
    ProductOperator{"", "Conv", 2},
    ProductOperator{"", "ConvTranspose", 2},
    ProductOperator{"", "Einsum", 64},
    ProductOperator{ir::kFunctionDomain, "ConvInputGrad", 2},
    ProductOperator{ir::kFunctionDomain, "ConvWeightGrad", 2},
};

// What only moves elements of its first operand (Concat: of all), in types of 16 bits too: those
// that stock onnxruntime runs on bfloat16.
constexpr std::array<std::string_view, 9> kMovements = {
    "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose",
    "Slice",   "Split",   "Concat",  "Identity",
};

enum class NodeKind : std::uint8_t {
  kProduct,
  kElementwise,
  kMovement,
  kReduction,  // its results are few: never stored in 16 bits
  kShape,      // reads no elements
  kWide,       // all else: computed in float32, result 0 stored as others are
  kExcluded,   // by the user
};

bool is_wide(const Value* value) {
  if (value == nullptr || !value->type.is_tensor() || value->dtype() != DataType::kFloat32) {
    return false;
  }
  const auto dims = value->type.static_dims();
  return !(value->type.has_rank() && value->type.rank() == 0) &&
         !(dims && dims->num_elements() == 1);
}

class Lowering {
 public:
  Lowering(GraphBuilder& g, const opdef::OpRegistry& registry, const MixedPrecision& precision,
           const PrecisionScope& scope)
      : g_(g),
        registry_(registry),
        scope_(scope),
        patterns_(precision.float32_nodes),
        half_type_(precision.type == Precision::kFloat16 ? DataType::kFloat16
                                                         : DataType::kBfloat16),
        suffix_(precision.type == Precision::kFloat16 ? "_fp16" : "_bf16"),
        uses_(g.graph()) {}

  void run() {
    check_patterns();
    find_attention(g_.graph());
    run_in(g_.graph(), nullptr);
    if (num_products_ == 0 && num_doubles_ > 0) {
      throw OptionError({.what = "precision: the products of this model are of float64",
                         .hint = "Convert the model to float32, or omit precision=."});
    }
  }

 private:
  // A graph whose nodes are visited; those of enclosing graphs come before it in the list.
  struct Frame {
    ir::Graph* graph;
    std::vector<Node*> nodes = {};
    bool is_backward = false;
    std::unordered_set<const Value*> ahead = {};   // values that a later product depends on
    std::unordered_set<const Value*> behind = {};  // of the backward pass: that depend on a product
  };
  using Map = std::unordered_map<const Value*, Value*>;

  // ---- what nodes are ----

  const ProductOperator* find_product(const Node& node) const {
    const std::string_view name = opdef::base_name(node.domain, node.op_type);
    const auto* const found = std::ranges::find_if(kProducts, [&](const ProductOperator& one) {
      return one.domain == node.domain && one.op_type == name;
    });
    return found == kProducts.end() ? nullptr : &*found;
  }

  bool matches(const Node& node) const {
    return std::ranges::any_of(patterns_, [&](const std::string& pattern) {
      return (!node.name.empty() && glob_match(pattern, node.name)) ||
             glob_match(pattern, node.op_type);
    });
  }

  bool is_excluded(const Node& node) const {
    if (patterns_.empty()) return false;
    const auto found = scope_.backward.find(&node);
    if (found == scope_.backward.end()) return matches(node);
    return found->second != nullptr && matches(*found->second);
  }

  NodeKind kind(const Node& node) const {
    if (is_excluded(node)) return NodeKind::kExcluded;
    if (find_product(node) != nullptr) return NodeKind::kProduct;
    const opdef::OpDef* def = registry_.find(node);
    if (def != nullptr && def->fold_types != nullptr) return NodeKind::kShape;
    if (node.domain.empty() && std::ranges::find(kMovements, node.op_type) != kMovements.end()) {
      return NodeKind::kMovement;
    }
    if (def != nullptr && def->expression != nullptr) return NodeKind::kElementwise;
    if (node.domain.empty() && node.op_type.starts_with("Reduce")) return NodeKind::kReduction;
    return NodeKind::kWide;
  }

  bool has_product_inside(const Node& node) const {
    return std::ranges::any_of(node.subgraphs(), [this](const ir::Graph* body) {
      return std::ranges::any_of(body->nodes, [this](const Node* inner) {
        return kind(*inner) == NodeKind::kProduct || has_product_inside(*inner);
      });
    });
  }

  bool is_backward(const Node& node, const Frame& frame) const {
    return frame.is_backward || scope_.backward.contains(&node);
  }

  void check_patterns() const {
    std::vector<std::string> names;
    collect_names(g_.graph(), names);
    for (const std::string& pattern : patterns_) {
      const auto is_match = [&](const std::string& name) { return glob_match(pattern, name); };
      if (std::ranges::any_of(names, is_match)) continue;
      throw OptionError({.what = "float32_nodes: no node or operator matches '" + pattern + "'",
                         .hint = base::nearest_or(pattern, names)});
    }
  }

  void collect_names(const ir::Graph& graph, std::vector<std::string>& names) const {
    for (const Node* node : graph.nodes) {
      if (scope_.backward.contains(node)) continue;
      if (!node->name.empty()) names.push_back(node->name);
      names.push_back(node->op_type);
      for (const ir::Graph* body : node->subgraphs()) collect_names(*body, names);
    }
  }

  // ---- attention ----

  // From the products of queries and keys to that with the values, with what only moves elements
  // before and after: computed in float32 from stored halves, since no matrix of scores need be
  // stored where a kernel computes all of it (passes/fuse_attention.cpp).
  void find_attention(const ir::Graph& graph) {
    for (const Node* node : graph.nodes) {
      if (scope_.backward.contains(node)) continue;
      for (const ir::Graph* body : node->subgraphs()) find_attention(*body);
      if (!node->domain.empty() || node->op_type != "Softmax") continue;
      NodeSet found{node};
      if (find_scores(node->inputs[0], found) && find_product(node->outputs[0], found)) {
        attention_.merge(found);
      }
    }
    for (std::size_t i = graph.nodes.size(); i-- > 0;) {
      const Node* node = graph.nodes[i];
      if (scope_.backward.contains(node) || kind(*node) != NodeKind::kMovement) continue;
      const auto uses = uses_.of(node->outputs[0]);
      const bool leads_in = std::ranges::any_of(uses, [&](const ir::Use& use) {
        return use.node != nullptr && attention_.contains(use.node) &&
               !scope_.backward.contains(use.node);
      });
      if (leads_in) attention_.insert(node);
    }
    for (const Node* node : graph.nodes) {
      const bool follows = kind(*node) == NodeKind::kMovement && node->inputs[0] != nullptr &&
                           attention_.contains(node->inputs[0]->producer);
      const auto backward = scope_.backward.find(node);
      const bool is_gradient =
          backward != scope_.backward.end() && attention_.contains(backward->second);
      if (follows || is_gradient) attention_.insert(node);
    }
  }

  using NodeSet = std::unordered_set<const Node*>;
  static constexpr std::size_t kMostInAttention = 32;

  bool joins(const Node* node, NodeSet& found) const {
    const NodeKind what = kind(*node);
    return (what == NodeKind::kElementwise || what == NodeKind::kMovement) &&
           found.size() < kMostInAttention && found.insert(node).second;
  }

  // Back through element-wise work to a product of two computed values.
  bool find_scores(const Value* value, NodeSet& found) const {
    const Node* node = value == nullptr ? nullptr : value->producer;
    if (node == nullptr || !is_wide(value)) return false;
    if (node->op_type == "MatMul" && kind(*node) == NodeKind::kProduct) {
      const bool of_values =
          node->inputs[0]->producer != nullptr && node->inputs[1]->producer != nullptr;
      if (of_values) found.insert(node);
      return of_values;
    }
    if (!joins(node, found)) return false;
    bool has_scores = false;
    for (const Value* input : node->inputs) has_scores = find_scores(input, found) || has_scores;
    return has_scores;
  }

  bool find_product(const Value* value, NodeSet& found) const {
    bool has_product = false;
    for (const ir::Use& use : uses_.of(value)) {
      const Node* node = use.node;
      if (node == nullptr || scope_.backward.contains(node)) continue;
      if (node->op_type == "MatMul" && kind(*node) == NodeKind::kProduct && use.input == 0) {
        found.insert(node);
        has_product = true;
      } else if (node->op_type == "Dropout" || kind(*node) == NodeKind::kMovement) {
        if (!found.insert(node).second) continue;
        has_product = find_product(node->outputs[0], found) || has_product;
      }
    }
    return has_product;
  }

  bool is_in_attention(const Value* value) const {
    return value != nullptr && attention_.contains(value->producer);
  }

  // ---- which values are stored ----

  // Operands and captured values of nodes that are products, or that such nodes read.
  void find_ahead(Frame& frame, const Frame* outer) {
    for (const bool backward : {true, false}) {
      std::unordered_set<const Value*> ahead;
      if (outer != nullptr) {  // an iteration may follow
        const bool has_product = std::ranges::any_of(frame.graph->nodes, [this](const Node* node) {
          return kind(*node) == NodeKind::kProduct || has_product_inside(*node);
        });
        if (has_product) ahead.insert(frame.graph->outputs.begin(), frame.graph->outputs.end());
      }
      for (std::size_t i = frame.graph->nodes.size(); i-- > 0;) {
        const Node& node = *frame.graph->nodes[i];
        if (is_backward(node, frame) != backward) continue;
        const bool leads =
            kind(node) == NodeKind::kProduct || has_product_inside(node) ||
            std::ranges::any_of(node.outputs, [&](const Value* v) { return ahead.contains(v); });
        if (!leads || kind(node) == NodeKind::kShape) continue;
        ahead.insert(node.inputs.begin(), node.inputs.end());
        if (node.subgraphs().empty()) continue;
        for (const Value* value : ir::captured_values(node)) ahead.insert(value);
      }
      // What the backward pass reads of the forward pass is judged in the latter.
      // NOLINTNEXTLINE(bugprone-nondeterministic-pointer-iteration-order): fills a set
      for (const Value* value : ahead) {
        if (value != nullptr && value->producer != nullptr &&
            is_backward(*value->producer, frame) == backward) {
          frame.ahead.insert(value);
        }
      }
    }
  }

  void find_behind(Frame& frame) const {
    for (const Node* node : frame.graph->nodes) {
      if (!is_backward(*node, frame)) continue;
      const bool follows = kind(*node) == NodeKind::kProduct || has_product_inside(*node) ||
                           std::ranges::any_of(node->inputs, [&](const Value* value) {
                             return frame.behind.contains(value);
                           });
      if (follows) frame.behind.insert(node->outputs.begin(), node->outputs.end());
    }
  }

  // A use that ends a group of element-wise nodes.
  bool ends_group(const Value& value, const ir::Use& use, const Frame& frame) const {
    if (use.node == nullptr) return false;
    if (use.node->graph != value.graph) return true;
    // The gradient of the loss itself is float32 up to the first product.
    const bool is_of_loss =
        !frame.is_backward && is_backward(*value.producer, frame) && !frame.behind.contains(&value);
    switch (kind(*use.node)) {
      case NodeKind::kProduct:
      case NodeKind::kMovement:
        return true;
      case NodeKind::kWide:
        return !is_of_loss;
      case NodeKind::kExcluded:
      case NodeKind::kShape:
        return false;
      default:
        return is_backward(*use.node, frame) != is_backward(*value.producer, frame);
    }
  }

  // Through element-wise work only.
  bool comes_of_product(const Value& value) const {
    if (value.producer == nullptr) return false;
    const NodeKind from = kind(*value.producer);
    if (from != NodeKind::kElementwise && from != NodeKind::kMovement)
      return from == NodeKind::kProduct;
    return std::ranges::any_of(value.producer->inputs, [this](const Value* input) {
      return input != nullptr && comes_of_product(*input);
    });
  }

  bool is_stored(const Value& value, const Frame& frame) const {
    if (!is_wide(&value) || value.producer == nullptr) return false;
    const NodeKind from = kind(*value.producer);
    if (from == NodeKind::kReduction || from == NodeKind::kExcluded || from == NodeKind::kShape)
      return false;
    if (from == NodeKind::kWide && value.output_index != 0) return false;
    if (scope_.stored_scores.contains(&value)) return comes_of_product(value);
    if (!frame.ahead.contains(&value)) return false;
    const auto uses = uses_.of(&value);
    if (is_in_attention(&value) && std::ranges::all_of(uses, [this](const ir::Use& use) {
          return attention_.contains(use.node);
        })) {
      return false;
    }
    return std::ranges::any_of(uses,
                               [&](const ir::Use& use) { return ends_group(value, use, frame); });
  }

  // ---- the rewrite ----

  void run_in(ir::Graph& graph, const Frame* outer, bool backward = false) {
    Frame& frame = *frames_.emplace_back(std::make_unique<Frame>(Frame{.graph = &graph}));
    frame.is_backward = backward;
    find_ahead(frame, outer);
    find_behind(frame);
    for (Node* node : std::vector<Node*>(graph.nodes)) visit(*node, frame);
    graph.nodes = std::move(frame.nodes);
    if (outer != nullptr) {
      for (Value*& output : graph.outputs) output = rounded(output, backward);
    }
    frames_.pop_back();
  }

  void visit(Node& node, Frame& frame) {
    const bool backward = is_backward(node, frame);
    const NodeKind what = kind(node);
    count_product(node);
    if (what == NodeKind::kProduct) {
      const std::size_t count = std::min(find_product(node)->operands, node.inputs.size());
      for (std::size_t i = 0; i < count; ++i) {
        if (attention_.contains(&node) && is_in_attention(node.inputs[i])) continue;
        if (is_wide(node.inputs[i]) || node.inputs[i]->dtype() == DataType::kFloat32) {
          half_of(node.inputs[i], frame);
        }
      }
    }
    const bool moves_half = what == NodeKind::kMovement && !attention_.contains(&node);
    if (moves_half && move_half(node, frame)) return;
    if (what != NodeKind::kShape) {
      for (std::size_t i = 0; i < node.inputs.size(); ++i) {
        const bool is_inside = attention_.contains(&node) && is_in_attention(node.inputs[i]);
        const bool is_operand =
            !is_inside && what == NodeKind::kProduct && i < find_product(node)->operands;
        node.inputs[i] =
            is_operand ? operand(node.inputs[i], backward) : rounded(node.inputs[i], backward);
      }
    }
    if (what != NodeKind::kExcluded) {
      for (ir::Graph* body : node.subgraphs()) {
        run_in(*body, &frame, backward);
        replace_captured(*body, backward);
      }
    }
    frame.nodes.push_back(&node);
    for (Value* output : node.outputs) {
      if (output != nullptr && is_stored(*output, frame)) store(output, frame);
    }
  }

  void count_product(const Node& node) {
    if (find_product(node) == nullptr) return;
    ++(node.outputs[0]->dtype() == DataType::kFloat64 ? num_doubles_ : num_products_);
  }

  // What the nodes of a body read of enclosing graphs, as far as run_in has not replaced it.
  void replace_captured(ir::Graph& body, bool backward) {
    Map map;
    for (Value* value : ir::captured_values(body)) {
      Value* instead = rounded(value, backward);
      if (instead != value) map.emplace(value, instead);
    }
    ir::replace_uses(body, map);
  }

  // True: the node moves halves now, and its results are as before in float32.
  bool move_half(Node& node, Frame& frame) {
    const std::size_t count = node.op_type == "Concat" ? node.inputs.size() : 1;
    std::vector<Value*> halves;
    for (std::size_t i = 0; i < count; ++i) {
      Value* value = node.inputs[i];
      if (!is_wide(value)) return false;
      if (const auto found = half_.find(value); found != half_.end() && stored_.contains(value)) {
        halves.push_back(found->second);
      } else if (reaches_products_only(node)) {
        halves.push_back(half_of(value, frame));
      } else {
        return false;
      }
    }
    std::ranges::copy(halves, node.inputs.begin());
    frame.nodes.push_back(&node);
    for (std::size_t i = 0; i < node.outputs.size(); ++i) {
      Value* wide = node.outputs[i];
      if (wide == nullptr) continue;
      ir::Type type = wide->type;
      type.dtype = half_type_;
      Value* half = frame.graph->add_output(&node, i, type, wide->name + suffix_);
      stored_.insert(wide);
      half_[wide] = half;
      wide->producer = nullptr;
      Node* cast = make_cast(half, wide, frame);
      frame.nodes.push_back(cast);
      rounded_[0][wide] = wide;
      rounded_[1][wide] = add_rounded(*wide, half, frame);
    }
    return true;
  }

  // A weight that is transposed and then multiplied.
  bool reaches_products_only(const Node& node) const {
    return std::ranges::all_of(node.outputs, [&](const Value* value) {
      const auto uses = uses_.of(value);
      return !uses.empty() && std::ranges::all_of(uses, [&](const ir::Use& use) {
        if (use.node == nullptr || use.node->graph != value->graph) return false;
        const ProductOperator* product = find_product(*use.node);
        return product != nullptr && kind(*use.node) == NodeKind::kProduct &&
               static_cast<std::size_t>(use.input) < product->operands;
      });
    });
  }

  Node* make_cast(Value* from, Value* to, const Frame& frame) const {
    return frame.graph->make_node("Cast", {from}, {to}, to->name,
                                  {{"to", static_cast<std::int64_t>(to->dtype())}});
  }

  Value* add_half(Value* value, Frame& frame) {
    ir::Type type = value->type;
    type.dtype = half_type_;
    Value* half = frame.graph->add_value(frame.graph->names().unique(value->name + suffix_), type);
    frame.nodes.push_back(make_cast(value, half, frame));
    half_[value] = half;
    return half;
  }

  Value* add_rounded(const Value& value, Value* half, Frame& frame) const {
    Value* wide =
        frame.graph->add_value(frame.graph->names().unique(value.name + "_rounded"), value.type);
    frame.nodes.push_back(make_cast(half, wide, frame));
    return wide;
  }

  // From now on readers get the number of 16 bits. Those of the two passes have a Cast each: the
  // passes may be separated, and then the half is what is saved.
  void store(Value* value, Frame& frame) {
    Value* half = add_half(value, frame);
    stored_.insert(value);
    for (Map& map : rounded_) map[value] = add_rounded(*value, half, frame);
  }

  // The value in 16 bits, for products: of a value that others read in float32, too.
  Value* half_of(Value* value, Frame& frame) {
    if (const auto found = half_.find(value); found != half_.end()) return found->second;
    Frame& home = frame_of(*value, frame);
    Value* half = add_half(value, home);
    for (Map& map : operand_) map[value] = add_rounded(*value, half, home);
    return half;
  }

  Frame& frame_of(const Value& value, Frame& frame) {
    for (const auto& one : frames_) {
      if (one->graph == value.graph) return *one;
    }
    return frame;
  }

  Value* rounded(Value* value, bool backward) const {
    const auto found = rounded_[backward ? 1 : 0].find(value);
    return found == rounded_[backward ? 1 : 0].end() ? value : found->second;
  }
  Value* operand(Value* value, bool backward) const {
    const auto found = operand_[backward ? 1 : 0].find(value);
    return found == operand_[backward ? 1 : 0].end() ? rounded(value, backward) : found->second;
  }

  GraphBuilder& g_;
  const opdef::OpRegistry& registry_;
  const PrecisionScope& scope_;
  const std::vector<std::string>& patterns_;
  DataType half_type_;
  std::string suffix_;
  ir::Uses uses_;
  NodeSet attention_;
  std::vector<std::unique_ptr<Frame>> frames_;
  std::unordered_set<const Value*> stored_;  // all readers get the number of 16 bits
  Map half_;                                 // by float32 value
  Map rounded_[2];                           // in float32 again, for forward and backward readers
  Map operand_[2];                           // the same for products only
  std::size_t num_products_ = 0;
  std::size_t num_doubles_ = 0;
};

[[noreturn]] void refuse_precision(const std::string& what, const std::string& hint) {
  throw OptionError({.what = what, .hint = hint});
}

}  // namespace

void check_precision(const MixedPrecision& precision) {
  if (!(precision.loss_scale >= 1 && precision.loss_scale <= kMaxLossScale)) {
    refuse_precision(fmt::format("loss_scale: {:g}, expected 1 to 16777216", precision.loss_scale),
                     "Give a power of two, such as 65536: dividing by it is exact.");
  }
  if (precision.growth_interval < 1) {
    refuse_precision(
        fmt::format("growth_interval: {}, expected at least 1", precision.growth_interval),
        "Give the number of steps after which the loss scale is doubled.");
  }
}

void lower_precision(GraphBuilder& g, const opdef::OpRegistry& registry,
                     const MixedPrecision& precision, const PrecisionScope& scope) {
  check_precision(precision);
  if (precision.type == Precision::kFloat32) return;
  Lowering(g, registry, precision, scope).run();
}

}  // namespace onnxgrad::train
