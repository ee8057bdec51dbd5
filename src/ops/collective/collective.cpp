#include <fmt/format.h>

#include "ir/kept_nodes.h"
#include "opdef/collectives.h"
#include "opdef/function_body.h"
#include "opdef/registry.h"
#include "ops/rules.h"

// AllReduce, ReduceScatter, AllGather: communication between the workers of a training; see
// opdef/collectives.h. The function bodies are the result for a single worker. The loss is the sum
// of the workers' losses, so a gradient is the sum of the workers' gradients.

namespace onnxgrad::ops::collective_op {

using opdef::Collective;

namespace {

using Range = Collective::Range;

// Returns the results of one worker: each x for AllReduce, its owned range of each x for
// ReduceScatter.
std::vector<Value*> own_values(FunctionBody& f, const Collective& spec, std::size_t count) {
  const auto ranges = spec.own_ranges();
  std::vector<Value*> results;
  for (std::size_t i = 0; i < count; ++i) {
    Value* x = f.input(fmt::format("x{}", i));
    if (ranges.empty() || ranges[i].count() == spec.sizes[i]) {
      results.push_back(f.identity(x));
    } else {
      Value* flat = f.reshape(x, std::vector<std::int64_t>{-1});
      results.push_back(f.slice(flat, {ranges[i].begin}, {ranges[i].end}, {0}));
    }
  }
  return results;
}

// Returns each w with this worker's range replaced by its `part`.
std::vector<Value*> joined_values(FunctionBody& f, const Collective& spec) {
  const auto ranges = spec.own_ranges();
  std::vector<Value*> whole;
  for (std::size_t i = 0; i < ranges.size(); ++i) whole.push_back(f.input(fmt::format("w{}", i)));
  std::vector<Value*> results;
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    if (ranges[i].count() == 0) {
      results.push_back(f.identity(whole[i]));
      continue;
    }
    Value* part = f.input(fmt::format("part{}", i));
    if (ranges[i].count() == spec.sizes[i]) {
      results.push_back(f.identity(part));
      continue;
    }
    Value* flat = f.reshape(whole[i], std::vector<std::int64_t>{-1});
    Value* joined = f.concat({f.slice(flat, {0}, {ranges[i].begin}, {0}), part,
                              f.slice(flat, {ranges[i].end}, {spec.sizes[i]}, {0})},
                             0);
    results.push_back(f.reshape(joined, f.shape_of(whole[i])));
  }
  return results;
}

ir::Function collective_body(std::string_view base_name, const std::vector<Value*>& inputs,
                             const std::vector<Attribute>& attributes) {
  Node node;
  node.attributes = attributes;
  const Collective spec = Collective::read(node);
  const std::size_t first = spec.is_conditional ? 1 : 0;
  const std::size_t count = inputs.size() - first;
  std::string key = fmt::format("{}{}", first == 0 ? "n" : "conditional_n", count);
  if (!spec.sizes.empty()) {
    std::vector<std::int64_t> ranges;
    for (const Range& range : spec.own_ranges()) {
      ranges.push_back(range.begin);
      ranges.push_back(range.end);
    }
    key += fmt::format("_of{}_own{}", opdef::key_of(spec.sizes), opdef::key_of(ranges));
  }
  FunctionBody f(base_name, key, attributes);
  if (first == 1) f.input("when");
  const bool joins = !spec.sizes.empty() && base_name == opdef::kCollectives[2];
  return std::move(f).finish(joins ? joined_values(f, spec) : own_values(f, spec, count));
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

AttributeSpec numbers_attribute(std::string_view name) {
  return {.name = name,
          .type = AttributeType::kInts,
          .min = 0,
          .default_value = std::vector<std::int64_t>{}};
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
                                    {.name = "rank", .min = 0, .default_value = std::int64_t{0}},
                                    numbers_attribute("sizes"),
                                    numbers_attribute("bounds")},
                     .function_body = collective_body,
                     // The value depends on other workers: the node is neither folded nor merged
                     // with another.
                     .is_random = true};
    if (is_sum) def.differentiable_inputs = {0, -1};
    if (is_sum) def.vjp = all_reduce_vjp;
    registry.add(std::move(def));
  }
}

}  // namespace onnxgrad::ops::collective_op
