#include <string>
#include <vector>

#include "onnxgrad/error.h"
#include "opdef/registry.h"
#include "ops/rules.h"

// DFT (ai.onnx 20): along one axis, y = F x with F_kt = exp(-2 pi i k t / n), x truncated or
// zero-padded to the length n; inverse: y = conj(F) x / n. With respect to real and imaginary
// parts, the gradient is the conjugate transpose, another transform:  dx = conj(F) dy = n DFT(dy,
// inverse).

namespace onnxgrad::ops::dft_op {
namespace {

// Returns the transformed axis, counted from the front.
std::int64_t dft_axis(const Node& node, std::size_t rank) {
  if (node.input(2) == nullptr) return static_cast<std::int64_t>(rank) - 2;
  if (const auto given = constant_int(node.input(2))) return normalize_axis(*given, rank);
  throw GradientError({.what = "the axis is not known before the model runs",
                       .where = {.node = node.name, .op_type = node.op_type, .value = "axis"},
                       .hint = "Give input axis as a constant."});
}

// Pads x with zeros, or truncates it, along `axis` to `length` elements (int64 [1]).
Value* resized(GraphBuilder& g, Value* x, std::int64_t axis, Value* length) {
  const auto wanted = constant_int(length);
  const auto given = known_dim(x, axis);
  if (wanted && given && *wanted == *given) return x;
  Value* more = g.sub(length, dim_value(g, x, axis));
  return g.op("Pad", {x, g.concat({g.ints({0}), more}, 0), nullptr, g.ints({axis})});
}

// Returns the real (0) or imaginary (1) part of a complex tensor [..., 2]: [..., 1].
Value* part(GraphBuilder& g, Value* x, std::int64_t i) { return g.slice(x, {i}, {i + 1}, {-1}); }

// Returns the real part of a complex gradient if x is real.
Value* as_input(GraphBuilder& g, Value* gradient, Value* x, std::int64_t axis) {
  Value* fitted = resized(g, gradient, axis, dim_value(g, x, axis));
  const auto parts = known_dim(x, -1);
  if (parts == 2) return fitted;
  if (parts == 1) return part(g, fitted, 0);
  return g.op("Slice", {fitted, g.ints({0}), dim_value(g, x, -1), g.ints({-1})});
}

struct Transform {
  std::int64_t axis = 0;
  Value* length = nullptr;  // int64 [1]
  Value* length_scalar = nullptr;
  Value* axis_value = nullptr;
};

Value* dft(GraphBuilder& g, const Transform& t, Value* x, bool inverse, bool onesided) {
  std::vector<Attribute> attributes;
  if (inverse) attributes.push_back({"inverse", std::int64_t{1}});
  if (onesided) attributes.push_back({"onesided", std::int64_t{1}});
  return g.op("DFT", {x, t.length_scalar, t.axis_value}, std::move(attributes));
}

// Gradient of the inverse of a spectrum of which only half is given: y = real(conj(F) X) / n, with
// X mirrored, so that all bins but X_0 and (n even) X_n/2 count twice.
Value* half_spectrum_gradient(GraphBuilder& g, const Transform& t, Value* x, Value* dy) {
  Value* spectrum = dft(g, t, dy, /*inverse=*/false, /*onesided=*/true);
  Value* bins = g.squeeze(dim_value(g, spectrum, t.axis), {0});
  Value* numbers = g.op("Range", {g.int_scalar(0), bins, g.int_scalar(1)});
  Value* doubled = g.mul(numbers, g.int_scalar(2));
  Value* is_mirrored =
      g.op("And", {g.greater(numbers, g.int_scalar(0)), g.less(doubled, t.length)});
  Value* counts = g.where(is_mirrored, g.scalar_like(dy, 2), g.scalar_like(dy, 1));
  std::vector<std::int64_t> later;
  for (auto i = static_cast<std::int64_t>(x->type.rank()) - t.axis; i > 1; --i) {
    later.push_back(static_cast<std::int64_t>(later.size()) + 1);
  }
  Value* factors = g.div(g.unsqueeze(counts, later), g.cast_like(t.length, dy));
  return as_input(g, g.mul(spectrum, factors), x, t.axis);
}

std::vector<Value*> dft_vjp(VjpContext& ctx, GraphBuilder& g) {
  const Node& node = ctx.node();
  const std::size_t rank = required_rank(ctx, 0);
  Value* x = ctx.input(0);
  if (const auto parts = known_dim(x, -1); parts && parts != 1 && parts != 2) {
    throw GradientError({.what = "the last dimension of the signal is " + std::to_string(*parts) +
                                 ", expected 1 or 2",
                         .where = {.node = node.name, .op_type = node.op_type, .value = x->name},
                         .hint = "Give a signal [..., length, ..., 1 or 2]."});
  }
  Value* dy = ctx.cotangent(0);
  const bool inverse = node.int_attribute("inverse") != 0;
  const bool onesided = node.int_attribute("onesided") != 0;
  Transform t{.axis = dft_axis(node, rank)};
  t.axis_value = g.int_scalar(t.axis);
  Value* full = inverse && onesided ? ctx.output(0) : x;
  Value* length = node.input(1);
  t.length = length == nullptr ? dim_value(g, full, t.axis)
                               : g.reshape(g.cast(length, DataType::kInt64), {1});
  t.length_scalar = g.squeeze(t.length, {0});
  if (inverse && onesided) return {half_spectrum_gradient(g, t, x, dy)};
  Value* scale = g.cast_like(t.length, dy);
  if (inverse) return {as_input(g, g.div(dft(g, t, dy, false, false), scale), x, t.axis)};
  // The bins that a onesided transform omits have cotangent zero.
  if (onesided) dy = resized(g, dy, t.axis, t.length);
  return {as_input(g, g.mul(dft(g, t, dy, true, false), scale), x, t.axis)};
}

}  // namespace

void register_dft(opdef::OpRegistry& registry) {
  registry.add({.op_type = "DFT",
                .since_version = 20,
                .differentiable_inputs = {0},
                .attributes = {flag_attribute("inverse", false), flag_attribute("onesided", false)},
                .vjp = dft_vjp,
                .planned_inputs = {1, 2}});
}

}  // namespace onnxgrad::ops::dft_op
