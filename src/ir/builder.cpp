#include "ir/builder.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace onnxgrad::ir {
namespace {

constexpr std::int64_t kMaxSharedBytes = 512;  // larger constants are not compared

Attribute attribute(std::string name, AttributeValue value) {
  return {.name = std::move(name), .value = std::move(value)};
}

}  // namespace

GraphBuilder::GraphBuilder(Model& model, Graph& graph, const TypeInferer& inferer,
                           const FunctionProvider& functions)
    : model_(&model), graph_(&graph), inferer_(&inferer), functions_(&functions) {}

GraphBuilder GraphBuilder::inside(Graph& body) const {
  GraphBuilder inner = *this;
  inner.graph_ = &body;
  inner.constants_.clear();
  return inner;
}

GraphPtr GraphBuilder::subgraph(std::string_view name,
                                const std::function<std::vector<Value*>(GraphBuilder&)>& write) {
  auto body = std::make_shared<Graph>(graph_->names_ptr(), graph_);
  body->name = name;
  GraphBuilder inner = inside(*body);
  for (Value* output : write(inner)) {
    const bool is_own = output->graph == body.get() && output->producer != nullptr;
    body->outputs.push_back(is_own ? output : inner.identity(output));
  }
  return body;
}

std::string GraphBuilder::scoped(std::string_view hint) const {
  return scope_.empty() ? std::string(hint) : scope_ + "/" + std::string(hint);
}

std::vector<Value*> GraphBuilder::ops(std::string_view op_type, std::vector<Value*> inputs,
                                      std::size_t num_outputs, std::vector<Attribute> attributes,
                                      std::string_view domain) {
  while (!inputs.empty() && inputs.back() == nullptr) inputs.pop_back();
  Node* node = graph_->add_node(op_type, std::move(inputs), num_outputs, std::move(attributes),
                                domain, scoped(op_type));
  if (inferer_ != nullptr) inferer_->infer(*node);
  return node->outputs;
}

Value* GraphBuilder::op(std::string_view op_type, std::vector<Value*> inputs,
                        std::vector<Attribute> attributes, std::string_view domain) {
  return ops(op_type, std::move(inputs), 1, std::move(attributes), domain).front();
}

std::vector<Value*> GraphBuilder::call(std::string_view base_name, std::vector<Value*> inputs,
                                       std::size_t num_outputs, std::vector<Attribute> attributes) {
  ONNXGRAD_ASSERT(model_ != nullptr);
  Function function = functions_->specialise(base_name, inputs, attributes);
  const std::string name = function.name;
  if (model_->find_function(kFunctionDomain, name) == nullptr) {
    model_->functions.push_back(std::move(function));
    if (model_->opset(kFunctionDomain) == 0) model_->set_opset(kFunctionDomain, 1);
  }
  return ops(name, std::move(inputs), num_outputs, std::move(attributes), kFunctionDomain);
}

Value* GraphBuilder::make_constant(Tensor tensor, std::string_view hint) {
  if (model_ == nullptr) return op("Constant", {}, {attribute("value", std::move(tensor))});
  return graph_->add_initializer(scoped(hint), std::move(tensor));
}

Value* GraphBuilder::constant(Tensor tensor, std::string_view hint) {
  if (tensor.dtype() == DataType::kString || tensor.size_bytes() > kMaxSharedBytes) {
    return make_constant(std::move(tensor), hint);
  }
  std::string key = std::to_string(static_cast<int>(tensor.dtype())) + tensor.dims().to_string();
  key.append(reinterpret_cast<const char*>(tensor.raw()),
             static_cast<std::size_t>(tensor.size_bytes()));
  Value*& known = constants_[std::move(key)];
  if (known == nullptr) known = make_constant(std::move(tensor), hint);
  return known;
}

Value* GraphBuilder::ints(const std::vector<std::int64_t>& values) {
  return constant(Tensor::from(values, Dims{static_cast<std::int64_t>(values.size())}), "ints");
}

Value* GraphBuilder::int_scalar(std::int64_t value) {
  return constant(Tensor::scalar(value), "int");
}

Value* GraphBuilder::scalar_like(Value* like, double value) {
  switch (like->dtype()) {
    case DataType::kFloat32:
      return constant(Tensor::scalar(static_cast<float>(value)), "scalar");
    case DataType::kFloat64:
      return constant(Tensor::scalar(value), "scalar");
    case DataType::kInt64:
    case DataType::kInt32:
    case DataType::kFloat16:
    case DataType::kBfloat16:
      return constant(Tensor::scalar_of(like->dtype(), value), "scalar");
    default:
      return cast_like(constant(Tensor::scalar(value), "scalar"), like);
  }
}

Value* GraphBuilder::cast(Value* x, DataType dtype) {
  if (x->dtype() == dtype) return x;
  return op("Cast", {x}, {attribute("to", static_cast<std::int64_t>(dtype))});
}

Value* GraphBuilder::cast_like(Value* x, Value* like) {
  if (like->dtype() != DataType::kUndefined) return cast(x, like->dtype());
  return op("CastLike", {x, like});
}

Value* GraphBuilder::transpose(Value* x, const std::vector<std::int64_t>& perm) {
  if (std::ranges::is_sorted(perm)) return x;
  return op("Transpose", {x}, {attribute("perm", perm)});
}

Value* GraphBuilder::transpose_last(Value* x) {
  ONNXGRAD_ASSERT(x->type.has_rank() && x->type.rank() >= 2);
  std::vector<std::int64_t> perm(x->type.rank());
  std::iota(perm.begin(), perm.end(), 0);
  std::swap(perm[perm.size() - 1], perm[perm.size() - 2]);
  return transpose(x, perm);
}

Value* GraphBuilder::reshape(Value* x, Value* shape, bool allow_zero) {
  return op(
      "Reshape", {x, shape},
      allow_zero ? std::vector{attribute("allowzero", std::int64_t{1})} : std::vector<Attribute>{});
}

Value* GraphBuilder::reshape(Value* x, const std::vector<std::int64_t>& shape) {
  // allowzero and -1 exclude each other; without allowzero a 0 copies the input's dimension.
  const bool infers = std::ranges::find(shape, -1) != shape.end();
  return reshape(x, ints(shape), !infers);
}

Value* GraphBuilder::dims_of(Value* x, std::int64_t first, std::int64_t last) {
  return op("Shape", {x}, {attribute("start", first), attribute("end", last)});
}

Value* GraphBuilder::unsqueeze(Value* x, const std::vector<std::int64_t>& axes) {
  return axes.empty() ? x : op("Unsqueeze", {x, ints(axes)});
}

Value* GraphBuilder::squeeze(Value* x, const std::vector<std::int64_t>& axes) {
  return axes.empty() ? x : op("Squeeze", {x, ints(axes)});
}

Value* GraphBuilder::concat(const std::vector<Value*>& parts, std::int64_t axis) {
  return op("Concat", parts, {attribute("axis", axis)});
}

Value* GraphBuilder::gather(Value* data, Value* indices, std::int64_t axis) {
  return op("Gather", {data, indices}, {attribute("axis", axis)});
}

Value* GraphBuilder::slice(Value* x, const std::vector<std::int64_t>& starts,
                           const std::vector<std::int64_t>& ends,
                           const std::vector<std::int64_t>& axes) {
  return op("Slice", {x, ints(starts), ints(ends), ints(axes)});
}

namespace {

Value* reduce(GraphBuilder& g, std::string_view op_type, Value* x,
              const std::vector<std::int64_t>& axes, bool keepdims) {
  std::vector<Value*> inputs{x};
  if (!axes.empty()) inputs.push_back(g.ints(axes));
  return g.op(op_type, std::move(inputs),
              {attribute("keepdims", static_cast<std::int64_t>(keepdims))});
}

}  // namespace

Value* GraphBuilder::reduce_sum(Value* x, const std::vector<std::int64_t>& axes, bool keepdims) {
  return reduce(*this, "ReduceSum", x, axes, keepdims);
}

Value* GraphBuilder::reduce_mean(Value* x, const std::vector<std::int64_t>& axes, bool keepdims) {
  return reduce(*this, "ReduceMean", x, axes, keepdims);
}

Value* GraphBuilder::reduce_max(Value* x, const std::vector<std::int64_t>& axes, bool keepdims) {
  return reduce(*this, "ReduceMax", x, axes, keepdims);
}

Value* GraphBuilder::zeros_like(Value* x) {
  Value* zero = scalar_like(x, 0);
  if (const auto dims = x->type.static_dims()) {
    if (dims->rank() == 0) return zero;
    return expand(zero, ints({dims->begin(), dims->end()}));
  }
  return expand(zero, shape_of(x));
}

Value* GraphBuilder::ones_like(Value* x) {
  Value* one = scalar_like(x, 1);
  if (const auto dims = x->type.static_dims()) {
    if (dims->rank() == 0) return one;
    return expand(one, ints({dims->begin(), dims->end()}));
  }
  return expand(one, shape_of(x));
}

namespace {

// Axes of x to sum over so that it takes like's shape, if known from the types: the leading ones
// (which `like` lacks) and those where `like` has size 1.
struct SumAxes {
  std::vector<std::int64_t> leading;
  std::vector<std::int64_t> kept;
};

std::optional<SumAxes> static_sum_axes(const Type& x, const Type& like) {
  if (!x.shape || !like.shape || x.rank() < like.rank()) return std::nullopt;
  SumAxes axes;
  const std::size_t lead = x.rank() - like.rank();
  for (std::size_t i = 0; i < lead; ++i) axes.leading.push_back(static_cast<std::int64_t>(i));
  for (std::size_t i = 0; i < like.rank(); ++i) {
    const Dim& from = (*x.shape)[lead + i];
    const Dim& to = (*like.shape)[i];
    if (from.surely_equals(to)) continue;
    // An axis of length 1 is summed too if `like` has 1 there: this does no harm.
    if (to.is_static() && to.value() == 1) {
      axes.kept.push_back(static_cast<std::int64_t>(lead + i));
    } else if (!to.is_static()) {
      return std::nullopt;  // a symbol that may be 1 at run time
    }
  }
  return axes;
}

}  // namespace

Value* GraphBuilder::sum_to(Value* x, Value* like) {
  if (const auto axes = static_sum_axes(x->type, like->type)) {
    if (axes->leading.empty() && axes->kept.empty()) return x;
    if (axes->kept.empty()) return reduce_sum(x, axes->leading, false);
    if (axes->leading.empty()) return reduce_sum(x, axes->kept, true);
    std::vector<std::int64_t> all = axes->leading;
    all.insert(all.end(), axes->kept.begin(), axes->kept.end());
    return squeeze(reduce_sum(x, all, true), axes->leading);
  }
  // At run time: pad like's shape with ones to x's rank, then sum over the axes where it is 1.
  Value* x_shape = shape_of(x);
  Value* like_shape = shape_of(like);
  Value* x_rank = shape_of(x_shape);        // [1]
  Value* like_rank = shape_of(like_shape);  // [1]
  Value* ones = expand(int_scalar(1), sub(x_rank, like_rank));
  Value* padded = concat({ones, like_shape}, 0);
  Value* is_one = equal(padded, int_scalar(1));
  Value* axes = squeeze(op("NonZero", {is_one}), {0});
  Value* sums = op(
      "ReduceSum", {x, axes},
      {attribute("keepdims", std::int64_t{1}), attribute("noop_with_empty_axes", std::int64_t{1})});
  if (x->type.has_rank() && like->type.has_rank() && like->type.rank() <= x->type.rank()) {
    SymbolicShape shape(x->type.rank() - like->type.rank(), Dim(1));
    shape.insert(shape.end(), like->type.shape->begin(), like->type.shape->end());
    sums->type.shape = std::move(shape);
  }
  return reshape(sums, like_shape);
}

}  // namespace onnxgrad::ir
