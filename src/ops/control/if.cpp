#include <memory>
#include <string>
#include <unordered_map>

#include "opdef/registry.h"
#include "ops/rules.h"

// If: y = condition ? then_branch : else_branch. The gradient is an If over the same condition
// whose branches compute the branch again and differentiate it with respect to the values that
// either branch captures.

namespace onnxgrad::ops {
namespace {

using opdef::VjpContext;

// What the gradient of both branches has in common.
struct Wanted {
  std::vector<Value*> captured;      // values of enclosing graphs that need a gradient
  std::vector<std::size_t> outputs;  // outputs of the If that something flows back from
  std::vector<Value*> cotangents;    // theirs
};

// A branch that gives zeros for wanted.captured: that of one which is never taken.
ir::GraphPtr make_zeros_branch(GraphBuilder& g, const std::string& name, const Wanted& wanted) {
  auto branch = std::make_shared<ir::Graph>(g.graph().names_ptr(), &g.graph());
  branch->name = name;
  GraphBuilder inner(g.model(), *branch, g.inferer(), g.functions());
  for (Value* value : wanted.captured) {
    branch->outputs.push_back(inner.identity(inner.zeros_like(value)));
  }
  return branch;
}

// False for a branch whose shapes do not fit, which is not an error as long as it is not taken.
bool fits(const ir::Graph& branch, const ir::TypeInferer& inferer) {
  try {
    for (Node* node : branch.nodes) inferer.infer(*node);
  } catch (const ShapeError&) {
    return false;
  }
  return true;
}

// A branch that gives the gradients of wanted.captured, each computed inside of it.
ir::GraphPtr differentiate_branch(VjpContext& ctx, GraphBuilder& g, const ir::Graph& primal,
                                  const Wanted& wanted) {
  auto branch = std::make_shared<ir::Graph>(g.graph().names_ptr(), &g.graph());
  branch->name = g.graph().names().unique(primal.name + "_grad");
  std::unordered_map<const Value*, Value*> map;
  ir::append_nodes(primal, *branch, map);
  if (!fits(*branch, g.inferer())) return make_zeros_branch(g, branch->name, wanted);
  ctx.repeat_draws(map);
  GraphBuilder inner(g.model(), *branch, g.inferer(), g.functions());
  std::vector<Value*> results;
  for (const std::size_t i : wanted.outputs) {
    Value* output = primal.outputs.at(i);
    const auto copy = map.find(output);
    results.push_back(copy == map.end() ? output : copy->second);
  }
  for (Value* gradient : ctx.differentiate(inner, results, wanted.cotangents, wanted.captured)) {
    // A branch returns only what it computes itself.
    const bool is_own = gradient->graph == branch.get() && gradient->producer != nullptr;
    branch->outputs.push_back(is_own ? gradient : inner.identity(gradient));
  }
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
  std::vector<ir::Attribute> branches;
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
      node.find_attribute(inputs[0].data<bool>()[0] ? "then_branch" : "else_branch");
  const auto* body = branch == nullptr ? nullptr : std::get_if<ir::GraphPtr>(branch);
  return body == nullptr ? nullptr : body->get();
}

}  // namespace

void register_if(opdef::OpRegistry& registry) {
  registry.add(
      {.op_type = "If",
       .since_version = 25,
       .attributes =
           {{.name = "then_branch", .type = opdef::AttributeType::kGraph, .required = true},
            {.name = "else_branch", .type = opdef::AttributeType::kGraph, .required = true}},
       .vjp = if_vjp,
       .taken_body = taken_branch,
       .is_dynamic = true});
}

}  // namespace onnxgrad::ops
