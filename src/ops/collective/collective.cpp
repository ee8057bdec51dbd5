#include <fmt/format.h>

#include "ir/kept_nodes.h"
#include "opdef/collectives.h"
#include "opdef/function_body.h"
#include "opdef/registry.h"
#include "ops/rules.h"

// AllReduce, ReduceScatter, AllGather: what the workers of a training exchange; see
// opdef/collectives.h. For one worker the results are the inputs. The loss is the sum of what each
// worker computes of it, so a gradient is the sum of the workers' gradients.

namespace onnxgrad::ops::collective_op {

using opdef::Collective;
using opdef::FunctionBody;
using opdef::VjpContext;

namespace {

ir::Function collective_body(std::string_view base_name, const std::vector<Value*>& inputs,
                             const std::vector<ir::Attribute>& attributes) {
  ir::Node node;
  node.attributes = attributes;
  const std::size_t first = Collective::read(node).is_conditional ? 1 : 0;
  FunctionBody f(base_name,
                 fmt::format("{}{}", first == 0 ? "n" : "conditional_n", inputs.size() - first),
                 attributes);
  if (first == 1) f.input("when");
  std::vector<Value*> results;
  for (std::size_t i = first; i < inputs.size(); ++i) {
    results.push_back(f.identity(f.input(fmt::format("x{}", i - first))));
  }
  return std::move(f).finish(std::move(results));
}

// dx = AllReduce(dy).
std::vector<Value*> all_reduce_vjp(VjpContext& ctx, GraphBuilder& g) {
  const Collective sum = Collective::read(ctx.node());
  const std::size_t first = sum.is_conditional ? 1 : 0;
  std::vector<std::size_t> wanted;
  std::vector<Value*> dy;
  for (std::size_t i = first; i < ctx.num_inputs(); ++i) {
    if (!ctx.needs(i) || ctx.cotangent(i - first) == nullptr) continue;
    wanted.push_back(i);
    dy.push_back(ctx.cotangent(i - first));
  }
  std::vector<Value*> grads(ctx.num_inputs(), nullptr);
  if (dy.empty()) return grads;
  if (first == 1) dy.insert(dy.begin(), ctx.input(0));
  const auto sums = g.call(sum.op_type(), dy, wanted.size(), sum.attributes());
  for (std::size_t k = 0; k < wanted.size(); ++k) grads[wanted[k]] = sums[k];
  return grads;
}

}  // namespace

void register_collective(opdef::OpRegistry& registry) {
  for (const std::string_view op_type : opdef::kCollectives) {
    const bool is_sum = op_type == Collective{}.op_type();
    opdef::OpDef def{.domain = ir::kFunctionDomain,
                     .op_type = op_type,
                     .attributes = {{.name = "number", .min = 0, .default_value = std::int64_t{0}},
                                    flag_attribute("conditional", false),
                                    flag_attribute(ir::kForOthers, false),
                                    flag_attribute("bfloat16", false),
                                    {.name = "workers", .min = 1, .default_value = std::int64_t{1}},
                                    {.name = "owners",
                                     .type = opdef::AttributeType::kInts,
                                     .min = 0,
                                     .default_value = std::vector<std::int64_t>{}}},
                     .function_body = collective_body,
                     // Its value comes from elsewhere: it is neither folded nor merged.
                     .is_random = true};
    if (is_sum) def.differentiable_inputs = {0, -1};
    if (is_sum) def.vjp = all_reduce_vjp;
    registry.add(std::move(def));
  }
}

}  // namespace onnxgrad::ops::collective_op
