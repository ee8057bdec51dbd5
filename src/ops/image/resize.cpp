#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "opdef/function_body.h"
#include "opdef/registry.h"
#include "ops/rules.h"

// Resize: y = (R_1 x ... x R_n) x, a product with a matrix for each axis, whose rows hold the
// interpolation weights (plus a constant outside a region of interest). dx = (R_1^T x ... x R_n^T)
// dy, a call of ResizeGrad. R_a is the Resize of the identity matrix, so the function's body has no
// formula of its own, and the gradient matches the runtime that it runs in.

namespace onnxgrad::ops::resize_op {
namespace {

// Returns input `i` of a Resize node; nullptr also for an empty tensor, which older files have in
// place of an absent input.
Value* given_input(const Node& node, std::size_t i) {
  Value* value = node.input(i);
  const bool is_empty = value != nullptr && value->type.has_rank() && known_dim(value, 0) == 0;
  return is_empty ? nullptr : value;
}

// Returns true for an axis that surely does not change, which needs no product.
bool is_kept(const Node& node, std::size_t axis, std::size_t position) {
  if (node.string_attribute("coordinate_transformation_mode") == "tf_crop_and_resize") return false;
  if (const Value* scales = given_input(node, 2); scales != nullptr && scales->is_constant()) {
    const std::vector<double> numbers = scales->initializer.to_doubles();
    return position < numbers.size() && numbers[position] == 1;
  }
  const bool by_sizes = given_input(node, 3) != nullptr;
  if (!by_sizes || node.string_attribute("keep_aspect_ratio_policy") != "stretch") return false;
  const ir::Type& x = node.inputs[0]->type;
  const ir::Type& y = node.outputs[0]->type;
  return x.has_rank() && y.has_rank() && (*x.shape)[axis].surely_equals((*y.shape)[axis]);
}

// Interpolation attributes of the node, and the axes that it changes: `resized_axes` are axes of x,
// `entries` their positions in the node's lists.
struct Call {
  std::vector<std::int64_t> axes;
  std::vector<std::int64_t> entries;
  std::int64_t count = 0;  // number of axes in the node's lists
};

Call read_call(const Node& node, std::size_t rank) {
  Call call;
  std::vector<std::int64_t> axes = node.ints_attribute("axes");
  if (axes.empty()) {
    for (std::size_t i = 0; i < rank; ++i) axes.push_back(static_cast<std::int64_t>(i));
  }
  call.count = static_cast<std::int64_t>(axes.size());
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const std::int64_t axis = normalize_axis(axes[i], rank);
    if (is_kept(node, static_cast<std::size_t>(axis), i)) continue;
    call.axes.push_back(axis);
    call.entries.push_back(static_cast<std::int64_t>(i));
  }
  return call;
}

std::vector<Value*> resize_vjp(VjpContext& ctx, GraphBuilder& g) {
  const Node& node = ctx.node();
  const std::size_t rank = required_rank(ctx, 0);
  const Call call = read_call(node, rank);
  if (call.axes.empty()) return {ctx.cotangent(0)};
  std::vector<Attribute> attributes = node.attributes;
  std::erase_if(attributes, [](const Attribute& a) { return a.name == "extrapolation_value"; });
  attributes.push_back({"rank", static_cast<std::int64_t>(rank)});
  attributes.push_back({"resized_axes", call.axes});
  attributes.push_back({"entries", call.entries});
  const bool is_crop =
      node.string_attribute("coordinate_transformation_mode") == "tf_crop_and_resize";
  const bool has_roi = is_crop && given_input(node, 1) != nullptr;  // else planning refuses it
  const bool by_sizes = given_input(node, 3) != nullptr;
  attributes.push_back({"given", std::string(by_sizes ? "sizes" : "scales")});
  std::vector<Value*> inputs = {ctx.cotangent(0), ctx.input(0), node.input(by_sizes ? 3 : 2)};
  if (has_roi) inputs.push_back(node.input(1));
  return {g.call("ResizeGrad", std::move(inputs), 1, std::move(attributes))[0]};
}

// Builds the matrices R_a of one call.
class Matrices {
 public:
  Matrices(FunctionBody& f, const Node& node, Value* x, Value* given, Value* roi)
      : f_(f), node_(node), x_(x), given_(given), roi_(roi) {
    axes_ = node.ints_attribute("axes");
    if (axes_.empty()) {
      for (std::int64_t i = 0; i < node.int_attribute("rank"); ++i) axes_.push_back(i);
    }
    const std::int64_t rank = node.int_attribute("rank");
    for (std::int64_t& axis : axes_) axis = axis < 0 ? axis + rank : axis;
  }

  // Returns the matrix [output, input] of the axis at position `i` of the node's lists.
  Value* make(std::int64_t i) {
    if (is_joint()) return joint(i);
    return resized(identity(i), {0}, f_.slice(given_, {i}, {i + 1}, {0}), region({i}, i));
  }

 private:
  bool by_sizes() const { return node_.string_attribute("given") == "sizes"; }
  bool is_joint() const {
    return by_sizes() && node_.string_attribute("keep_aspect_ratio_policy") != "stretch";
  }

  Value* length(std::int64_t i) {
    const std::int64_t axis = axes_[static_cast<std::size_t>(i)];
    return f_.dims_of(x_, axis, axis + 1);
  }

  Value* identity(std::int64_t i) {
    Value* size = length(i);
    Value* square = f_.expand(f_.scalar_like(x_, 1), f_.concat({size, size}, 0));
    return f_.op("EyeLike", {square});
  }

  // Returns the starts, then the ends of the region for these entries: the whole input except along
  // entry `own`.
  Value* region(const std::vector<std::int64_t>& entries, std::int64_t own) {
    if (roi_ == nullptr) return nullptr;
    const auto count = static_cast<std::int64_t>(axes_.size());
    std::vector<Value*> parts;
    for (const std::int64_t end : {0, 1}) {
      for (const std::int64_t i : entries) {
        Value* whole = f_.op("CastLike", {f_.ints({end}), roi_});
        const std::int64_t at = i + end * count;
        parts.push_back(i == own ? f_.slice(roi_, {at}, {at + 1}, {0}) : whole);
      }
    }
    return f_.concat(parts, 0);
  }

  Value* resized(Value* matrix, const std::vector<std::int64_t>& axes, Value* given, Value* roi) {
    std::vector<Attribute> attributes = {{"axes", axes}};
    for (const char* name :
         {"mode", "coordinate_transformation_mode", "nearest_mode", "cubic_coeff_a", "antialias",
          "exclude_outside", "keep_aspect_ratio_policy"}) {
      attributes.push_back({name, *node_.find_attribute(name)});
    }
    Value* none = nullptr;
    return f_.op("Resize", {matrix, roi, by_sizes() ? none : given, by_sizes() ? given : none},
                 std::move(attributes));
  }

  // Builds the matrix if a keep-aspect-ratio policy derives one scale from all sizes: the rows of
  // the identity are expanded to all axes, constant along the others, and so are the results.
  Value* joint(std::int64_t own) {
    const auto count = static_cast<std::int64_t>(axes_.size());
    std::vector<Value*> dims = {length(own)};
    std::vector<std::int64_t> others;
    std::vector<std::int64_t> all;
    std::vector<std::int64_t> entries;
    for (std::int64_t i = 0; i < count; ++i) {
      dims.push_back(length(i));
      all.push_back(i + 1);
      entries.push_back(i);
      if (i != own) others.push_back(i + 1);
    }
    Value* rows = identity(own);
    if (!others.empty()) rows = f_.unsqueeze(rows, others);
    rows = resized(f_.expand(rows, f_.concat(dims, 0)), all, given_, region(entries, own));
    if (!others.empty()) {
      const std::vector<std::int64_t> zeros(others.size(), 0);
      const std::vector<std::int64_t> ones(others.size(), 1);
      rows = f_.squeeze(f_.slice(rows, zeros, ones, others), others);
    }
    return f_.transpose(rows, {1, 0});
  }

  FunctionBody& f_;
  const Node& node_;
  Value* x_;
  Value* given_;
  Value* roi_;
  std::vector<std::int64_t> axes_;
};

// Multiplies `dy` by R^T along an axis; matrix: R.
Value* transposed_product(FunctionBody& f, Value* matrix, Value* dy, std::int64_t axis,
                          std::int64_t rank) {
  if (axis == rank - 1 && rank > 1) return f.matmul(dy, matrix);
  if (axis == rank - 2) return f.matmul(f.transpose(matrix, {1, 0}), dy);
  std::vector<std::int64_t> swapped;
  for (std::int64_t i = 0; i < rank; ++i) swapped.push_back(i);
  std::swap(swapped[static_cast<std::size_t>(axis)], swapped.back());
  return f.transpose(f.matmul(f.transpose(dy, swapped), matrix), swapped);
}

std::string resize_key(const Node& node, bool has_roi) {
  std::string key = node.string_attribute("mode") + "_" +
                    node.string_attribute("coordinate_transformation_mode") + "_r" +
                    std::to_string(node.int_attribute("rank")) + "_a" +
                    opdef::key_of(node.ints_attribute("resized_axes")) + "_" +
                    node.string_attribute("given");
  if (node.string_attribute("mode") == "nearest")
    key += "_" + node.string_attribute("nearest_mode");
  if (node.string_attribute("mode") == "cubic") {
    key +=
        fmt::format("_{:08x}", std::bit_cast<std::uint32_t>(node.float_attribute("cubic_coeff_a")));
  }
  if (node.int_attribute("antialias") != 0) key += "_antialias";
  if (node.int_attribute("exclude_outside") != 0) key += "_exclude_outside";
  const std::string policy = node.string_attribute("keep_aspect_ratio_policy");
  if (policy != "stretch") key += "_" + policy;
  if (!node.ints_attribute("axes").empty()) {
    key += "_of" + opdef::key_of(node.ints_attribute("axes"));
  }
  return has_roi ? key + "_roi" : key;
}

// Computes dx from (dy, x, scales or sizes, roi if it is read); only the shape of x is read.
ir::Function resize_grad_body(std::string_view base_name, const std::vector<Value*>& inputs,
                              const std::vector<Attribute>& attributes) {
  Node node;
  node.op_type = base_name;
  node.attributes = attributes;
  const bool has_roi = inputs.size() > 3;
  FunctionBody f(base_name, resize_key(node, has_roi), attributes);
  Value* dy = f.input("dy");
  Value* x = f.input("x");
  Value* given = f.input(node.string_attribute("given"));
  Value* roi = has_roi ? f.input("roi") : nullptr;
  const std::int64_t rank = node.int_attribute("rank");
  const std::vector<std::int64_t> axes = node.ints_attribute("resized_axes");
  const std::vector<std::int64_t> entries = node.ints_attribute("entries");
  Matrices matrices(f, node, x, given, roi);
  Value* dx = dy;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    dx = transposed_product(f, matrices.make(entries[i]), dx, axes[i], rank);
  }
  return std::move(f).finish({f.reshape(dx, f.shape_of(x))});
}

// dx is linear in dy: the gradient with respect to dy is the Resize of the upstream gradient. Only
// the shape of x is read.
std::vector<Value*> resize_grad_vjp(VjpContext& ctx, GraphBuilder& g) {
  if (!ctx.needs(0)) return {};
  const Node& node = ctx.node();
  std::vector<Attribute> attributes = node.attributes;
  const bool by_sizes = node.string_attribute("given") == "sizes";
  std::erase_if(attributes, [](const Attribute& a) {
    return a.name == "rank" || a.name == "resized_axes" || a.name == "entries" || a.name == "given";
  });
  Value* none = nullptr;
  Value* given = ctx.input(2);
  return {g.op("Resize",
               {ctx.cotangent(0), node.input(3), by_sizes ? none : given, by_sizes ? given : none},
               std::move(attributes))};
}

// Interpolates integers in a floating-point type that holds them exactly, and rounds.
std::optional<std::vector<Value*>> lower_integers(const Node& node, GraphBuilder& g) {
  const DataType dtype = node.inputs[0]->dtype();
  if (!is_integer(dtype) || node.string_attribute("mode") == "nearest") return std::nullopt;
  std::vector<Value*> inputs = node.inputs;
  inputs[0] = g.cast(inputs[0], size_bits(dtype) <= 16 ? DataType::kFloat32 : DataType::kFloat64);
  Value* y = g.op("Round", {g.op("Resize", std::move(inputs), node.attributes)});
  if (node.string_attribute("mode") == "cubic") {  // cubic overshoots
    const int bits = size_bits(dtype);
    const bool is_signed = dtype == DataType::kInt8 || dtype == DataType::kInt16 ||
                           dtype == DataType::kInt32 || dtype == DataType::kInt64;
    const double low = is_signed ? -std::ldexp(1.0, bits - 1) : 0;
    const double high = std::ldexp(1.0, is_signed ? bits - 1 : bits) - (bits < 64 ? 1 : 2048);
    y = g.op("Clip", {y, g.scalar_like(y, low), g.scalar_like(y, high)});
  }
  return {{g.cast(y, dtype)}};
}

std::vector<AttributeSpec> interpolation_specs() {
  constexpr auto kMaxRank = static_cast<std::int64_t>(Dims::kMaxRank);
  return {
      choice_attribute("mode", {"nearest", "linear", "cubic"}),
      choice_attribute("coordinate_transformation_mode",
                       {"half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners",
                        "asymmetric", "tf_crop_and_resize", "tf_half_pixel_for_nn"}),
      choice_attribute("nearest_mode",
                       {"round_prefer_floor", "round_prefer_ceil", "floor", "ceil"}),
      float_attribute("cubic_coeff_a", -0.75F),
      flag_attribute("antialias", false),
      flag_attribute("exclude_outside", false),
      choice_attribute("keep_aspect_ratio_policy", {"stretch", "not_larger", "not_smaller"}),
      {.name = "axes",
       .type = AttributeType::kInts,
       .min = -kMaxRank,
       .max = kMaxRank - 1,
       .max_count = Dims::kMaxRank},
  };
}

}  // namespace

void register_resize(opdef::OpRegistry& registry) {
  std::vector<AttributeSpec> attributes = interpolation_specs();
  attributes.push_back(float_attribute("extrapolation_value", 0.0F));
  registry.add({.op_type = "Resize",
                .since_version = 19,
                .differentiable_inputs = {0},
                .attributes = std::move(attributes),
                .vjp = resize_vjp,
                .lower = lower_integers,
                .planned_inputs = {1, 2, 3}});
  std::vector<AttributeSpec> of_gradient = interpolation_specs();
  of_gradient.push_back({.name = "rank", .required = true, .min = 0});
  of_gradient.push_back({.name = "resized_axes", .type = AttributeType::kInts, .required = true});
  of_gradient.push_back({.name = "entries", .type = AttributeType::kInts, .required = true});
  of_gradient.push_back({.name = "given",
                         .type = AttributeType::kString,
                         .required = true,
                         .choices = {"scales", "sizes"}});
  registry.add({.domain = ir::kFunctionDomain,
                .op_type = "ResizeGrad",
                .differentiable_inputs = {0, 1},
                .attributes = std::move(of_gradient),
                .vjp = resize_grad_vjp,
                .function_body = resize_grad_body,
                .planned_inputs = {2, 3}});
}

}  // namespace onnxgrad::ops::resize_op
