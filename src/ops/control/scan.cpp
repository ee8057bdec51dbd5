#include <algorithm>
#include <numeric>
#include <optional>
#include <vector>

#include "opdef/registry.h"
#include "ops/control/iteration.h"
#include "ops/rules.h"

// Scan: runs a body for each row of its scanned inputs; states are carried from row to row, other
// results are stacked. Operands that are scanned or stacked along another axis than the first are
// transposed, so that rows are contiguous; kernels and the gradient see axis 0 only. The gradient
// is a Scan in the opposite direction: see iteration.h.

namespace onnxgrad::ops::scan_op {
namespace {

ir::GraphPtr body_of(const Node& node) {
  return std::get<ir::GraphPtr>(*node.find_attribute("body"));
}

std::size_t count_states(const Node& node) {
  return node.inputs.size() - static_cast<std::size_t>(node.int_attribute("num_scan_inputs"));
}

bool has_other(const std::vector<std::int64_t>& axes) {
  return std::ranges::any_of(axes, [](std::int64_t axis) { return axis != 0; });
}

// Moves axis `axis` to the front, or the first axis to position `axis`.
Value* move_axis(GraphBuilder& g, Value* x, std::int64_t axis, std::size_t rank, bool to_front) {
  const auto at = normalize_axis(axis, rank);
  if (at == 0) return x;
  std::vector<std::int64_t> perm(rank);
  std::iota(perm.begin(), perm.end(), 0);
  if (to_front) {
    std::rotate(perm.begin(), perm.begin() + at, perm.begin() + at + 1);
  } else {
    std::rotate(perm.begin(), perm.begin() + 1, perm.begin() + at + 1);
  }
  return g.transpose(x, perm);
}

std::optional<std::vector<Value*>> lower_scan(const Node& node, GraphBuilder& g) {
  const std::vector<std::int64_t> input_axes = node.ints_attribute("scan_input_axes");
  const std::vector<std::int64_t> output_axes = node.ints_attribute("scan_output_axes");
  if (!has_other(input_axes) && !has_other(output_axes)) return std::nullopt;
  if (node.int_attribute("num_scan_inputs") > std::ssize(node.inputs)) return std::nullopt;
  const std::size_t states = count_states(node);
  const auto fits = [states](const std::vector<std::int64_t>& axes, std::size_t count) {
    return axes.empty() || axes.size() + states == count;
  };
  if (!fits(input_axes, node.inputs.size()) || !fits(output_axes, node.outputs.size())) {
    return std::nullopt;  // type inference reports it
  }
  const ir::GraphPtr body = body_of(node);
  std::vector<Value*> inputs = node.inputs;
  for (std::size_t i = 0; i < input_axes.size(); ++i) {
    const auto rank = known_rank(inputs.at(states + i));
    if (!rank) return std::nullopt;
    inputs[states + i] = move_axis(g, inputs[states + i], input_axes[i], *rank, /*to_front=*/true);
  }
  for (std::size_t i = 0; i < output_axes.size(); ++i) {
    if (output_axes[i] != 0 && !known_rank(body->outputs.at(states + i))) return std::nullopt;
  }
  std::vector<Attribute> attributes;
  for (const Attribute& attribute : node.attributes) {
    if (attribute.name != "scan_input_axes" && attribute.name != "scan_output_axes") {
      attributes.push_back(attribute);
    }
  }
  std::vector<Value*> results =
      g.ops("Scan", std::move(inputs), node.outputs.size(), std::move(attributes));
  for (std::size_t i = 0; i < output_axes.size(); ++i) {
    if (output_axes[i] == 0) continue;
    const std::size_t rank = body->outputs[states + i]->type.rank() + 1;
    results[states + i] =
        move_axis(g, results[states + i], output_axes[i], rank, /*to_front=*/false);
  }
  return results;
}

std::vector<bool> directions_of(const Node& node, const char* attribute, std::size_t count) {
  const std::vector<std::int64_t> list = node.ints_attribute(attribute);
  std::vector<bool> backward(count, false);
  for (std::size_t i = 0; i < std::min(count, list.size()); ++i) backward[i] = list[i] == 1;
  return backward;
}

std::vector<Value*> scan_vjp(VjpContext& ctx, GraphBuilder& g) {
  const Node& node = ctx.node();
  if (has_other(node.ints_attribute("scan_input_axes")) ||
      has_other(node.ints_attribute("scan_output_axes"))) {
    throw GradientError({.what = "the rank of a scanned input is unknown before the model runs",
                         .where = {.node = node.name, .op_type = node.op_type},
                         .hint = "Give the scanned values shapes; dimensions may be symbols."});
  }
  const ir::GraphPtr body = body_of(node);
  const std::size_t states = count_states(node);
  IterationRoles roles{.body = body.get(), .num_states = states};
  roles.scans_backward = directions_of(node, "scan_input_directions", node.inputs.size() - states);
  roles.stacks_backward =
      directions_of(node, "scan_output_directions", node.outputs.size() - states);
  if (const Value* first = node.input(states); first->type.has_rank()) {
    roles.length = first->type.shape->front();
  }
  return iteration_vjp(ctx, g, roles);
}

}  // namespace

void register_scan(opdef::OpRegistry& registry) {
  const auto list = [](std::string_view name, std::int64_t min, std::int64_t max) {
    return AttributeSpec{.name = name, .type = AttributeType::kInts, .min = min, .max = max};
  };
  constexpr auto kMaxRank = static_cast<std::int64_t>(Dims::kMaxRank);
  registry.add({.op_type = "Scan",
                .since_version = 25,
                .differentiable_inputs = {0, -1},
                .attributes = {{.name = "body", .type = AttributeType::kGraph, .required = true},
                               {.name = "num_scan_inputs", .required = true, .min = 1},
                               list("scan_input_directions", 0, 1),
                               list("scan_output_directions", 0, 1),
                               list("scan_input_axes", -kMaxRank, kMaxRank),
                               list("scan_output_axes", -kMaxRank, kMaxRank)},
                .vjp = scan_vjp,
                .lower = lower_scan});
}

}  // namespace onnxgrad::ops::scan_op
