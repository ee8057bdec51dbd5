#include "ops/loss/cross_entropy.h"

#include <string>
#include <utility>

#include "opdef/function_body.h"
#include "opdef/registry.h"
#include "ops/rules.h"

// SoftmaxCrossEntropyLoss (ai.onnx 13), NegativeLogLikelihoodLoss (ai.onnx 22) and the functions of
// their gradients. Rows are all positions except the class axis 1: scores [N, C, D...], labels [N,
// D...].
//   p = softmax(scores),  loss of a row i = -w[label_i] * log p[i, label_i],  0 for ignored rows
//   reduced by: nothing; the sum; or the sum divided by the sum of the rows' weights w[label_i].

namespace onnxgrad::ops {

CrossEntropyAttrs CrossEntropyAttrs::read(const Node& node) {
  CrossEntropyAttrs attrs;
  const std::string reduction = node.string_attribute("reduction");
  if (reduction == "none") attrs.reduction = Reduction::kNone;
  if (reduction == "sum") attrs.reduction = Reduction::kSum;
  if (node.find_attribute("ignore_index") != nullptr) {
    attrs.ignore_index = node.int_attribute("ignore_index");
  }
  return attrs;
}

}  // namespace onnxgrad::ops

namespace onnxgrad::ops::cross_entropy_op {
namespace {

std::vector<Value*> operands(Value* dloss, Value* rows, Value* labels, Value* weights) {
  std::vector<Value*> inputs{dloss, rows, labels};
  if (weights != nullptr) inputs.push_back(weights);
  return inputs;
}

// Returns true for the rows that are ignored; nullptr if there is no ignore_index.
Value* ignored_rows(GraphBuilder& g, const CrossEntropyAttrs& attrs, Value* labels) {
  if (!attrs.ignore_index) return nullptr;
  return g.equal(labels, g.cast_like(g.int_scalar(*attrs.ignore_index), labels));
}

// Gradient of the class weights. With `rows` = log p or the input of NegativeLogLikelihoodLoss and
// n_i = -rows[i, label_i]:
//   dw[c] = sum of dloss_i n_i over the rows i of class c that are not ignored.
// For the mean, L = sum(w_i n_i) / W with W = sum(w_i) over those rows, and dloss_i n_i becomes
//   dloss (n_i - L) / W.
Value* class_weight_gradient(VjpContext& ctx, GraphBuilder& g, Value* rows) {
  const CrossEntropyAttrs attrs = CrossEntropyAttrs::read(ctx.node());
  Value* dloss = ctx.cotangent(0);
  Value* weights = ctx.input(2);
  Value* labels = ctx.input(1);
  Value* ignored = ignored_rows(g, attrs, labels);
  if (ignored != nullptr) labels = g.where(ignored, g.scalar_like(labels, 0), labels);
  Value* picked = g.op("GatherElements", {rows, g.unsqueeze(labels, {1})},
                       {{.name = "axis", .value = std::int64_t{1}}});
  Value* part = g.neg(g.squeeze(picked, {1}));
  if (ignored != nullptr) part = drop_where(g, ignored, part);
  if (attrs.reduction == Reduction::kMean) {
    Value* row_weights = g.gather(weights, labels, 0);
    if (ignored != nullptr) row_weights = drop_where(g, ignored, row_weights);
    Value* total = g.reduce_sum(row_weights, {}, /*keepdims=*/false);
    part = g.div(g.sub(part, ctx.output(0)), total);
    if (ignored != nullptr) part = drop_where(g, ignored, part);
  }
  return add_at_positions(g, labels, g.mul(part, dloss), weights);
}

// d scores = (p - onehot) * factor_i of dloss (see grad_body), plus, for a cotangent v of the
// second output log p: v - p * sum(v over classes).
std::vector<Value*> softmax_cross_entropy_vjp(VjpContext& ctx, GraphBuilder& g) {
  Value* log_prob = ctx.require_output(1);
  Value* grad = nullptr;
  Value* dloss = ctx.needs(0) ? ctx.cotangent(0) : nullptr;
  if (dloss != nullptr) {
    grad =
        g.call("SoftmaxCrossEntropyLossGrad", operands(dloss, log_prob, ctx.input(1), ctx.input(2)),
               1, ctx.node().attributes)[0];
  }
  if (Value* v = ctx.cotangent(1)) {
    Value* sum = g.reduce_sum(v, {1}, /*keepdims=*/true);
    Value* through = g.sub(v, g.mul(g.exp(log_prob), sum));
    grad = grad == nullptr ? through : g.add(grad, through);
  }
  std::vector<Value*> grads(ctx.num_inputs(), nullptr);
  grads[0] = grad;
  if (ctx.needs(2) && ctx.cotangent(0) != nullptr) {
    grads[2] = class_weight_gradient(ctx, g, log_prob);
  }
  return grads;
}

// d input = -onehot * factor_i of dloss (see grad_body).
std::vector<Value*> negative_log_likelihood_vjp(VjpContext& ctx, GraphBuilder& g) {
  std::vector<Value*> grads(ctx.num_inputs(), nullptr);
  if (ctx.needs(0)) {
    grads[0] = g.call("NegativeLogLikelihoodLossGrad",
                      operands(ctx.cotangent(0), ctx.input(0), ctx.input(1), ctx.input(2)), 1,
                      ctx.node().attributes)[0];
  }
  if (ctx.needs(2)) grads[2] = class_weight_gradient(ctx, g, ctx.input(0));
  return grads;
}

std::string grad_key(const CrossEntropyAttrs& attrs, bool has_weights) {
  std::string key = attrs.reduction == Reduction::kNone  ? "none"
                    : attrs.reduction == Reduction::kSum ? "sum"
                                                         : "mean";
  if (attrs.ignore_index) {
    key += "_ignore_" + opdef::key_of(std::vector<std::int64_t>{*attrs.ignore_index});
  }
  return has_weights ? key + "_weighted" : key;
}

// Returns the weight of each row, [N, D...]; nullptr if all are 1.
Value* row_weights(FunctionBody& f, Value* like, Value* labels, Value* ignored, Value* weights) {
  Value* rows = nullptr;
  if (weights != nullptr) {
    rows = f.op("Gather", {weights, labels}, {{.name = "axis", .value = std::int64_t{0}}});
  }
  if (ignored == nullptr) return rows;
  if (rows == nullptr) return f.op("CastLike", {f.op("Not", {ignored}), like});
  return f.op("Where", {ignored, f.scalar_like(like, 0), rows});
}

// Gradient of the scores as a function of (dloss, rows, labels) or (dloss, rows, labels, weights),
// where rows is log p or the input of NegativeLogLikelihoodLoss (only its shape is read):
//   (p - onehot) * factor  or  -onehot * factor,  with factor_i = dloss_i * w_i;
// for the mean, dloss is divided by the sum of all w_i.
ir::Function grad_body(std::string_view base_name, const std::vector<Value*>& inputs,
                       const std::vector<Attribute>& attributes) {
  Node node;
  node.attributes = attributes;
  const CrossEntropyAttrs attrs = CrossEntropyAttrs::read(node);
  const bool is_softmax = base_name == "SoftmaxCrossEntropyLossGrad";
  const bool has_weights = inputs.size() > 3 && inputs[3] != nullptr;
  FunctionBody f(base_name, grad_key(attrs, has_weights), attributes);
  Value* dloss = f.input("dloss");
  Value* rows = f.input(is_softmax ? "log_prob" : "input");
  Value* labels = f.input("labels");
  Value* weights = has_weights ? f.input("weights") : nullptr;

  Value* ignored = nullptr;
  if (attrs.ignore_index) {
    ignored =
        f.op("Equal", {labels, f.op("CastLike", {f.int_scalar(*attrs.ignore_index), labels})});
    labels = f.op("Where", {ignored, f.op("CastLike", {f.int_scalar(0), labels}), labels});
    if (is_softmax) {  // ignored rows have gradient 0 even if their scores are NaN
      rows = f.op("Where", {f.unsqueeze(ignored, {1}), f.scalar_like(rows, 0), rows});
    }
  }
  // onnxruntime has OneHot only for int64 classes and float32 values.
  Value* classes = f.op("CastLike", {labels, f.int_scalar(0)});
  Value* off_on = f.constant(Tensor::from(std::vector<float>{0, 1}, {2}));
  Value* onehot = f.op("CastLike", {f.op("OneHot", {classes, f.dims_of(rows, 1, 2), off_on},
                                         {{.name = "axis", .value = std::int64_t{1}}}),
                                    rows});

  Value* row_weight = row_weights(f, rows, labels, ignored, weights);
  Value* factor = dloss;
  if (attrs.reduction == Reduction::kMean) {
    Value* total = row_weight == nullptr ? f.op("CastLike", {f.op("Size", {labels}), rows})
                                         : f.op("ReduceSum", {row_weight},
                                                {{.name = "keepdims", .value = std::int64_t{0}}});
    factor = f.div(dloss, total);
  }
  if (row_weight != nullptr) factor = f.mul(row_weight, factor);
  const bool is_per_row = row_weight != nullptr || attrs.reduction == Reduction::kNone;
  if (is_per_row) factor = f.unsqueeze(factor, {1});

  Value* direction = is_softmax ? f.sub(f.op("Exp", {rows}), onehot) : f.op("Neg", {onehot});
  return std::move(f).finish({f.mul(direction, factor)});
}

std::vector<AttributeSpec> attribute_specs() {
  return {{.name = "ignore_index", .type = AttributeType::kInt},
          choice_attribute("reduction", {"mean", "none", "sum"})};
}

}  // namespace

void register_cross_entropy(opdef::OpRegistry& registry) {
  registry.add({.op_type = "SoftmaxCrossEntropyLoss",
                .since_version = 13,
                .differentiable_inputs = {0, 2},
                .attributes = attribute_specs(),
                .vjp = softmax_cross_entropy_vjp});
  registry.add({.op_type = "NegativeLogLikelihoodLoss",
                .since_version = 22,
                .differentiable_inputs = {0, 2},
                .attributes = attribute_specs(),
                .vjp = negative_log_likelihood_vjp});
  // The gradient functions have no rule: second derivatives go through their bodies.
  registry.add({.domain = ir::kFunctionDomain,
                .op_type = "SoftmaxCrossEntropyLossGrad",
                .attributes = attribute_specs(),
                .function_body = grad_body});
  registry.add({.domain = ir::kFunctionDomain,
                .op_type = "NegativeLogLikelihoodLossGrad",
                .attributes = attribute_specs(),
                .function_body = grad_body});
}

}  // namespace onnxgrad::ops::cross_entropy_op
