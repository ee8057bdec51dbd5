#include <algorithm>
#include <vector>

#include "opdef/gradient_type.h"
#include "opdef/registry.h"
#include "ops/control/outer_shape.h"
#include "ops/rules.h"

// If: y = condition ? then_branch : else_branch. The gradient is an If over the same condition
// whose branches differentiate the branch with respect to the values that either branch captures.
// Values that the gradient reads and that are expensive to compute become outputs of the first If;
// element-wise operations are recomputed, which takes less time than keeping a tensor and making
// the other branch return one in its place.

namespace onnxgrad::ops::if_op {
namespace {

// Operands of the gradient, shared by both branches.
struct Wanted {
  std::vector<Value*> captured;      // values of enclosing graphs that need a gradient
  std::vector<std::size_t> outputs;  // outputs of the If with a cotangent
  std::vector<Value*> cotangents;    // cotangents of these outputs
};

// Returns false for a branch with inconsistent shapes, which is an error only if it is taken.
bool fits(const ir::Graph& branch, const ir::TypeInferer& inferer) {
  try {
    for (Node* node : branch.nodes) inferer.infer(*node);
  } catch (const ShapeError&) {
    return false;
  }
  return true;
}

// Saves `value`, computed in branch `own`, as a new output of the If, for which the other branch
// returns zeros. Returns its replacement in `gradient`, the gradient of the branch; nullptr: none.
Value* save(VjpContext& ctx, GraphBuilder& gradient, ir::Graph& own, Value* value) {
  const Node& node = ctx.node();
  const std::vector<Value*> captured = ir::captured_values(node);
  const Node& producer = *value->producer;
  if (producer.op_type == "Shape" && producer.domain.empty()) {
    if (Value* shape = find_shape(gradient, producer, captured)) return shape;
  }
  const auto known = std::ranges::find(own.outputs, value);
  if (known != own.outputs.end()) {
    if (Value* output = node.output(static_cast<std::size_t>(known - own.outputs.begin()))) {
      return output;
    }
  }
  if (!value->type.is_tensor() || value->dtype() == DataType::kString) return nullptr;
  for (ir::Graph* branch : node.subgraphs()) {
    if (branch == &own) continue;
    GraphBuilder other(gradient.inside(*branch));
    Value* shape = find_shape(other, value->type, captured);
    if (shape == nullptr) return nullptr;
    Value* zero = other.constant(Tensor::zeros(value->dtype(), Dims{}), "zero");
    branch->outputs.push_back(other.expand(zero, shape));
  }
  own.outputs.push_back(value);
  return ctx.add_output(value->type, value->name + "_saved");
}

// Builds a branch that returns the gradients of wanted.captured. A branch that is never taken
// returns zeros.
ir::GraphPtr differentiate_branch(VjpContext& ctx, GraphBuilder& g, ir::Graph& primal,
                                  const Wanted& wanted) {
  const bool can_be_taken = fits(primal, g.inferer());
  ir::GraphPtr branch =
      g.subgraph(g.graph().names().unique(primal.name + "_grad"), [&](GraphBuilder& inner) {
        std::vector<Value*> results;
        for (const std::size_t i : wanted.outputs) results.push_back(primal.outputs.at(i));
        if (can_be_taken) {
          return ctx.differentiate(inner, primal, results, wanted.cotangents, wanted.captured);
        }
        results.clear();
        for (Value* value : wanted.captured) results.push_back(opdef::zero_gradient(inner, value));
        return results;
      });
  GraphBuilder inner = g.inside(*branch);
  ctx.carry(inner, primal, [&](Value* value) { return save(ctx, inner, primal, value); });
  return branch;
}

// dc = condition ? sum_j dy_j d(then_j)/dc : sum_j dy_j d(else_j)/dc for each captured c.
std::vector<Value*> if_vjp(VjpContext& ctx, GraphBuilder& g) {
  const Node& node = ctx.node();
  const std::vector<Value*> captured = ir::captured_values(node);
  std::vector<Value*> gradients(1 + captured.size(), nullptr);
  Wanted wanted;
  for (std::size_t i = 0; i < captured.size(); ++i) {
    if (ctx.needs(1 + i)) wanted.captured.push_back(captured[i]);
  }
  for (std::size_t i = 0; i < node.outputs.size(); ++i) {
    if (ctx.cotangent(i) == nullptr) continue;
    wanted.outputs.push_back(i);
    wanted.cotangents.push_back(ctx.cotangent(i));
  }
  if (wanted.captured.empty()) return gradients;
  std::vector<Attribute> branches;
  for (const char* name : {"then_branch", "else_branch"}) {
    const auto& primal = std::get<ir::GraphPtr>(*node.find_attribute(name));
    branches.push_back({name, differentiate_branch(ctx, g, *primal, wanted)});
  }
  const std::vector<Value*> results =
      g.ops("If", {ctx.input(0)}, wanted.captured.size(), std::move(branches));
  std::size_t next = 0;
  for (std::size_t i = 0; i < captured.size(); ++i) {
    if (ctx.needs(1 + i)) gradients[1 + i] = results[next++];
  }
  return gradients;
}

const ir::Graph* taken_branch(const Node& node, std::span<const Tensor> inputs) {
  if (inputs.size() != 1 || inputs[0].dtype() != DataType::kBool || inputs[0].num_elements() != 1) {
    return nullptr;
  }
  const ir::AttributeValue* branch =
      node.find_attribute(inputs[0].raw()[0] != std::byte{0} ? "then_branch" : "else_branch");
  const auto* body = branch == nullptr ? nullptr : std::get_if<ir::GraphPtr>(branch);
  return body == nullptr ? nullptr : body->get();
}

}  // namespace

void register_if(opdef::OpRegistry& registry) {
  registry.add(
      {.op_type = "If",
       .since_version = 25,
       .attributes = {{.name = "then_branch", .type = AttributeType::kGraph, .required = true},
                      {.name = "else_branch", .type = AttributeType::kGraph, .required = true}},
       .vjp = if_vjp,
       .taken_body = taken_branch});
}

}  // namespace onnxgrad::ops::if_op
