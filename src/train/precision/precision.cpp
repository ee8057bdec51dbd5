#include "train/precision/precision.h"

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
#include "train/precision/loss_scale.h"
#include "train/precision/precision_kinds.h"

// Start reading at Lowering::run. Forward and backward nodes are in one graph; what "a later
// product" means is computed once, backwards (find_ahead), then one pass in graph order inserts the
// Casts.

namespace onnxgrad::train {
namespace {

using ir::GraphBuilder;
using ir::Node;
using ir::Value;

constexpr int kMostComputedAgain = 10;  // nodes, from what is stored

class Lowering {
 public:
  Lowering(GraphBuilder& g, const opdef::OpRegistry& registry, const MixedPrecision& precision,
           const PrecisionScope& scope)
      : g_(g),
        scope_(scope),
        f16_type_(precision.type == Precision::kFloat16 ? DataType::kFloat16 : DataType::kBfloat16),
        suffix_(precision.type == Precision::kFloat16 ? "_fp16" : "_bf16"),
        uses_(g.graph()),
        kinds_(g.graph(), registry, scope, precision.float32_nodes, uses_) {}

  void run() {
    kinds_.check_patterns(g_.graph());
    run_in(g_.graph(), nullptr);
    if (num_matmuls_ == 0 && num_doubles_ > 0) {
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
    std::unordered_set<const Value*> ahead = {};  // values that a later product depends on
    // Values of the backward pass that depend on a product.
    std::unordered_set<const Value*> behind = {};
  };
  using Map = std::unordered_map<const Value*, Value*>;

  // ---- what nodes are ----

  NodeKind kind(const Node& node) const { return kinds_.kind(node); }
  bool is_backward(const Node& node, const Frame& frame) const {
    return frame.is_backward || scope_.backward.contains(&node);
  }
  bool is_in_attention(const Value* value) const {
    return value != nullptr && kinds_.is_attention(value->producer);
  }

  // ---- which values are stored ----

  // Operands and captured values of nodes that are products, or that such nodes read.
  void find_ahead(Frame& frame, const Frame* outer) {
    for (const bool backward : {true, false}) {
      std::unordered_set<const Value*> ahead;
      if (outer != nullptr) {  // an iteration may follow
        const bool has_matmul = std::ranges::any_of(frame.graph->nodes, [this](const Node* node) {
          return kind(*node) == NodeKind::kMatmul || kinds_.has_matmul_inside(*node);
        });
        if (has_matmul) ahead.insert(frame.graph->outputs.begin(), frame.graph->outputs.end());
      }
      for (std::size_t i = frame.graph->nodes.size(); i-- > 0;) {
        const Node& node = *frame.graph->nodes[i];
        if (is_backward(node, frame) != backward) continue;
        const bool leads =
            kind(node) == NodeKind::kMatmul || kinds_.has_matmul_inside(node) ||
            std::ranges::any_of(node.outputs, [&](const Value* v) { return ahead.contains(v); });
        if (!leads || kind(node) == NodeKind::kShape) continue;
        ahead.insert(node.inputs.begin(), node.inputs.end());
        if (node.subgraphs().empty()) continue;
        for (const Value* value : ir::captured_values(node)) ahead.insert(value);
      }
      // Values of the forward pass that the backward pass reads are judged in the former.
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
      const bool follows = kind(*node) == NodeKind::kMatmul || kinds_.has_matmul_inside(*node) ||
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
    if (NodeKinds::undoes_broadcast(*use.node)) {
      const Value& same = *use.node->outputs[0];
      return std::ranges::any_of(
          uses_.of(&same), [&](const ir::Use& next) { return ends_group(same, next, frame); });
    }
    // The gradient of the loss itself is float32 up to the first product.
    const bool is_of_loss =
        !frame.is_backward && is_backward(*value.producer, frame) && !frame.behind.contains(&value);
    switch (kind(*use.node)) {
      case NodeKind::kMatmul:
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

  // The shares of an attention that the backward pass reads.
  bool is_kept_softmax(const Value& value, const Frame& frame) const {
    return value.producer->op_type == "Softmax" && !is_backward(*value.producer, frame) &&
           std::ranges::any_of(uses_.of(&value), [&](const ir::Use& use) {
             return use.node != nullptr && is_backward(*use.node, frame);
           });
  }

  // Through element-wise work only.
  bool comes_of_matmul(const Value& value) const {
    if (value.producer == nullptr) return false;
    const NodeKind from = kind(*value.producer);
    if (from != NodeKind::kElementwise && from != NodeKind::kMovement)
      return from == NodeKind::kMatmul;
    return std::ranges::any_of(value.producer->inputs, [this](const Value* input) {
      return input != nullptr && comes_of_matmul(*input);
    });
  }

  // Notes how many element-wise nodes of the forward pass compute a value from what is stored.
  void note_distance(const Value& value, const Frame& frame) {
    const Node& node = *value.producer;
    if (is_backward(node, frame) || node.graph != &g_.graph()) return;
    if (kind(node) != NodeKind::kElementwise) return;
    int distance = 0;
    for (Value* input : node.inputs) {
      if (!is_wide(input) || input->producer == nullptr || twin_.contains(input)) continue;
      const auto before = distance_.find(input);
      if (before == distance_.end()) return;
      distance = std::max(distance, before->second);
    }
    if (distance < kMostComputedAgain) distance_.emplace(&value, distance + 1);
  }

  // True for values that the backward pass reads but a kernel computes again at little cost:
  // element-wise functions of values that are stored, as in GELU, and what a Clip reads of a
  // normalization, of which only the mask is needed.
  bool is_computed_again(const Value& value, const Frame& frame) const {
    const Node& node = *value.producer;
    if (is_backward(node, frame) || node.graph != &g_.graph()) return false;
    const bool is_norm = is_stored_normalization(value);
    if (!is_norm && !distance_.contains(&value)) return false;
    return std::ranges::all_of(uses_.of(&value), [&](const ir::Use& use) {
      if (use.node == nullptr || use.node->graph != value.graph) return false;
      if (is_norm && !is_backward(*use.node, frame)) return is_fixed_clip(*use.node, use);
      const NodeKind by = kind(*use.node);
      return by == NodeKind::kElementwise || by == NodeKind::kReduction || by == NodeKind::kShape;
    });
  }

  // A normalization with statistics of the batch, of what is stored.
  bool is_stored_normalization(const Value& value) const {
    const Node& node = *value.producer;
    return node.op_type == "BatchNormalization" && node.domain.empty() && value.output_index == 0 &&
           node.int_attribute("training_mode", 0) == 1 &&
           (exact_.contains(node.inputs[0]) || twin_.contains(node.inputs[0]));
  }

  static bool is_fixed_clip(const Node& node, const ir::Use& use) {
    const auto is_number = [&](std::size_t i) {
      return node.input(i) == nullptr || node.inputs[i]->is_constant();
    };
    return node.domain.empty() && node.op_type == "Clip" && use.input == 0 && is_number(1) &&
           is_number(2);
  }

  // A choice among numbers of 16 bits, such as the gradient of Relu and Clip.
  bool is_exact_choice(const Node& node) const {
    if (node.op_type != "Where" || !node.domain.empty()) return false;
    return std::ranges::all_of(std::array{node.inputs[1], node.inputs[2]}, [&](const Value* value) {
      return exact_.contains(value) || (value->is_constant() && !is_wide(value));
    });
  }

  bool is_stored(const Value& value, const Frame& frame) {
    if (!is_wide(&value) || value.producer == nullptr) return false;
    note_distance(value, frame);
    const NodeKind from = kind(*value.producer);
    if (from == NodeKind::kReduction || from == NodeKind::kExcluded || from == NodeKind::kShape)
      return false;
    if (from == NodeKind::kWide && value.output_index != 0) return false;
    if (scope_.stored_scores.contains(&value)) return comes_of_matmul(value);
    if (!frame.ahead.contains(&value)) return false;
    const auto uses = uses_.of(&value);
    if (is_in_attention(&value) && std::ranges::all_of(uses, [this](const ir::Use& use) {
          return kinds_.is_attention(use.node);
        })) {
      return is_kept_softmax(value, frame);
    }
    const bool backward = is_backward(*value.producer, frame);
    if (from == NodeKind::kMatmul && backward) return true;
    if (backward && is_exact_choice(*value.producer)) {
      exact_.insert(&value);
      return false;
    }
    return std::ranges::any_of(uses,
                               [&](const ir::Use& use) { return ends_group(value, use, frame); }) &&
           !is_computed_again(value, frame);
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
    count_matmul(node);
    if (what == NodeKind::kMatmul) {
      for (std::size_t i = 0; i < kinds_.num_operands(node); ++i) {
        if (kinds_.is_attention(&node) && is_in_attention(node.inputs[i])) continue;
        if (is_wide(node.inputs[i]) || node.inputs[i]->dtype() == DataType::kFloat32) {
          f16_of(node.inputs[i], frame);
        }
      }
    }
    const bool moves_f16 = what == NodeKind::kMovement && !kinds_.is_attention(&node);
    if (moves_f16 && move_f16(node, frame)) return;
    if (what != NodeKind::kShape) {
      for (std::size_t i = 0; i < node.inputs.size(); ++i) {
        const bool is_inside = kinds_.is_attention(&node) && is_in_attention(node.inputs[i]);
        const bool is_operand =
            !is_inside && what == NodeKind::kMatmul && i < kinds_.num_operands(node);
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
      if (output == nullptr) continue;
      if (is_stored(*output, frame)) {
        store(output, frame);
      } else if (distance_.contains(output) && is_left_to_backward(*output, frame)) {
        rounded_[1][output] = again(output, frame);
      }
    }
  }

  // Returns whether the backward pass reads elements of it.
  bool is_left_to_backward(const Value& value, const Frame& frame) const {
    return std::ranges::any_of(uses_.of(&value), [&](const ir::Use& use) {
      if (use.node == nullptr || !is_backward(*use.node, frame)) return false;
      const NodeKind by = kind(*use.node);
      return by != NodeKind::kShape && by != NodeKind::kExcluded;
    });
  }

  // A copy, for the backward pass, of an element-wise function of stored values, so that nothing
  // else is saved where the passes are separate.
  Value* again(Value* value, Frame& frame) {
    if (const auto found = twin_.find(value); found != twin_.end()) return found->second;
    if (!distance_.contains(value)) return value;
    const Node& node = *value->producer;
    std::vector<Value*> inputs = node.inputs;
    for (Value*& input : inputs) {
      if (input != nullptr) input = again(input, frame);
    }
    Value* result = frame.graph->add_value(frame.graph->names().unique(value->name), value->type);
    frame.nodes.push_back(frame.graph->make_node(node.op_type, std::move(inputs), {result},
                                                 node.name, node.attributes, node.domain));
    return twin_[value] = result;
  }

  void count_matmul(const Node& node) {
    if (kinds_.num_operands(node) == 0) return;
    ++(node.outputs[0]->dtype() == DataType::kFloat64 ? num_doubles_ : num_matmuls_);
  }

  // Replaces values of enclosing graphs that the nodes of a body read, as far as run_in has not.
  void replace_captured(ir::Graph& body, bool backward) {
    Map map;
    for (Value* value : ir::captured_values(body)) {
      Value* instead = rounded(value, backward);
      if (instead != value) map.emplace(value, instead);
    }
    ir::replace_uses(body, map);
  }

  // Makes the node move 16-bit values; its results are as before in float32. False: it cannot.
  bool move_f16(Node& node, Frame& frame) {
    const std::size_t count = node.op_type == "Concat" ? node.inputs.size() : 1;
    std::vector<Value*> halves;
    for (std::size_t i = 0; i < count; ++i) {
      Value* value = node.inputs[i];
      if (!is_wide(value)) return false;
      if (const auto found = f16_.find(value); found != f16_.end() && stored_.contains(value)) {
        halves.push_back(found->second);
      } else if (reaches_matmuls_only(node)) {
        halves.push_back(f16_of(value, frame));
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
      type.dtype = f16_type_;
      Value* half = frame.graph->add_output(&node, i, type, wide->name + suffix_);
      stored_.insert(wide);
      f16_[wide] = half;
      wide->producer = nullptr;
      Node* cast = make_cast(half, wide, frame);
      frame.nodes.push_back(cast);
      exact_.insert(wide);
      rounded_[0][wide] = wide;
      rounded_[1][wide] = twin_[wide] = add_rounded(*wide, half, frame);
    }
    return true;
  }

  // A weight that is transposed and then multiplied.
  bool reaches_matmuls_only(const Node& node) const {
    return std::ranges::all_of(node.outputs, [&](const Value* value) {
      const auto uses = uses_.of(value);
      return !uses.empty() && std::ranges::all_of(uses, [&](const ir::Use& use) {
        if (use.node == nullptr || use.node->graph != value->graph) return false;
        return kind(*use.node) == NodeKind::kMatmul &&
               static_cast<std::size_t>(use.input) < kinds_.num_operands(*use.node);
      });
    });
  }

  Node* make_cast(Value* from, Value* to, const Frame& frame) const {
    return frame.graph->make_node("Cast", {from}, {to}, to->name,
                                  {{"to", static_cast<std::int64_t>(to->dtype())}});
  }

  Value* add_half(Value* value, Frame& frame) {
    ir::Type type = value->type;
    type.dtype = f16_type_;
    Value* half = frame.graph->add_value(frame.graph->names().unique(value->name + suffix_), type);
    frame.nodes.push_back(make_cast(value, half, frame));
    f16_[value] = half;
    return half;
  }

  Value* add_rounded(const Value& value, Value* half, Frame& frame) {
    Value* wide =
        frame.graph->add_value(frame.graph->names().unique(value.name + "_rounded"), value.type);
    exact_.insert(wide);
    frame.nodes.push_back(make_cast(half, wide, frame));
    return wide;
  }

  // Stores a value in 16 bits, for all readers. The two passes have a Cast each: they may be
  // separated, and then the 16-bit value is saved.
  void store(Value* value, Frame& frame) {
    Value* half = add_half(value, frame);
    stored_.insert(value);
    for (Map& map : rounded_) map[value] = add_rounded(*value, half, frame);
    twin_[rounded_[0][value]] = rounded_[1][value];
  }

  // The value in 16 bits, for products: of a value that others read in float32, too.
  Value* f16_of(Value* value, Frame& frame) {
    if (const auto found = f16_.find(value); found != f16_.end()) return found->second;
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
  const PrecisionScope& scope_;
  DataType f16_type_;
  std::string suffix_;
  ir::Uses uses_;
  NodeKinds kinds_;
  std::vector<std::unique_ptr<Frame>> frames_;
  std::unordered_set<const Value*> stored_;  // all readers get the number of 16 bits
  std::unordered_set<const Value*> exact_;   // values of the new graph: 16-bit numbers in float32
  std::unordered_map<const Value*, int> distance_;  // in nodes, from what is stored
  Map f16_;                                         // by float32 value
  Map rounded_[2];  // in float32 again, for forward and backward readers
  Map operand_[2];  // rounded values for products only
  Map twin_;        // copies for the backward pass, by forward value
  std::size_t num_matmuls_ = 0;
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
