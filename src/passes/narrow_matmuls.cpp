#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ir/static_size.h"
#include "ir/uses.h"
#include "opdef/activation.h"
#include "opdef/attention.h"
#include "opdef/fused.h"
#include "opdef/fused_layer_norm.h"
#include "opdef/fused_normalization.h"
#include "passes/fuse_gemm.h"
#include "passes/passes.h"
#include "passes/rewriter.h"

// A value that is stored in 16 bits is read through a Cast to float32 (train/precision/precision.h,
// and what widen_f16 makes of models in these types). Three passes undo that where kernels read
// and write 16 bits themselves: products of such values, attention, convolutions, normalizations of
// images, and element-wise groups, of which each gets a Cast of its own that it takes in. What
// other kernels read in float32 lives as long as they need it.

namespace onnxgrad::passes {
namespace {

using ir::Node;
using ir::Value;

bool is_cast_node(const Node* node) {
  return node != nullptr && node->domain.empty() && node->op_type == "Cast";
}

// The 16-bit value that `value` is in float32, or nullptr.
Value* half_behind(const Value* value) {
  const Node* node = value == nullptr ? nullptr : value->producer;
  if (!is_cast_node(node) || value->dtype() != DataType::kFloat32) return nullptr;
  return ir::holds_f16(node->inputs[0]) ? node->inputs[0] : nullptr;
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

bool reads_f16(const ir::Graph& graph) {
  return any_node(graph, [](const Node& node) {
    return is_cast_node(&node) && half_behind(node.outputs[0]) != nullptr;
  });
}

bool swaps_axes(const Node* node) {
  return node != nullptr && is_onnx_operator(*node, "Transpose") &&
         node->inputs[0]->type.rank() == 2 &&
         node->ints_attribute("perm", {1, 0}) == std::vector<std::int64_t>{1, 0};
}

bool shapes_are_static(const Node& node) {
  const auto has_dims = [](const Value* value) {
    return value == nullptr || ir::static_elements(*value).has_value();
  };
  return std::ranges::all_of(node.inputs, has_dims) && std::ranges::all_of(node.outputs, has_dims);
}

// The float32 weight that a 16-bit value is the rounding of, or nullptr.
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

// True for nodes that read and write 16-bit values element by element or row by row.
bool is_stream(const Node& node) {
  const std::string_view name = opdef::base_name(node.domain, node.op_type);
  if (name == opdef::kFusedLayerNorm || name == opdef::kFusedLayerNormGrad) return true;
  return opdef::is_fused(&node, opdef::kActivation) ||
         opdef::is_fused(&node, opdef::kActivationGradient) ||
         opdef::is_fused(&node, "SoftmaxCrossEntropyLoss") ||
         opdef::is_fused(&node, "SoftmaxCrossEntropyLossGrad");
}

// True for nodes that read 16-bit values head by head, and write float32.
bool is_attention(const Node& node) {
  return opdef::is_fused(&node, opdef::kAttention) ||
         opdef::is_fused(&node, opdef::kAttentionGradient);
}

// True for nodes that read and write images of 16 bits. Their weight is float32, or has 16 bits if
// products of 16 bits are wanted and a kernel computes them.
bool is_of_images(const Node& node) {
  const std::string_view name = opdef::base_name(node.domain, node.op_type);
  return opdef::is_fused(&node, opdef::kFusedNormalization) ||
         opdef::is_fused(&node, opdef::kFusedNormalizationGrad) || opdef::is_fused(&node, "Conv") ||
         is_onnx_operator(node, "Conv") || is_onnx_operator(node, "ConvTranspose") ||
         (node.domain == ir::kFunctionDomain &&
          (name == "ConvInputGrad" || name == "ConvWeightGrad"));
}

// The 16-bit value to read instead of an input, or nullptr.
Value* f16_to_read(const Node& node, const Value* input, bool takes_weights = false) {
  Value* const half = half_behind(input);
  const bool is_weight = half != nullptr && is_of_images(node) && weight_behind(half) != nullptr;
  return is_weight && !takes_weights ? nullptr : half;
}

bool reads_weight(const Node& node) {
  return std::ranges::any_of(node.inputs, [](const Value* input) {
    const Value* half = half_behind(input);
    return half != nullptr && weight_behind(half) != nullptr;
  });
}

bool narrow_inputs(Node& node, const PassContext& context) {
  bool changed = false;
  for (Value*& input : node.inputs) {
    Value* const half = f16_to_read(node, input);
    if (half == nullptr) continue;
    Value* const wide = std::exchange(input, half);
    if (context.has_kernel(node)) {
      changed = true;
    } else {
      input = wide;
    }
  }
  return changed;
}

// The 16-bit value that a result is rounded to, if nothing else reads it, or nullptr.
Value* f16_of_result(const Value* wide, const ir::Uses& uses) {
  const Node* reader = wide == nullptr ? nullptr : uses.only_reader(wide);
  return is_cast_node(reader) && ir::holds_f16(reader->outputs[0]) ? reader->outputs[0] : nullptr;
}

// Writes results as the 16-bit values that they are rounded to, if nothing else reads them. The
// Casts are appended to `gone`.
void narrow_results(Node& node, const ir::Uses& uses, const PassContext& context,
                    std::vector<const Node*>& gone) {
  if (!is_stream(node) && !is_onnx_operator(node, "MatMul") && !opdef::is_plain_matmul(&node) &&
      !is_of_images(node)) {
    return;
  }
  for (std::size_t i = 0; i < (is_stream(node) ? node.outputs.size() : 1); ++i) {
    Value* const wide = node.outputs[i];
    Value* const half = f16_of_result(wide, uses);
    if (half == nullptr) continue;
    if (!is_stream(node) && half->dtype() != node.inputs[0]->dtype()) continue;
    node.outputs[i] = half;
    if (context.has_kernel(node)) {
      gone.push_back(half->producer);
      ir::Graph::set_output(&node, i, half);
    } else {
      node.outputs[i] = wide;
    }
  }
}

// All operands and results at once. The Casts of the results are appended to `gone`.
bool narrow_all(Node& node, const ir::Uses& uses, const PassContext& context, bool takes_weights,
                std::vector<const Node*>& gone) {
  const std::vector<Value*> inputs = node.inputs;
  const std::vector<Value*> outputs = node.outputs;
  bool has_f16 = false;
  for (Value*& input : node.inputs) {
    Value* const half = f16_to_read(node, input, takes_weights);
    if (half == nullptr) continue;
    input = half;
    has_f16 = true;
  }
  for (Value*& output : node.outputs) {
    Value* const half = f16_of_result(output, uses);
    if (half != nullptr) output = half;
  }
  if (!has_f16 || !context.has_kernel(node)) {
    node.inputs = inputs;
    node.outputs = outputs;
    return false;
  }
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (node.outputs[i] == outputs[i]) continue;
    gone.push_back(node.outputs[i]->producer);
    ir::Graph::set_output(&node, i, node.outputs[i]);
  }
  return true;
}

// Rounds a weight for each convolution that reads it in 16 bits, instead of keeping the copy.
void round_weights_again(ir::Graph& graph) {
  Rewriter out(graph);
  for (Node* node : out.before()) {
    for (Value*& input : node->inputs) {
      if (input == nullptr || !is_of_images(*node) || !ir::holds_f16(input)) continue;
      Value* const weight = weight_behind(input);
      if (weight == nullptr) continue;
      input = out.emit("", "Cast", {weight}, input->type, input->producer->attributes, node->name);
    }
    out.keep(node);
  }
  out.finish();
}

}  // namespace

namespace {

bool reads_transposed_f16(const Value* operand) {
  const Value* half = half_behind(operand);
  return half != nullptr && swaps_axes(half->producer);
}

// Whether the Transposes of the operands will be flags of a GEMM.
bool takes_transposes(const Node& node, const PassContext& context) {
  if (!is_onnx_operator(node, "MatMul") && !is_onnx_operator(node, "Gemm")) return false;
  if (!reads_transposed_f16(node.inputs[0]) && !reads_transposed_f16(node.inputs[1])) return false;
  const auto gemm = gemm_of(node);
  return !gemm || context.prefers(*gemm);
}

}  // namespace

bool lift_casts(ir::Graph& graph, const PassContext& context) {
  if (!reads_f16(graph)) return false;
  bool changed = false;
  Rewriter out(graph);
  for (Node* node : out.before()) {
    const bool takes = takes_transposes(*node, context);
    for (std::size_t i = 0; takes && i < 2; ++i) {
      if (!reads_transposed_f16(node->inputs[i])) continue;
      const Value* half = half_behind(node->inputs[i]);
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

bool narrow_matmuls(ir::Graph& graph, const PassContext& context) {
  if (!context.has_kernel || !reads_f16(graph)) return false;
  const ir::Uses uses(graph);
  std::vector<const Node*> gone;
  bool changed = false;
  for (Node* node : graph.nodes) {
    if (!shapes_are_static(*node)) continue;
    if (is_of_images(*node) &&
        (narrow_all(*node, uses, context, true, gone) ||
         (reads_weight(*node) && narrow_all(*node, uses, context, false, gone)))) {
      changed = true;
      continue;
    }
    const bool is_narrowed = is_stream(*node) || is_of_images(*node) || is_attention(*node)
                                 ? narrow_inputs(*node, context)
                             : is_narrowable(*node) ? narrow_operands(*node, context)
                                                    : false;
    if (!is_narrowed) continue;
    changed = true;
    narrow_results(*node, uses, context, gone);
  }
  std::erase_if(graph.nodes,
                [&](const Node* node) { return std::ranges::find(gone, node) != gone.end(); });
  if (changed) {
    if (any_node(graph, is_of_images)) round_weights_again(graph);
    ir::eliminate_dead_nodes(graph);
  }
  return changed;
}

namespace {

/// A Cast for each element-wise reader, and one for all others that are not far from each other.
class CastSpreader {
 public:
  CastSpreader(ir::Graph& graph, const PassContext& context)
      : graph_(graph), context_(context), uses_(graph), out_(graph) {}

  bool run() {
    for (Node* node : out_.before()) {
      if (!is_cast_node(node)) ++position_;
      if (half_behind(node->output(0)) != nullptr) made_.emplace(node->outputs[0], position_);
      const opdef::OpDef* def = context_.ops.find(*node);
      const bool takes_casts = def != nullptr && def->expression != nullptr;
      for (Value*& input : node->inputs) {
        Value* const half = half_behind(input);
        if (half == nullptr && is_far_function(input)) {
          input = computed_again(input);
          continue;
        }
        if (half == nullptr || (uses_.count(input) < 2 && !is_far(input))) continue;
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

  // Whether an element-wise function of 16-bit values has been read long before: it is then
  // computed again instead of kept in float32.
  bool is_far_function(Value* value) {
    if (value == nullptr || uses_.count(value) < 2 || !is_function_of_f16(*value, 0)) {
      return false;
    }
    const auto [entry, is_first] = latest_.try_emplace(value, Latest{value, position_});
    const bool is_far = !is_first && position_ > entry->second.position + kNear;
    if (!is_far) entry->second.position = position_;
    return is_far;
  }

  bool is_function_of_f16(const Value& value, int depth) const {
    constexpr int kDeepest = 8;
    constexpr std::int64_t kFewest = 4096;
    const Node* node = value.producer;
    if (node == nullptr || depth > kDeepest || !node->domain.empty() ||
        value.dtype() != DataType::kFloat32 || ir::static_elements(value).value_or(0) < kFewest) {
      return false;
    }
    const opdef::OpDef* def = context_.ops.find(*node);
    if (def == nullptr || def->expression == nullptr || node->outputs.size() != 1) return false;
    bool has_f16 = false;
    for (const Value* input : node->inputs) {
      if (input == nullptr || input->is_constant()) continue;
      if (half_behind(input) == nullptr && !is_function_of_f16(*input, depth + 1)) return false;
      has_f16 = true;
    }
    return has_f16 && !is_cast_node(node);
  }

  // Computes the value again if the last copy is far above; nodes that follow read the new copy.
  Value* computed_again(Value* value) {
    Latest& latest = latest_.at(value);
    if (latest.wide == value || position_ > latest.position + kNear) {
      latest.wide = repeated(value);
      latest.position = position_;
    }
    return latest.wide;
  }

  Value* repeated(Value* value) {
    if (Value* const half = half_behind(value); half != nullptr) return add_cast(half, *value);
    const Node* node = value->producer;
    if (node == nullptr || value->is_constant()) return value;
    std::vector<Value*> inputs = node->inputs;
    for (Value*& input : inputs) {
      if (input != nullptr) input = repeated(input);
    }
    changed_ = true;
    return out_.emit(node->domain, node->op_type, std::move(inputs), value->type, node->attributes,
                     node->name);
  }

  bool is_far(const Value* wide) const { return position_ > made_.at(wide) + kNear; }

  // A near reader keeps the Cast that there is.
  Value* near_cast(Value* half, Value* wide) {
    Latest& latest = latest_.try_emplace(wide, Latest{wide, made_.at(wide)}).first->second;
    if (position_ > latest.position + kNear) latest.wide = add_cast(half, *wide);
    latest.position = position_;
    return latest.wide;
  }

  // A weight is rounded again instead of kept in 16 bits.
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
  std::unordered_map<const Value*, Latest> latest_;     // by the Cast that was shared
  std::unordered_map<const Value*, std::size_t> made_;  // positions of Casts
  std::size_t position_ = 0;
  bool changed_ = false;
};

}  // namespace

bool spread_casts(ir::Graph& graph, const PassContext& context) {
  return reads_f16(graph) && CastSpreader(graph, context).run();
}

}  // namespace onnxgrad::passes
