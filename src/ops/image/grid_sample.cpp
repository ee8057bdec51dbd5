#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "opdef/function_body.h"
#include "opdef/registry.h"
#include "ops/rules.h"

// GridSample: y[n, c, p] = sum over taps of w(p) x[n, c, i(p)], where the grid gives the position
// of point p, and 1, 2 or 4 neighbours along each axis are taps.
//   dx    = zeros with w dy added at i:          a call of GridSampleImageGrad
//   dgrid = sum over c and taps of dy x[i] dw:   a call of GridSampleGridGrad

namespace onnxgrad::ops::grid_sample_op {
namespace {

// Taps as ONNX defines them, one axis at a time: [N, P] points become indices and weights [N, P,
// K].
class Taps {
 public:
  Taps(FunctionBody& f, const Node& call, Value* x, Value* grid)
      : f_(f),
        x_(x),
        grid_(grid),
        mode_(call.string_attribute("mode")),
        padding_(call.string_attribute("padding_mode")),
        align_corners_(call.int_attribute("align_corners") != 0),
        rank_(call.int_attribute("rank")) {
    points_ = f.op("ReduceProd", {f.dims_of(grid, 1, rank_ + 1)});
    batch_ = f.dims_of(grid, 0, 1);
    for (std::int64_t a = 0; a < rank_; ++a) make_axis(a);
  }

  std::int64_t rank() const { return rank_; }
  std::int64_t per_axis() const { return mode_ == "nearest" ? 1 : mode_ == "linear" ? 2 : 4; }
  std::int64_t total() const {
    return rank_ == 2 ? per_axis() * per_axis() : per_axis() * per_axis() * per_axis();
  }
  Value* points() { return points_; }  // int64 [1]
  Value* batch() { return batch_; }    // int64 [1]

  // Returns the flat indices in a channel of x, int64 [N, 1, P K^rank].
  Value* places() {
    Value* flat = indices_[0];
    for (std::int64_t a = 1; a < rank_; ++a) {
      const auto at = static_cast<std::size_t>(a);
      Value* rows = f_.mul(f_.unsqueeze(flat, {-1}), f_.dims_of(x_, a + 2, a + 3));
      flat = f_.add(rows, along(indices_[at], a, a + 1));
    }
    return f_.reshape(flat,
                      f_.concat({batch_, f_.ints({1}), f_.mul(points_, f_.ints({total()}))}, 0));
  }

  // Returns the product of the axes' weights, [N, P, K, ..., K]; axis `sloped` has its slope
  // instead.
  Value* weights(std::int64_t sloped = -1) {
    Value* product = nullptr;
    for (std::int64_t a = 0; a < rank_; ++a) {
      const auto at = static_cast<std::size_t>(a);
      Value* factor = along(a == sloped ? slopes_[at] : weights_[at], a, rank_);
      product = product == nullptr ? factor : f_.mul(product, factor);
    }
    return product;
  }

 private:
  // Reshapes [N, P, K] for broadcasting, with the taps on axis `a` of `axes`.
  Value* along(Value* taps, std::int64_t a, std::int64_t axes) {
    std::vector<std::int64_t> others;
    for (std::int64_t b = 0; b < axes; ++b) {
      if (b != a) others.push_back(b + 2);
    }
    return others.empty() ? taps : f_.unsqueeze(taps, others);
  }

  Value* number(double value) { return f_.scalar_like(grid_, value); }
  // Returns a constant [K].
  Value* list(const std::vector<float>& numbers) {
    const Dims dims = {static_cast<std::int64_t>(numbers.size())};
    return f_.op("CastLike", {f_.constant(Tensor::from(numbers, dims)), grid_});
  }

  // Returns the positions of the points and their derivatives with respect to the grid, [N, P]
  // each.
  std::pair<Value*, Value*> positions(std::int64_t a, Value* size) {
    Value* column = f_.slice(grid_, {rank_ - 1 - a}, {rank_ - a}, {rank_ + 1});
    column = f_.reshape(column, f_.concat({batch_, points_}, 0));
    Value* last = f_.sub(size, number(1));
    Value* scale = f_.mul(align_corners_ ? last : size, number(0.5));
    Value* x = f_.add(f_.mul(column, scale), f_.mul(last, number(0.5)));
    if (mode_ == "nearest") x = f_.op("Round", {x});
    Value* low = number(align_corners_ ? 0 : -0.5);
    Value* high = align_corners_ ? last : f_.sub(size, number(0.5));
    Value* slope = f_.expand(scale, f_.shape_of(x));
    // In PyTorch and onnxruntime, cubic interpolation with padding "border" clamps the taps, not
    // the point.
    if (padding_ == "reflection" || (padding_ == "border" && mode_ != "cubic")) {
      Value* is_inside =
          f_.op("And", {f_.op("GreaterOrEqual", {x, low}), f_.op("LessOrEqual", {x, high})});
      Value* outside = nullptr;
      Value* moved = f_.op("Sub", {slope, slope});
      if (padding_ == "border") {
        outside = within(x, number(0), last);
      } else {
        std::tie(outside, moved) = reflected(x, low, high, slope);
      }
      x = f_.where(is_inside, x, outside);
      slope = f_.where(is_inside, slope, moved);
    }
    return {within(x, number(-4), f_.add(last, number(4))), slope};
  }

  Value* within(Value* x, Value* low, Value* high) {
    return f_.op("Min", {f_.op("Max", {x, low}), high});
  }

  std::pair<Value*, Value*> reflected(Value* x, Value* low, Value* high, Value* slope) {
    Value* zero = number(0);
    Value* range = f_.sub(high, low);
    Value* distance = f_.sub(x, low);
    Value* size = f_.abs(distance);
    Value* safe = f_.where(f_.greater(range, zero), range, number(1));
    Value* turns = f_.op("Floor", {f_.div(size, safe)});
    Value* rest = f_.sub(size, f_.mul(turns, range));
    Value* halves = f_.op("Floor", {f_.mul(turns, number(0.5))});
    Value* is_back = f_.greater(f_.sub(turns, f_.mul(halves, number(2))), zero);
    Value* mirrored = f_.where(is_back, f_.sub(high, rest), f_.add(low, rest));
    Value* flips = f_.op("Xor", {is_back, f_.less(distance, zero)});
    return {within(mirrored, low, high), f_.where(flips, f_.neg(slope), slope)};
  }

  void make_axis(std::int64_t a) {
    Value* size = f_.op("CastLike", {f_.dims_of(x_, a + 2, a + 3), grid_});
    const auto [x, slope] = positions(a, size);
    Value* first = f_.op("Floor", {x});
    Value* fraction = f_.unsqueeze(f_.sub(x, first), {2});
    Value* start = f_.unsqueeze(first, {2});
    Value* moves = f_.unsqueeze(slope, {2});
    Value* index = nullptr;
    Value* weight = nullptr;
    Value* change = nullptr;
    if (mode_ == "nearest") {
      index = f_.unsqueeze(x, {2});
      weight = f_.expand(number(1), f_.shape_of(index));
      change = f_.op("Sub", {moves, moves});
    } else if (mode_ == "linear") {
      Value* signs = list({-1, 1});
      index = f_.add(start, list({0, 1}));
      weight = f_.add(list({1, 0}), f_.mul(signs, fraction));
      change = f_.mul(signs, moves);
    } else {
      index = f_.add(start, list({-1, 0, 1, 2}));
      std::tie(weight, change) = cubic(fraction);
      change = f_.mul(change, moves);
    }
    pad(size, index, weight, change);
  }

  // Cubic weights of the four taps and their derivatives, polynomials of the distances: Keys, Cubic
  // convolution interpolation for digital image processing, 1981, with a = -0.75.
  std::pair<Value*, Value*> cubic(Value* fraction) {
    Value* signs = list({1, 1, -1, -1});
    Value* d = f_.mul(signs, f_.sub(fraction, list({-1, 0, 1, 2})));
    const auto horner = [&](const std::vector<float>& far, const std::vector<float>& near) {
      Value* sum = nullptr;
      for (std::size_t i = 0; i < far.size(); ++i) {
        Value* factors = list({far[i], near[i], near[i], far[i]});
        sum = sum == nullptr ? factors : f_.add(f_.mul(sum, d), factors);
      }
      return sum;
    };
    Value* weight = horner({-0.75F, 3.75F, -6, 3}, {1.25F, -2.25F, 0, 1});
    Value* slope = horner({-2.25F, 7.5F, -6}, {3.75F, -4.5F, 0});
    return {weight, f_.mul(signs, slope)};
  }

  // Maps indices into the image; with padding "zeros", taps outside get weight 0.
  void pad(Value* size, Value* index, Value* weight, Value* change) {
    Value* zero = number(0);
    Value* last = f_.sub(size, number(1));
    if (padding_ == "border") {
      index = within(index, zero, last);
    } else if (padding_ == "reflection") {
      Value* period = f_.mul(align_corners_ ? last : size, number(2));
      Value* safe = f_.op("Max", {period, number(1)});
      Value* rest = f_.sub(index, f_.mul(safe, f_.op("Floor", {f_.div(index, safe)})));
      Value* back = f_.sub(align_corners_ ? period : f_.sub(period, number(1)), rest);
      index = f_.where(f_.greater(rest, last), back, rest);
    } else {
      Value* is_inside = f_.op(
          "And", {f_.op("GreaterOrEqual", {index, zero}), f_.op("LessOrEqual", {index, last})});
      index = f_.where(is_inside, index, zero);
      weight = f_.where(is_inside, weight, zero);
      change = f_.where(is_inside, change, zero);
    }
    indices_.push_back(f_.cast(index, DataType::kInt64));
    weights_.push_back(weight);
    slopes_.push_back(change);
  }

  FunctionBody& f_;
  Value* x_;
  Value* grid_;
  std::string mode_;
  std::string padding_;
  bool align_corners_;
  std::int64_t rank_;
  Value* points_ = nullptr;
  Value* batch_ = nullptr;
  std::vector<Value*> indices_;  // per axis: int64 [N, P, K]
  std::vector<Value*> weights_;  // per axis: [N, P, K]
  std::vector<Value*> slopes_;   // derivatives of the weights with respect to the grid
};

Node call_node(const std::vector<Attribute>& attributes) {
  Node node;
  node.op_type = "GridSample";
  node.attributes = attributes;
  return node;
}

std::string sample_key(const Node& node) {
  return node.string_attribute("mode") + "_" + node.string_attribute("padding_mode") + "_" +
         std::to_string(node.int_attribute("rank")) + "d" +
         (node.int_attribute("align_corners") != 0 ? "_align_corners" : "");
}

// Reshapes [N, C, P...] to [N, C, P].
Value* flat(FunctionBody& f, Value* x, Value* count) {
  return f.reshape(x, f.concat({f.dims_of(x, 0, 2), count}, 0));
}

// Computes dx from (dy, x, grid); only the shape of x is read.
ir::Function image_grad_body(std::string_view base_name, const std::vector<Value*>&,
                             const std::vector<Attribute>& attributes) {
  const Node node = call_node(attributes);
  FunctionBody f(base_name, sample_key(node), attributes);
  Value* dy = f.input("dy");
  Value* x = f.input("x");
  Value* grid = f.input("grid");
  Taps taps(f, node, x, grid);
  Value* one = f.ints({1});
  Value* per_point = f.ints({taps.total()});
  Value* weights =
      f.reshape(taps.weights(), f.concat({taps.batch(), one, taps.points(), per_point}, 0));
  Value* shares = f.mul(f.unsqueeze(flat(f, dy, taps.points()), {3}), weights);
  Value* planes = f.dims_of(x, 0, 2);
  Value* shape = f.concat({planes, f.mul(taps.points(), per_point)}, 0);
  Value* plane = f.op("ReduceProd", {f.dims_of(x, 2, taps.rank() + 2)});
  Value* zeros = f.expand(f.scalar_like(dy, 0), f.concat({planes, plane}, 0));
  Value* sums =
      f.op("ScatterElements", {zeros, f.expand(taps.places(), shape), f.reshape(shares, shape)},
           {{"axis", std::int64_t{2}}, {"reduction", std::string("add")}});
  return std::move(f).finish({f.reshape(sums, f.shape_of(x))});
}

// Computes dgrid from (dy, x, grid).
ir::Function grid_grad_body(std::string_view base_name, const std::vector<Value*>&,
                            const std::vector<Attribute>& attributes) {
  const Node node = call_node(attributes);
  FunctionBody f(base_name, sample_key(node), attributes);
  Value* dy = f.input("dy");
  Value* x = f.input("x");
  Value* grid = f.input("grid");
  Taps taps(f, node, x, grid);
  Value* per_point = f.ints({taps.total()});
  Value* planes = f.dims_of(x, 0, 2);
  Value* plane = f.op("ReduceProd", {f.dims_of(x, 2, taps.rank() + 2)});
  Value* shape = f.concat({planes, f.mul(taps.points(), per_point)}, 0);
  Value* read = f.op("GatherElements", {flat(f, x, plane), f.expand(taps.places(), shape)},
                     {{"axis", std::int64_t{2}}});
  Value* spread = f.reshape(read, f.concat({planes, taps.points(), per_point}, 0));
  Value* products = f.mul(spread, f.unsqueeze(flat(f, dy, taps.points()), {3}));
  std::vector<std::int64_t> tap_axes;
  std::vector<std::int64_t> tap_dims;
  for (std::int64_t a = 0; a < taps.rank(); ++a) {
    tap_axes.push_back(a + 2);
    tap_dims.push_back(taps.per_axis());
  }
  Value* sums = f.reshape(f.reduce_sum(products, {1}, /*keepdims=*/false),
                          f.concat({taps.batch(), taps.points(), f.ints(tap_dims)}, 0));
  std::vector<Value*> columns;  // the innermost axis comes first
  for (std::int64_t a = taps.rank() - 1; a >= 0; --a) {
    Value* column = f.reduce_sum(f.mul(sums, taps.weights(a)), tap_axes, /*keepdims=*/false);
    columns.push_back(f.unsqueeze(column, {2}));
  }
  return std::move(f).finish({f.reshape(f.concat(columns, 2), f.shape_of(grid))});
}

std::vector<Value*> grid_sample_vjp(VjpContext& ctx, GraphBuilder& g) {
  std::vector<Attribute> attributes = ctx.node().attributes;
  const auto rank = static_cast<std::int64_t>(required_rank(ctx, 0)) - 2;
  attributes.push_back({"rank", rank});
  const std::vector<Value*> inputs = {ctx.cotangent(0), ctx.input(0), ctx.input(1)};
  std::vector<Value*> gradients(2, nullptr);
  if (ctx.needs(0)) gradients[0] = g.call("GridSampleImageGrad", inputs, 1, attributes)[0];
  if (ctx.needs(1)) gradients[1] = g.call("GridSampleGridGrad", inputs, 1, attributes)[0];
  return gradients;
}

// Converts grid and image to one floating-point type; integers are sampled as float64.
std::optional<std::vector<Value*>> unify_types(const Node& node, GraphBuilder& g) {
  const DataType image = node.inputs[0]->dtype();
  const DataType grid = node.inputs[1]->dtype();
  if (image == DataType::kUndefined || grid == DataType::kUndefined || image == grid) {
    return std::nullopt;
  }
  if (is_floating(image)) {
    return {{g.op("GridSample", {node.inputs[0], g.cast(node.inputs[1], image)}, node.attributes)}};
  }
  if (!is_integer(image) && image != DataType::kBool) return std::nullopt;
  Value* y =
      g.op("GridSample",
           {g.cast(node.inputs[0], DataType::kFloat64), g.cast(node.inputs[1], DataType::kFloat64)},
           node.attributes);
  return {{g.cast(y, image)}};
}

std::vector<AttributeSpec> sample_specs() {
  return {choice_attribute("mode", {"linear", "nearest", "cubic"}),
          choice_attribute("padding_mode", {"zeros", "border", "reflection"}),
          flag_attribute("align_corners", false)};
}

}  // namespace

void register_grid_sample(opdef::OpRegistry& registry) {
  registry.add({.op_type = "GridSample",
                .since_version = 22,
                .differentiable_inputs = {0, 1},
                .attributes = sample_specs(),
                .vjp = grid_sample_vjp,
                .lower = unify_types});
  std::vector<AttributeSpec> specs = sample_specs();
  specs.push_back({.name = "rank", .required = true, .min = 1, .max = 3});
  // The gradient functions have no rule: second derivatives go through their bodies.
  registry.add({.domain = ir::kFunctionDomain,
                .op_type = "GridSampleImageGrad",
                .differentiable_inputs = {0, 2},
                .attributes = specs,
                .function_body = image_grad_body});
  registry.add({.domain = ir::kFunctionDomain,
                .op_type = "GridSampleGridGrad",
                .differentiable_inputs = {0, 1, 2},
                .attributes = std::move(specs),
                .function_body = grid_grad_body});
}

}  // namespace onnxgrad::ops::grid_sample_op
