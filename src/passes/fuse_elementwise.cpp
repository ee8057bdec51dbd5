#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/check.h"
#include "ir/uses.h"
#include "opdef/fused.h"
#include "passes/candidate.h"
#include "passes/elementwise_groups.h"
#include "passes/passes.h"

// Turns groups of element-wise nodes into onnxgrad.fused.Elementwise nodes. Looks through Expand:
// an operand is broadcast by the kernel itself.

namespace onnxgrad::passes {
namespace {

using opdef::ExprProgram;

// The common value of all elements of a constant, if there is one that double represents
// exactly.
std::optional<double> uniform_constant(const ir::Value* value) {
  if (!value->is_constant() || value->initializer.num_elements() == 0) return std::nullopt;
  const Tensor& tensor = value->initializer;
  const auto bytes = static_cast<std::size_t>(size_bits(tensor.dtype()) / 8);
  const auto count = static_cast<std::size_t>(tensor.num_elements());
  for (std::size_t i = 1; i < count; ++i) {
    if (std::memcmp(tensor.raw(), tensor.raw() + i * bytes, bytes) != 0) return std::nullopt;
  }
  const Tensor first =
      Tensor::view(tensor.dtype(), Dims{}, const_cast<std::byte*>(tensor.raw()), nullptr);
  if (is_integer(tensor.dtype())) {
    constexpr std::int64_t kExact = std::int64_t{1} << 53;
    const std::int64_t number = first.to_int64s().front();
    if (number > kExact || number < -kExact) return std::nullopt;
  }
  return first.to_doubles().front();
}

// The straight-line program of some nodes and the values that it reads.
class ProgramBuilder {
 public:
  explicit ProgramBuilder(const opdef::OpRegistry& registry) : registry_(registry) {}

  // Makes `value` available without a separate operand.
  void define(const ir::Value* value, std::int32_t instruction) { known_[value] = instruction; }

  std::int32_t add_operand() { return program_.input(program_.num_inputs++); }

  std::int32_t read(ir::Value* value) {
    const auto [entry, is_new] = known_.try_emplace(value, 0);
    if (!is_new) return entry->second;
    if (const auto number = uniform_constant(value)) {
      entry->second = program_.constant(*number);
    } else {
      operands_.push_back(value);
      entry->second = add_operand();
    }
    return entry->second;
  }

  // `is_read`: by other instructions, so that a float16 or bfloat16 must be rounded here, not only
  // where it is stored.
  void add_node(const ir::Node& node, bool is_read) {
    std::vector<std::int32_t> operands;
    for (ir::Value* input : node.inputs) operands.push_back(input == nullptr ? -1 : read(input));
    std::int32_t result = registry_.find(node)->expression(node, operands, program_);
    const DataType dtype = node.outputs[0]->dtype();
    if (is_read && is_f16(dtype) && !is_rounded(result, dtype, kMaxDepth)) {
      result = program_.emit(rounding(dtype), result);
    }
    known_[node.outputs[0]] = result;
  }

  std::int32_t emit(opdef::ExprOp op, std::int32_t a, std::int32_t b) {
    return program_.emit(op, a, b);
  }
  std::int32_t constant(double value) { return program_.constant(value); }
  void add_result(const ir::Value* value) { program_.results.push_back(known_.at(value)); }
  ExprProgram& program() { return program_; }
  std::vector<ir::Value*>& operands() { return operands_; }

 private:
  static constexpr int kMaxDepth = 4;  // depth of instructions that only choose or change signs

  static opdef::ExprOp rounding(DataType half) {
    return half == DataType::kFloat16 ? opdef::ExprOp::kToFloat16 : opdef::ExprOp::kToBfloat16;
  }

  // True if an instruction yields numbers of the type `half` only.
  bool is_rounded(std::int32_t i, DataType half, int depth) const {
    using opdef::ExprOp;
    if (depth == 0) return false;
    const opdef::ExprInstruction& in = program_.instructions[static_cast<std::size_t>(i)];
    const auto is = [&](std::int32_t operand) { return is_rounded(operand, half, depth - 1); };
    switch (in.op) {
      case ExprOp::kInput:
        return static_cast<std::size_t>(in.a) < operands_.size() &&
               operands_[static_cast<std::size_t>(in.a)]->dtype() == half;
      case ExprOp::kConstant:
        return Tensor::scalar_of(half, in.constant).to_doubles().front() == in.constant;
      case ExprOp::kNeg:
      case ExprOp::kAbs:
      case ExprOp::kSign:
      case ExprOp::kRelu:
      case ExprOp::kFloor:
      case ExprOp::kCeil:
      case ExprOp::kRound:
        return is(in.a);
      case ExprOp::kMin:
      case ExprOp::kMax:
        return is(in.a) && is(in.b);
      case ExprOp::kSelect:
        return is(in.b) && is(in.c);
      default:
        return in.op == rounding(half);
    }
  }

  const opdef::OpRegistry& registry_;
  ExprProgram program_;
  std::unordered_map<const ir::Value*, std::int32_t> known_;
  std::vector<ir::Value*> operands_;
};

// Operands that are Expands of something smaller, if the others still span the whole space.
void look_through_expands(std::vector<ir::Value*>& operands, const Dims& space) {
  for (ir::Value*& operand : operands) {
    const ir::Node* node = operand->producer;
    if (node == nullptr || node->op_type != "Expand" || !node->domain.empty()) continue;
    ir::Value* source = node->inputs[0];
    if (!source->type.static_dims() || source->type.rank() > space.rank()) continue;
    Dims spanned = source->type.fixed_dims();
    for (const ir::Value* other : operands) {
      if (other != operand) spanned = broadcast_dims(spanned, other->type.fixed_dims());
    }
    if (spanned == space) operand = source;
  }
}

class Emitter {
 public:
  Emitter(ir::Graph& graph, const PassContext& context)
      : graph_(graph), context_(context), uses_(graph) {}

  /// Makes the node of a group; nullptr if the device does not prefer it, and the CPU does not run
  /// it instead.
  ir::Node* emit(const ElementwiseGroup& group) {
    ir::Node made = node_of(group);
    const bool is_single = group.size() == 1;
    if (!context_.prefers(made) && !(is_single && context_.is_left_to_cpu(made))) return nullptr;
    return graph_.make_node(made.op_type, std::move(made.inputs), made.outputs, made.name,
                            std::move(made.attributes), made.domain);
  }

 private:
  ir::Node node_of(const ElementwiseGroup& group) {
    ProgramBuilder main(context_.ops);
    for (const ir::Node* node : group.main) main.add_node(*node, is_read_inside(*node, group));
    std::vector<ir::Value*> outputs;
    for (const ir::Node* node : group.main) {
      if (is_read_outside(node->outputs[0], group)) outputs.push_back(node->outputs[0]);
    }
    for (const ir::Value* output : outputs) main.add_result(output);
    opdef::Elementwise fused{.compute = group.compute, .stored = std::ssize(outputs)};

    // Reduced values: the input of each reduction, then what follows.
    ProgramBuilder post(context_.ops);
    bool has_post = !group.post.empty();
    for (const ir::Node* node : group.reductions) {
      const Reduction reduction = *match_reduction(*node);
      main.read(node->inputs[0]);
      main.add_result(node->inputs[0]);
      fused.folds.push_back(reduction.fold);
      std::int32_t result = post.add_operand();
      if (reduction.factor != 1) {
        result = post.emit(opdef::ExprOp::kMul, result, post.constant(reduction.factor));
        has_post = true;
      }
      post.define(node->outputs[0], result);
    }
    for (const ir::Node* node : group.post) post.add_node(*node, is_read_inside(*node, group));
    for (const auto* list : {&group.reductions, &group.post}) {
      for (const ir::Node* node : *list) {
        ir::Value* output = node->outputs[0];
        // Without a post program every reduced result is an output.
        if (!has_post || is_read_outside(output, group)) {
          outputs.push_back(output);
          post.add_result(output);
        }
      }
    }
    ensure_spanning_operand(main, group);
    look_through_expands(main.operands(), group.space);
    fused.program = main.program();
    if (!group.reductions.empty()) {
      fused.reduce_axes = group.reduce_axes;
      if (has_post) fused.post = post.program();
    }
    fused.flush_denormals = updates_slots(outputs);
    std::vector<ir::Value*> inputs = main.operands();
    inputs.insert(inputs.end(), post.operands().begin(), post.operands().end());
    return candidate(opdef::kElementwise, std::move(inputs), std::move(outputs), fused.attributes(),
                     name_of(group));
  }

  // Slots of an optimizer: averages of gradients, which decay to denormal numbers where the
  // gradient has become zero. A weight, from which a step is subtracted, does not.
  bool updates_slots(const std::vector<ir::Value*>& outputs) const {
    return std::ranges::any_of(outputs, [this](const ir::Value* output) {
      return context_.next_states.contains(output) && output->producer->op_type != "Sub";
    });
  }

  static std::int64_t count_inside(const ir::Value* value, const ElementwiseGroup& group) {
    std::int64_t inside = 0;
    group.for_each(
        [&](const ir::Node* node, Role) { inside += std::ranges::count(node->inputs, value); });
    return inside;
  }

  // True for a 16-bit value that a member of the group reads.
  static bool is_read_inside(const ir::Node& node, const ElementwiseGroup& group) {
    return is_f16(node.outputs[0]->dtype()) && count_inside(node.outputs[0], group) > 0;
  }

  bool is_read_outside(const ir::Value* value, const ElementwiseGroup& group) const {
    return static_cast<std::int64_t>(uses_.count(value)) > count_inside(value, group);
  }

  // The kernel derives its space from the operands: constants alone do not span it.
  void ensure_spanning_operand(ProgramBuilder& main, const ElementwiseGroup& group) {
    Dims spanned;
    for (const ir::Value* operand : main.operands()) {
      spanned = broadcast_dims(spanned, operand->type.fixed_dims());
    }
    if (spanned == group.space) return;
    main.operands().push_back(
        graph_.add_initializer("space", Tensor::zeros(DataType::kBool, group.space)));
    main.add_operand();
  }

  static std::string name_of(const ElementwiseGroup& group) {
    const ir::Node* last = !group.post.empty()         ? group.post.back()
                           : !group.reductions.empty() ? group.reductions.back()
                                                       : group.main.back();
    return last->name + (group.size() > 1 ? "_fused" : "");
  }

  ir::Graph& graph_;
  const PassContext& context_;
  ir::Uses uses_;
};

}  // namespace

bool fuse_elementwise(ir::Graph& graph, const PassContext& context, bool merge) {
  std::vector<ElementwiseGroup> groups = group_elementwise(graph, context.ops, merge);
  if (groups.empty()) return false;
  Emitter emitter(graph, context);
  std::unordered_map<const ir::Node*, ir::Node*> last_of;  // node after which each fused node goes
  std::unordered_set<const ir::Node*> members;
  const auto emit = [&](const ElementwiseGroup& group) {
    ir::Node* fused = emitter.emit(group);
    if (fused == nullptr) return false;
    const ir::Node* anchor = nullptr;
    group.for_each([&](const ir::Node* node, Role) {
      members.insert(node);
      anchor = node;
    });
    last_of.emplace(anchor, fused);
    return true;
  };
  for (const ElementwiseGroup& group : groups) {
    if (emit(group) || group.size() == 1) continue;
    for (const ElementwiseGroup& single : group.singles()) emit(single);
  }
  if (last_of.empty()) return false;
  std::vector<ir::Node*> nodes;
  for (ir::Node* node : graph.nodes) {
    if (const auto found = last_of.find(node); found != last_of.end())
      nodes.push_back(found->second);
    if (!members.contains(node)) nodes.push_back(node);
  }
  graph.nodes = std::move(nodes);
  const bool is_acyclic = ir::try_sort_topologically(graph);
  ONNXGRAD_ASSERT(is_acyclic);
  ir::eliminate_dead_nodes(graph);
  return true;
}

}  // namespace onnxgrad::passes
