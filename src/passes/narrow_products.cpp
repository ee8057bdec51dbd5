#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ir/uses.h"
#include "opdef/fused.h"
#include "passes/passes.h"
#include "passes/rewriter.h"

// A value that is stored in 16 bits is read through a Cast to float32 (train/precision.h, and what
// widen_half makes of models in these types). Three passes undo that where kernels read and write
// halves themselves: products of such values, and element-wise groups, of which each gets a Cast of
// its own that it takes in. What other kernels read in float32 lives as long as they need it.

namespace onnxgrad::passes {
namespace {

using ir::Node;
using ir::Value;

bool is_cast_node(const Node* node) {
  return node != nullptr && node->domain.empty() && node->op_type == "Cast";
}

// The half that `value` is in float32, or nullptr.
Value* half_behind(const Value* value) {
  const Node* node = value == nullptr ? nullptr : value->producer;
  if (!is_cast_node(node) || value->dtype() != DataType::kFloat32) return nullptr;
  return ir::holds_half(node->inputs[0]) ? node->inputs[0] : nullptr;
}

bool is_onnx_operator(const Node& node, std::string_view op_type) {
  return node.domain.empty() && node.op_type == op_type;
}

bool is_narrowable(const Node& node) {
  return is_onnx_operator(node, "MatMul") || opdef::is_fused(&node, opdef::kGemm) ||
         opdef::is_fused(&node, opdef::kGemmUpdate) ||
         opdef::is_fused(&node, opdef::kGemmWeightUpdate);
}

// The number of A among the inputs; B follows.
std::size_t first_operand(const Node& node) {
  return opdef::is_fused(&node, opdef::kGemmUpdate) ? 1 : 0;
}

bool swaps_axes(const Node* node) {
  return node != nullptr && is_onnx_operator(*node, "Transpose") &&
         node->inputs[0]->type.rank() == 2 &&
         node->ints_attribute("perm", {1, 0}) == std::vector<std::int64_t>{1, 0};
}

bool shapes_are_static(const Node& node) {
  const auto has_dims = [](const Value* value) {
    return value == nullptr || value->type.static_dims().has_value();
  };
  return std::ranges::all_of(node.inputs, has_dims) && std::ranges::all_of(node.outputs, has_dims);
}

// The float32 weight that a half is the rounding of, or nullptr.
Value* weight_behind(const Value* half) {
  if (!is_cast_node(half->producer)) return nullptr;
  Value* const wide = half->producer->inputs[0];
  return wide->producer == nullptr && wide->dtype() == DataType::kFloat32 ? wide : nullptr;
}

bool narrow_operands(Node& node, const PassContext& context) {
  const std::size_t a = first_operand(node);
  Value* const halves[2] = {half_behind(node.inputs[a]), half_behind(node.inputs[a + 1])};
  if (halves[0] == nullptr || halves[1] == nullptr || halves[0]->dtype() != halves[1]->dtype()) {
    return false;
  }
  const std::vector<Value*> before = node.inputs;
  node.inputs[a] = halves[0];
  // A B of float32 beside an A of 16 bits is rounded to its type as the kernel packs it.
  if (Value* const weight = weight_behind(halves[1]);
      weight != nullptr && opdef::is_fused(&node, opdef::kGemm)) {
    node.inputs[a + 1] = weight;
    if (context.has_kernel(node)) return true;
  }
  node.inputs[a + 1] = halves[1];
  if (context.has_kernel(node)) return true;
  node.inputs = before;
  return false;
}

// The product is written as the half that it is rounded to, if nothing else reads it.
bool narrow_result(Node& node, const ir::Uses& uses, const PassContext& context) {
  if (!is_onnx_operator(node, "MatMul") && !opdef::is_plain_product(&node)) return false;
  Value* const wide = node.outputs[0];
  const Node* reader = uses.only_reader(wide);
  if (!is_cast_node(reader) || !ir::holds_half(reader->outputs[0])) return false;
  Value* const half = reader->outputs[0];
  if (half->dtype() != node.inputs[0]->dtype()) return false;
  node.outputs[0] = half;
  if (context.has_kernel(node)) {
    ir::Graph::set_output(&node, 0, half);
    return true;
  }
  node.outputs[0] = wide;
  return false;
}

}  // namespace

bool lift_casts(ir::Graph& graph, const PassContext& /*context*/) {
  bool changed = false;
  Rewriter out(graph);
  for (Node* node : std::vector<Node*>(graph.nodes)) {
    const bool reads_matrices =
        is_onnx_operator(*node, "MatMul") || is_onnx_operator(*node, "Gemm");
    for (std::size_t i = 0; reads_matrices && i < 2; ++i) {
      const Value* half = half_behind(node->inputs[i]);
      if (half == nullptr || !swaps_axes(half->producer)) continue;
      Value* const source = half->producer->inputs[0];
      ir::Type type = source->type;
      type.dtype = DataType::kFloat32;
      Value* const wide =
          out.emit("", "Cast", {source}, type, node->inputs[i]->producer->attributes, node->name);
      node->inputs[i] = out.emit("", "Transpose", {wide}, node->inputs[i]->type,
                                 half->producer->attributes, node->name);
      changed = true;
    }
    out.keep(node);
  }
  out.finish();
  if (changed) ir::eliminate_dead_nodes(graph);
  return changed;
}

bool narrow_products(ir::Graph& graph, const PassContext& context) {
  if (!context.has_kernel) return false;
  const ir::Uses uses(graph);
  std::vector<const Node*> gone;
  bool changed = false;
  for (Node* node : graph.nodes) {
    if (!is_narrowable(*node) || !shapes_are_static(*node) || !narrow_operands(*node, context))
      continue;
    changed = true;
    const Node* reader = uses.only_reader(node->outputs[0]);
    if (narrow_result(*node, uses, context)) gone.push_back(reader);
  }
  std::erase_if(graph.nodes,
                [&](const Node* node) { return std::ranges::find(gone, node) != gone.end(); });
  if (changed) ir::eliminate_dead_nodes(graph);
  return changed;
}

namespace {

/// A Cast for each element-wise reader, and one for all others that are not far from each other.
class CastSpreader {
 public:
  CastSpreader(ir::Graph& graph, const PassContext& context)
      : graph_(graph), context_(context), uses_(graph), out_(graph) {}

  bool run() {
    for (Node* node : std::vector<Node*>(graph_.nodes)) {
      if (!is_cast_node(node)) ++position_;
      const opdef::OpDef* def = context_.ops.find(*node);
      const bool takes_casts = def != nullptr && def->expression != nullptr;
      for (Value*& input : node->inputs) {
        Value* const half = half_behind(input);
        if (half == nullptr || uses_.count(input) < 2) continue;
        const bool is_taken =
            takes_casts && input->type.static_dims() == node->outputs[0]->type.static_dims();
        input = is_taken ? add_cast(half, *input) : near_cast(half, input);
      }
      out_.keep(node);
    }
    out_.finish();
    if (changed_) ir::eliminate_dead_nodes(graph_);
    return changed_;
  }

 private:
  static constexpr std::size_t kNear = 12;  // nodes that are no Casts
  struct Latest {
    Value* wide;
    std::size_t position;
  };

  // The first reader keeps the Cast that there is.
  Value* near_cast(Value* half, Value* wide) {
    const auto [entry, is_first] = latest_.try_emplace(wide, Latest{wide, position_});
    Latest& latest = entry->second;
    if (!is_first && position_ > latest.position + kNear) latest.wide = add_cast(half, *wide);
    latest.position = position_;
    return latest.wide;
  }

  // A weight is rounded again rather than kept as a half.
  Value* add_cast(Value* half, const Value& wide) {
    changed_ = true;
    if (Value* const weight = weight_behind(half); weight != nullptr) {
      half = out_.emit("", "Cast", {weight}, half->type, half->producer->attributes, half->name);
    }
    return out_.emit("", "Cast", {half}, wide.type, wide.producer->attributes, wide.name);
  }

  ir::Graph& graph_;
  const PassContext& context_;
  ir::Uses uses_;
  Rewriter out_;
  std::unordered_map<const Value*, Latest> latest_;  // by the Cast that was shared
  std::size_t position_ = 0;
  bool changed_ = false;
};

}  // namespace

bool spread_casts(ir::Graph& graph, const PassContext& context) {
  return CastSpreader(graph, context).run();
}

}  // namespace onnxgrad::passes
