#include "onnx/portable_rules.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>

#include "ir/uses.h"
#include "onnx/known_values.h"
#include "onnx/rewriting.h"
#include "onnxgrad/error.h"
#include "opdef/random_stream.h"

namespace onnxgrad::onnx_io {
namespace {

using ir::GraphBuilder;
using ir::Node;
using ir::Value;

// Softplus has a kernel for float32 only. log(1 + exp(x)) = (x + |x|) / 2 + log(1 + exp(-|x|)),
// where nothing overflows; with 0 as the derivative of |x| at 0, its gradient is right there too.
Replacement softplus(Node& node, GraphBuilder& g) {
  Value* x = node.inputs.at(0);
  if (!x->type.is_tensor() || x->dtype() != DataType::kFloat64) return std::nullopt;
  Value* size = g.abs(x);
  Value* bend = g.log(g.add(g.exp(g.neg(size)), g.scalar_like(x, 1)));
  return {{g.add(g.scale(g.add(x, size), 0.5), bend)}};
}

// The truth value, if no run can change it.
std::optional<bool> constant_flag(const Value* value) {
  const Tensor* tensor = constant_of(value);
  if (tensor == nullptr || tensor->num_elements() != 1) return std::nullopt;
  return tensor->to_int64s().front() != 0;
}

// Pads of some axes become those of all: each is one of the given or the 0 appended to them. The
// optimizer that moves Transpose nodes past a Pad assumes that pads cover all axes.
Replacement pads_of_all_axes(Node& node, GraphBuilder& g) {
  if (node.input(3) == nullptr || !node.inputs[0]->type.has_rank()) return std::nullopt;
  const auto axes = known_ints(node.input(3));
  if (!axes) return std::nullopt;
  const std::size_t rank = node.inputs[0]->type.rank();
  const auto count = static_cast<std::int64_t>(axes->size());
  std::vector<std::int64_t> from(2 * rank, 2 * count);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t axis = normalize_axis((*axes)[static_cast<std::size_t>(i)], rank);
    from[static_cast<std::size_t>(axis)] = i;
    from[rank + static_cast<std::size_t>(axis)] = count + i;
  }
  if (auto given = known_ints(node.input(1))) {
    if (static_cast<std::int64_t>(given->size()) != 2 * count) return std::nullopt;
    given->push_back(0);
    for (std::int64_t& index : from) index = (*given)[static_cast<std::size_t>(index)];
    node.inputs.resize(node.inputs[2] == nullptr ? 2 : 3);
    node.inputs[1] = g.ints(from);
    return std::nullopt;
  }
  Value* pads = g.gather(g.concat({node.inputs.at(1), g.ints({0})}, 0), g.ints(from), 0);
  return {{g.op("Pad", {node.inputs[0], pads, node.inputs[2]}, node.attributes)}};
}

// Over negative axes, reductions of an empty tensor leave it unchanged; before opset 11 there
// are none.
Replacement positive_axes(Node& node, GraphBuilder& g) {
  const Value* x = node.input(0);
  auto axes = known_ints(node.input(1));
  if (!axes || x == nullptr || !x->type.has_rank()) return std::nullopt;
  if (std::ranges::none_of(*axes, [](std::int64_t axis) { return axis < 0; })) return std::nullopt;
  const std::size_t rank = x->type.rank() + (node.op_type == "Unsqueeze" ? axes->size() : 0);
  for (std::int64_t& axis : *axes) axis = normalize_axis(axis, rank);
  node.inputs[1] = g.ints(*axes);
  return std::nullopt;
}

Replacement positive_axis(Node& node, GraphBuilder& /*g*/) {
  const Value* x = node.input(0);
  const std::int64_t axis = node.int_attribute("axis", 1);
  if (axis >= 0 || x == nullptr || !x->type.has_rank()) return std::nullopt;
  node.set_attribute("axis", normalize_axis(axis, x->type.rank()));
  return std::nullopt;
}

// The optimizer also removes a Dropout in training mode if nothing reads its mask.
Replacement dropout(Node& node, GraphBuilder& g) {
  const bool is_training = node.input(2) != nullptr && constant_flag(node.input(2)) != false;
  if (!is_training || node.output(1) != nullptr) return std::nullopt;
  const std::vector<Value*> results = g.ops("Dropout", node.inputs, 2, node.attributes);
  opdef::draw_like(node, *results[0]->producer);
  return {{g.where(results[1], results[0], g.scalar_like(results[0], 0))}};
}

// y = (sum |x|^p)^(1/p) over the spatial axes.
Replacement global_lp_pool(Node& node, GraphBuilder& g) {
  Value* x = node.inputs.at(0);
  if (!x->type.has_rank() || x->type.rank() < 3) return std::nullopt;
  std::vector<std::int64_t> axes(x->type.rank() - 2);
  std::iota(axes.begin(), axes.end(), 2);
  const std::int64_t p = node.int_attribute("p", 2);
  if (p == 1 || p == 2) return {{g.op(p == 1 ? "ReduceL1" : "ReduceL2", {x, g.ints(axes)})}};
  const auto power = static_cast<double>(p);
  Value* powers = g.pow(g.abs(x), g.scalar_like(x, power));
  return {{g.pow(g.reduce_sum(powers, axes, /*keepdims=*/true), g.scalar_like(x, 1 / power))}};
}

// The random operators only have kernels for their versions before opset 22, which newer opsets
// cannot express; Dropout has one. Each element of its mask, true with probability 1/2, is a
// binary digit of a number.
class Draws {
 public:
  Draws(const Node& node, GraphBuilder& g) : node_(node), g_(g) {}

  // Numbers of this shape (int64 [rank]), uniform in [0, 1): multiples of 2^-24, of 2^-53 if
  // double.
  Value* uniform(Value* shape, bool is_double) {
    const int num_digits = is_double ? 53 : 24;
    std::vector<double> places;
    for (int i = 1; i <= num_digits; ++i) places.push_back(std::ldexp(1, -i));
    const DataType dtype = is_double ? DataType::kFloat64 : DataType::kFloat32;
    Value* place = g_.constant(Tensor::from(places, Dims{num_digits}).cast(dtype), "places");
    Value* one = g_.scalar_like(place, 1);
    Value* ones = g_.expand(one, g_.concat({shape, g_.ints({num_digits})}, 0));
    Value* half = g_.constant(Tensor::scalar(0.5F), "half");
    Value* training = g_.constant(Tensor::scalar(true), "training");
    const auto drawn = g_.ops("Dropout", {ones, half, training}, 2, seed());
    // Draws that the gradient repeats are repeated here as well.
    opdef::set_random_stream(*drawn[1]->producer, std::string(opdef::random_stream(node_)) + "/" +
                                                      std::to_string(num_drawn_++));
    const auto sizes = known_ints(shape);
    Value* last = sizes ? g_.ints({std::ssize(*sizes)}) : g_.shape_of(shape);
    return g_.op("ReduceSum", {g_.mul(g_.cast_like(drawn[1], place), place), last},
                 {{.name = "keepdims", .value = std::int64_t{0}}});
  }

  // Standard normal numbers. Box and Muller, A Note on the Generation of Random Normal Deviates,
  // 1958.
  Value* normal(Value* shape, bool is_double) {
    Value* u = uniform(shape, is_double);
    Value* angle = g_.scale(uniform(shape, is_double), 2 * std::numbers::pi);
    Value* square = g_.scale(g_.log(g_.sub(g_.scalar_like(u, 1), u)), -2);
    return g_.mul(g_.sqrt(square), g_.op("Cos", {angle}));
  }

 private:
  std::vector<ir::Attribute> seed() const {
    if (node_.find_attribute("seed") == nullptr) return {};
    const auto bits = std::bit_cast<std::uint32_t>(node_.float_attribute("seed", 0));
    return {{.name = "seed", .value = static_cast<std::int64_t>(bits) + num_drawn_}};
  }

  const Node& node_;
  GraphBuilder& g_;
  int num_drawn_ = 0;
};

Value* shape_of(GraphBuilder& g, Value* x) {
  if (const auto dims = x->type.static_dims()) return g.ints({dims->begin(), dims->end()});
  return g.shape_of(x);
}

// The type of a random operator's result: its dtype, else that of its input, else float32.
DataType drawn_type(const Node& node) {
  const DataType fallback = node.input(0) == nullptr ? DataType::kFloat32 : node.inputs[0]->dtype();
  return static_cast<DataType>(node.int_attribute("dtype", static_cast<std::int64_t>(fallback)));
}

Value* drawn_shape(Node& node, GraphBuilder& g) {
  return node.input(0) == nullptr ? g.ints(node.ints_attribute("shape"))
                                  : shape_of(g, node.inputs[0]);
}

Replacement random_uniform(Node& node, GraphBuilder& g) {
  const DataType dtype = drawn_type(node);
  if (!is_floating(dtype)) return std::nullopt;
  const double low = node.float_attribute("low", 0);
  const double high = node.float_attribute("high", 1);
  Value* u = Draws(node, g).uniform(drawn_shape(node, g), dtype == DataType::kFloat64);
  return {{g.cast(g.add(g.scale(u, high - low), g.scalar_like(u, low)), dtype)}};
}

Replacement random_normal(Node& node, GraphBuilder& g) {
  const DataType dtype = drawn_type(node);
  if (!is_floating(dtype)) return std::nullopt;
  Value* z = Draws(node, g).normal(drawn_shape(node, g), dtype == DataType::kFloat64);
  Value* mean = g.scalar_like(z, node.float_attribute("mean", 0));
  return {{g.cast(g.add(g.scale(z, node.float_attribute("scale", 1)), mean), dtype)}};
}

// ONNX's definition, which runtimes without a kernel use, draws 1 with probability 1 - p.
Replacement bernoulli(Node& node, GraphBuilder& g) {
  const DataType dtype = drawn_type(node);
  Value* p = node.inputs.at(0);
  if (dtype == DataType::kUndefined || p->dtype() == DataType::kUndefined) return std::nullopt;
  std::vector<ir::Attribute> attributes = node.attributes;
  std::erase_if(attributes, [](const ir::Attribute& a) { return a.name == "dtype"; });
  Value* u = g.op("RandomUniformLike", {p}, std::move(attributes));
  opdef::draw_like(node, *u->producer);
  return {{g.cast(g.less(u, p), dtype)}};
}

// The class whose interval of the cumulative probabilities the number u falls into.
Replacement multinomial(Node& node, GraphBuilder& g) {
  Value* x = node.inputs.at(0);
  if (!is_floating(x->dtype())) return std::nullopt;
  const bool is_double = x->dtype() == DataType::kFloat64;
  const auto dtype = static_cast<DataType>(node.int_attribute("dtype", 6));
  const std::int64_t count = node.int_attribute("sample_size", 1);
  Value* rows = g.op("Shape", {x}, {{.name = "end", .value = std::int64_t{1}}});
  Value* u = Draws(node, g).uniform(g.concat({rows, g.ints({count})}, 0), is_double);
  Value* sums = g.op("CumSum", {g.op("Softmax", {g.cast_like(x, u)}), g.int_scalar(1)});
  // Rounding may leave the last sum below 1: it is not compared.
  Value* bounds = g.op("Slice", {sums, g.ints({0}), g.ints({-1}), g.ints({1})});
  Value* is_past = g.op("GreaterOrEqual", {g.unsqueeze(u, {2}), g.unsqueeze(bounds, {1})});
  return {{g.reduce_sum(g.cast(is_past, dtype), {2}, /*keepdims=*/false)}};
}

// An empty tensor, expanded or not, is a constant without elements: onnxruntime's optimizer fails
// on an Expand to a shape with a 0.
Replacement empty_constant(Node& node, GraphBuilder& g) {
  const ir::Type& type = node.outputs.at(0)->type;
  const auto dims = type.static_dims();
  if (!dims || dims->num_elements() != 0 || type.dtype == DataType::kString) return std::nullopt;
  return {{g.op("ConstantOfShape", {g.ints({dims->begin(), dims->end()})},
                {{.name = "value", .value = Tensor::zeros(type.dtype, {1})}})}};
}

// The oldest opset that needs the other form.
constexpr RewriteRule kPortableRules[] = {
    {"Bernoulli", 0, bernoulli},
    {"Dropout", 0, dropout},
    {"Expand", 0, empty_constant},
    {"Flatten", 0, positive_axis},
    {"GlobalLpPool", 22, global_lp_pool},
    {"Multinomial", 22, multinomial},
    {"Pad", 0, pads_of_all_axes},
    {"RandomNormal", 22, random_normal},
    {"RandomNormalLike", 22, random_normal},
    {"RandomUniform", 22, random_uniform},
    {"RandomUniformLike", 22, random_uniform},
    {"ReduceL1", 0, positive_axes},
    {"ReduceL2", 0, positive_axes},
    {"ReduceLogSum", 0, positive_axes},
    {"ReduceLogSumExp", 0, positive_axes},
    {"ReduceMax", 0, positive_axes},
    {"ReduceMean", 0, positive_axes},
    {"ReduceMin", 0, positive_axes},
    {"ReduceProd", 0, positive_axes},
    {"ReduceSum", 0, positive_axes},
    {"ReduceSumSquare", 0, positive_axes},
    {"Softplus", 0, softplus},
    {"Squeeze", 0, positive_axes},
    {"Unsqueeze", 0, positive_axes},
};

void drop_masks(ir::Graph& graph, const ir::Uses& uses) {
  for (Node* node : graph.nodes) {
    for (ir::Graph* body : node->subgraphs()) drop_masks(*body, uses);
    const bool has_mask = node->op_type == "Dropout" && node->outputs.size() == 2;
    if (has_mask && uses.count(node->outputs[1]) == 0) node->outputs.resize(1);
  }
}

}  // namespace

void drop_unread_masks(ir::Graph& graph) { drop_masks(graph, ir::Uses(graph)); }

std::optional<std::vector<Value*>> portable_form(Node& node, std::int64_t opset, GraphBuilder& g) {
  if (!node.inputs.empty() && node.inputs[0] == nullptr) return std::nullopt;  // refused elsewhere
  for (const RewriteRule& rule : kPortableRules) {
    if (node.op_type == rule.op_type && opset >= rule.opset) return rule.apply(node, g);
  }
  return std::nullopt;
}

}  // namespace onnxgrad::onnx_io
