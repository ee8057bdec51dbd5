#include <algorithm>
#include <optional>

#include "base/check.h"
#include "opdef/registry.h"
#include "ops/rules.h"

// Slice: y = x[starts:ends:steps] along axes, with negative numbers counted from the end and
// everything out of range clamped.

namespace onnxgrad::ops::slice_op {
namespace {

// Axes cut by a slice of step 1, with their starts; nullopt if something is not known.
struct Cut {
  std::vector<std::int64_t> axes;
  std::vector<std::int64_t> starts;
};

std::optional<Cut> dense_cut(VjpContext& ctx) {
  const auto starts = constant_ints(ctx.input(1));
  if (!starts) return std::nullopt;
  Cut cut{.axes = {}, .starts = *starts};
  if (ctx.input(3) == nullptr) {
    for (std::size_t i = 0; i < starts->size(); ++i) {
      cut.axes.push_back(static_cast<std::int64_t>(i));
    }
  } else {
    const auto axes = constant_ints(ctx.input(3));
    if (!axes || axes->size() != starts->size()) return std::nullopt;
    cut.axes = *axes;
  }
  if (ctx.input(4) != nullptr) {
    const auto steps = constant_ints(ctx.input(4));
    const bool is_dense = steps && std::ranges::all_of(*steps, [](auto step) { return step == 1; });
    if (!is_dense) return std::nullopt;
  }
  return cut;
}

// Returns the number of elements before the slice, int64 [1]: the start, from the end if negative,
// clamped.
Value* begin_value(GraphBuilder& g, Value* x, std::int64_t axis, std::int64_t start) {
  if (const auto dim = known_dim(x, axis)) {
    return g.ints({std::clamp<std::int64_t>(start < 0 ? start + *dim : start, 0, *dim)});
  }
  Value* dim = dim_value(g, x, axis);
  if (start == 0) return g.ints({0});
  if (start > 0) return g.op("Min", {dim, g.ints({start})});
  constexpr std::int64_t kBelowAll = -(std::int64_t{1} << 48);
  return g.op("Max", {g.add(dim, g.ints({std::max(start, kBelowAll)})), g.ints({0})});
}

// dx = dy with zeros before and after it.
Value* padded(VjpContext& ctx, GraphBuilder& g, const Cut& cut) {
  Value* x = ctx.input(0);
  std::vector<Value*> before;
  std::vector<Value*> after;
  std::vector<std::int64_t> numbers;  // all pads, if they are known
  for (std::size_t i = 0; i < cut.axes.size(); ++i) {
    Value* begin = begin_value(g, x, cut.axes[i], cut.starts[i]);
    const auto dim = known_dim(x, cut.axes[i]);
    const auto size = known_dim(ctx.output(0), cut.axes[i]);
    before.push_back(begin);
    if (dim && size) {
      const auto skipped = constant_int(begin);
      ONNXGRAD_ASSERT(skipped.has_value());  // known, since the size along the axis is known
      after.push_back(g.ints({*dim - *size - *skipped}));
    } else {
      Value* rest = g.sub(dim_value(g, x, cut.axes[i]), begin);
      after.push_back(g.sub(rest, dim_value(g, ctx.output(0), cut.axes[i])));
    }
  }
  before.insert(before.end(), after.begin(), after.end());
  for (Value* part : before) {
    if (const auto number = constant_ints(part)) numbers.push_back(number->front());
  }
  Value* pads = numbers.size() == before.size() ? g.ints(numbers) : g.concat(before, 0);
  return g.op("Pad", {ctx.cotangent(0), pads, nullptr, g.ints(cut.axes)});
}

// dx = dy at the positions of the slice, zero elsewhere.
std::vector<Value*> slice_vjp(VjpContext& ctx, GraphBuilder& g) {
  std::vector<Value*> gradients(ctx.num_inputs(), nullptr);
  const auto cut = dense_cut(ctx);
  if (cut && cut->axes.empty()) {
    gradients[0] = ctx.cotangent(0);
  } else if (cut) {
    gradients[0] = padded(ctx, g, *cut);
  } else {
    std::vector<Value*> inputs = ctx.node().inputs;
    inputs[0] = position_numbers(g, ctx.input(0));
    Value* taken = g.op("Slice", std::move(inputs));
    gradients[0] = add_at_positions(g, taken, ctx.cotangent(0), ctx.input(0));
  }
  return gradients;
}

}  // namespace

void register_slice(opdef::OpRegistry& registry) {
  registry.add({.op_type = "Slice",
                .since_version = 13,
                .differentiable_inputs = {0},
                .vjp = slice_vjp,
                .planned_inputs = {1, 2, 3, 4},
                .passage = opdef::Passage::kPartial});
}

}  // namespace onnxgrad::ops::slice_op
