#include <algorithm>
#include <array>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ir/uses.h"
#include "passes/passes.h"
#include "passes/widen_f16.h"

// float16 and bfloat16 are storage types: a node that no kernel runs on them gets its operands
// through Casts to float32, computes in float32, and Casts round its results. Element-wise nodes,
// which convert as they load and store, take in the Casts next to them.

namespace onnxgrad::passes {
namespace {

ir::Type in_float32(ir::Type type) {
  type.dtype = DataType::kFloat32;
  return type;
}

// A converted constant uses memory for the life of the plan; a larger one is converted in each run.
constexpr std::int64_t kMaxConstant = std::int64_t{1} << 14;

// Attributes that name the type of an output.
void widen_attributes(ir::Node& node) {
  constexpr std::array<std::string_view, 3> kNames = {"dtype", "output_dtype", "output_datatype"};
  for (ir::Attribute& attribute : node.attributes) {
    if (std::ranges::find(kNames, attribute.name) == kNames.end()) continue;
    auto* dtype = std::get_if<std::int64_t>(&attribute.value);
    if (dtype == nullptr || !is_f16(static_cast<DataType>(*dtype))) continue;
    *dtype = static_cast<std::int64_t>(DataType::kFloat32);
  }
}

class Widener {
 public:
  Widener(ir::Graph& graph, const PassContext& context)
      : graph_(graph), context_(context), uses_(graph) {}

  bool run() {
    bool changed = false;
    for (ir::Node* node : std::exchange(graph_.nodes, {})) {
      const opdef::OpDef* def = context_.ops.find(*node);
      const bool is_own = def == nullptr || def->expression != nullptr || def->is_view();
      if (!touches_f16(*node) || is_own || context_.has_kernel(*node) || !widen(*node)) {
        graph_.nodes.push_back(node);
      } else {
        changed = true;
      }
    }
    if (changed) ir::eliminate_dead_nodes(graph_);
    return changed;
  }

 private:
  // Puts the node between Casts; false, changing nothing, if no kernel runs it in float32 either.
  bool widen(ir::Node& node) {
    {
      const WidenedNode in_float32(node, kMaxConstant);
      if (!context_.has_kernel(in_float32.node())) return false;
    }
    std::vector<ir::Node*> after;
    for (ir::Value*& input : node.inputs) {
      if (ir::holds_f16(input)) input = widened(input);
    }
    graph_.nodes.push_back(&node);
    for (std::size_t i = 0; i < node.outputs.size(); ++i) {
      ir::Value* half = node.outputs[i];
      if (!ir::holds_f16(half)) continue;
      ir::Value* wide = graph_.add_output(&node, i, in_float32(half->type), half->name + "_wide");
      after.push_back(make_cast(wide, half));
    }
    widen_attributes(node);
    for (ir::Node* cast : after) graph_.nodes.push_back(cast);
    return true;
  }

  ir::Node* make_cast(ir::Value* from, ir::Value* to) {
    ir::Node* cast = graph_.make_node("Cast", {from}, {to}, to->name + "_cast",
                                      {{"to", static_cast<std::int64_t>(to->dtype())}});
    opdef::complete_attributes(*cast, *context_.ops.find(*cast));
    return cast;
  }

  // Returns `half` in float32. A node that only moves elements runs in float32 if nothing else
  // reads it: a GEMM reads transposed operands in place.
  ir::Value* widened(ir::Value* half) {
    const auto [entry, is_new] = wide_.try_emplace(half, nullptr);
    if (!is_new) return entry->second;
    ir::Value* wide = nullptr;
    if (half->is_constant() && half->initializer.num_elements() <= kMaxConstant) {
      wide =
          graph_.add_initializer(half->name + "_wide", half->initializer.cast(DataType::kFloat32));
    } else if (const ir::Node* mover = movement(half)) {
      std::vector<ir::Value*> inputs = mover->inputs;
      inputs[0] = widened(inputs[0]);
      wide = append(*mover, std::move(inputs), half);
    } else {
      wide = add_wide(half);
      graph_.nodes.push_back(make_cast(half, wide));
    }
    wide_[half] = wide;
    return wide;
  }

  const ir::Node* movement(const ir::Value* half) const {
    const ir::Node* node = half->producer;
    if (node == nullptr || node->outputs.size() != 1 || uses_.count(half) != 1) return nullptr;
    const opdef::OpDef* def = context_.ops.find(*node);
    const bool is_movement = def != nullptr && def->expression == nullptr &&
                             (def->is_view() || def->passage == opdef::Passage::kPermuted);
    return is_movement && ir::holds_f16(node->inputs[0]) ? node : nullptr;
  }

  ir::Value* add_wide(const ir::Value* half) {
    return graph_.add_value(graph_.names().unique(half->name + "_wide"), in_float32(half->type));
  }

  ir::Value* append(const ir::Node& like, std::vector<ir::Value*> inputs, const ir::Value* half) {
    ir::Value* wide = add_wide(half);
    graph_.nodes.push_back(graph_.make_node(like.op_type, std::move(inputs), {wide}, like.name,
                                            like.attributes, like.domain));
    return wide;
  }

  ir::Graph& graph_;
  const PassContext& context_;
  ir::Uses uses_;
  std::unordered_map<const ir::Value*, ir::Value*> wide_;
};

}  // namespace

bool touches_f16(const ir::Node& node) {
  return std::ranges::any_of(node.inputs, ir::holds_f16) ||
         std::ranges::any_of(node.outputs, ir::holds_f16);
}

WidenedNode::WidenedNode(const ir::Node& node, std::int64_t max_constant) : node_(node) {
  values_.reserve(node_.inputs.size() + node_.outputs.size());
  for (auto* list : {&node_.inputs, &node_.outputs}) {
    for (ir::Value*& value : *list) {
      if (!ir::holds_f16(value)) continue;
      ir::Value& wide = values_.emplace_back();
      wide.name = value->name;
      wide.type = in_float32(value->type);
      wide.graph = value->graph;
      if (value->is_constant() && value->initializer.num_elements() <= max_constant) {
        wide.initializer = value->initializer.cast(DataType::kFloat32);
      }
      value = &wide;
    }
  }
  widen_attributes(node_);
}

bool widen_f16(ir::Graph& graph, const PassContext& context) {
  if (!context.has_kernel ||
      std::ranges::none_of(graph.nodes, [](const ir::Node* n) { return touches_f16(*n); })) {
    return false;
  }
  return Widener(graph, context).run();
}

}  // namespace onnxgrad::passes
