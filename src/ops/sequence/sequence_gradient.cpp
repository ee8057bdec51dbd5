#include "ops/sequence/sequence_gradient.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "onnxgrad/error.h"
#include "opdef/gradient_type.h"
#include "opdef/random_stream.h"
#include "ops/rules.h"

namespace onnxgrad::ops::sequence_op {
namespace {

using Values = std::vector<Value*>;

// Returns a builder that adds nodes next to the primal node, for values computed from the sequences
// themselves, so that the gradient of a body reads tensors only.
GraphBuilder beside(VjpContext& ctx, GraphBuilder& g) { return g.inside(*ctx.node().graph); }

// Returns `at` + `shift` if `at` is negative, else `at`; constants are folded.
Value* shift_if_negative(GraphBuilder& g, Value* at, std::int64_t shift) {
  if (const auto given = constant_int(at)) {
    constexpr std::int64_t kFarthest = std::numeric_limits<std::int64_t>::min() + 1;
    return *given < 0 ? g.int_scalar(std::max(*given, kFarthest) + shift) : at;
  }
  Value* place = g.cast(at, DataType::kInt64);
  return g.where(g.less(place, g.int_scalar(0)), g.add(place, g.int_scalar(shift)), place);
}

Value* empty_sequence(GraphBuilder& g, DataType dtype) {
  return g.op("SequenceEmpty", {}, {{"dtype", static_cast<std::int64_t>(dtype)}});
}

// Returns zeros of the shape of `x` with no rows along `axis` or, with `drops_axis`, without that
// axis.
Value* filler(GraphBuilder& g, Value* x, std::int64_t axis, bool drops_axis) {
  constexpr std::int64_t kEnd = std::numeric_limits<std::int64_t>::max();
  Value* shape = g.shape_of(x);
  Values dims = {g.slice(shape, {0}, {axis}, {0})};
  if (!drops_axis) dims.push_back(g.ints({0}));
  if (axis != -1) dims.push_back(g.slice(shape, {axis + 1}, {kEnd}, {0}));
  Value* own = dims.size() == 1 ? dims.front() : g.concat(dims, 0);
  const Tensor zero = Tensor::zeros(opdef::gradient_dtype(x->dtype()), Dims{1});
  return g.op("ConstantOfShape", {own}, {{"value", zero}});
}

}  // namespace

// da_i = ds[i].
Values sequence_construct_vjp(VjpContext& ctx, GraphBuilder& g) {
  Values gradients(ctx.num_inputs(), nullptr);
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (!ctx.needs(i)) continue;
    gradients[i] =
        g.op("SequenceAt", {ctx.cotangent(0), g.int_scalar(static_cast<std::int64_t>(i))});
  }
  return gradients;
}

// ds = [0, ..., dy at the position, ..., 0].
Values sequence_at_vjp(VjpContext& ctx, GraphBuilder& g) {
  return {opdef::element_gradient(g, ctx.input(0), ctx.input(1), ctx.cotangent(0))};
}

// dx = dy[p], ds = dy without element p. A negative position, counted from the end of s, is one
// less in y; without a position x is the last element.
Values sequence_insert_vjp(VjpContext& ctx, GraphBuilder& g) {
  Value* dy = ctx.cotangent(0);
  Value* at = ctx.input(2) == nullptr ? nullptr : shift_if_negative(g, ctx.input(2), -1);
  Values gradients(ctx.num_inputs(), nullptr);
  if (ctx.needs(0)) gradients[0] = g.op("SequenceErase", {dy, at});
  if (ctx.needs(1)) {
    gradients[1] = g.op("SequenceAt", {dy, at == nullptr ? g.int_scalar(-1) : at});
  }
  return gradients;
}

// ds = dy with zeros inserted for the erased element.
Values sequence_erase_vjp(VjpContext& ctx, GraphBuilder& g) {
  Value* dy = ctx.cotangent(0);
  Value* at = ctx.input(1);
  const auto given = at == nullptr ? std::optional<std::int64_t>(-1) : constant_int(at);
  GraphBuilder primal = beside(ctx, g);
  Value* erased =
      primal.op("SequenceAt", {ctx.input(0), at == nullptr ? primal.int_scalar(-1) : at});
  Value* zero = opdef::zero_gradient(g, erased);
  if (given) {
    // Position -1 is the end, -2 is before the last remaining element, and so on.
    const std::int64_t place = *given;
    Value* before = place == -1  ? nullptr
                    : place < -1 ? g.int_scalar(place + 1)
                                 : g.int_scalar(place);
    return {g.op("SequenceInsert", {dy, zero, before})};
  }
  Value* place = g.cast(at, DataType::kInt64);
  Value* size = g.add(g.op("SequenceLength", {dy}), g.int_scalar(1));
  Value* from_start = g.where(g.less(place, g.int_scalar(0)), g.add(place, size), place);
  return {g.op("SequenceInsert", {dy, zero, from_start})};
}

// ds = dy split at the sizes of the elements.
Values concat_from_sequence_vjp(VjpContext& ctx, GraphBuilder& g) {
  const std::int64_t axis = ctx.node().int_attribute("axis");
  if (ctx.node().int_attribute("new_axis") == 1) {
    return {g.op("SplitToSequence", {ctx.cotangent(0)},
                 {{"axis", axis}, {"keepdims", std::int64_t{0}}})};
  }
  GraphBuilder primal = beside(ctx, g);
  const auto& known = ctx.input(0)->type.element;
  const auto type = ir::Type::tensor(known ? known->dtype : DataType::kUndefined);
  ir::GraphPtr body = primal.subgraph("sizes", [&](GraphBuilder& inner) {
    Value* element = inner.graph().add_input("element", type);
    Value* shape = inner.shape_of(element);
    return Values{inner.gather(shape, inner.ints({axis}), 0)};
  });
  Value* sizes = primal.op("SequenceMap", {ctx.input(0)}, {{"body", std::move(body)}});
  Value* joined = primal.op("ConcatFromSequence", {sizes}, {{"axis", std::int64_t{0}}});
  return {g.op("SplitToSequence", {ctx.cotangent(0), joined}, {{"axis", axis}})};
}

// dx = the concatenated elements of ds. If ds may be empty, an element without rows is added.
Values split_to_sequence_vjp(VjpContext& ctx, GraphBuilder& g) {
  Value* x = ctx.input(0);
  const std::int64_t axis = ctx.node().int_attribute("axis");
  const bool drops_axis = ctx.input(1) == nullptr && ctx.node().int_attribute("keepdims") == 0;
  const std::int64_t new_axis = drops_axis ? 1 : 0;
  Value* parts = ctx.cotangent(0);
  const bool may_be_empty = !x->type.has_rank() || known_dim(x, axis).value_or(0) == 0;
  if (may_be_empty) {
    parts = g.op("SequenceInsert", {parts, filler(g, x, axis, drops_axis)});
  }
  Value* joined = g.op("ConcatFromSequence", {parts}, {{"axis", axis}, {"new_axis", new_axis}});
  if (may_be_empty && drops_axis) joined = g.slice(joined, {0}, {-1}, {axis});
  return {joined};
}

namespace {

// Gradient of a SequenceMap: a Loop over the positions. An iteration recomputes the body for its
// elements; it appends to the gradients of sequences and adds to those of tensors.
class MapGradient {
 public:
  MapGradient(VjpContext& ctx, GraphBuilder& g)
      : ctx_(ctx),
        g_(g),
        node_(ctx.node()),
        body_(*std::get<ir::GraphPtr>(*node_.find_attribute("body"))),
        sources_(node_.inputs) {
    const Values captured = ir::captured_values(node_);
    sources_.insert(sources_.end(), captured.begin(), captured.end());
  }

  Values run() {
    Values initial;
    for (std::size_t i = 0; i < sources_.size(); ++i) {
      if (!ctx_.needs(i)) continue;
      wanted_.push_back(i);
      initial.push_back(is_mapped(i) ? empty_sequence(g_, element_dtype(i))
                                     : opdef::zero_gradient(g_, sources_[i]));
    }
    Values gradients(sources_.size(), nullptr);
    if (wanted_.empty()) return gradients;
    ir::GraphPtr step = write_step(initial);
    GraphBuilder inner = g_.inside(*step);
    ctx_.carry(inner, body_, [&](Value* value) { return operand(inner, value); });
    check_draws(*step);
    Values inputs = {g_.op("SequenceLength", {node_.input(0)}), nullptr};
    inputs.insert(inputs.end(), initial.begin(), initial.end());
    const Values results = g_.ops("Loop", std::move(inputs), initial.size(), {{"body", step}});
    for (std::size_t k = 0; k < wanted_.size(); ++k) gradients[wanted_[k]] = results[k];
    return gradients;
  }

 private:
  // Returns true if each iteration has its own element of input `i`.
  bool is_mapped(std::size_t i) const {
    return i < node_.inputs.size() && sources_[i]->type.kind == ir::Type::Kind::kSequence;
  }

  DataType element_dtype(std::size_t i) const {
    return opdef::gradient_dtype(body_.inputs.at(i)->dtype());
  }

  ir::GraphPtr write_step(const Values& initial) {
    return g_.subgraph(g_.graph().names().unique(body_.name + "_grad"), [&](GraphBuilder& inner) {
      position_ = inner.graph().add_input("position", ir::Type::tensor(DataType::kInt64, Dims{}));
      Value* goes_on =
          inner.graph().add_input("goes_on", ir::Type::tensor(DataType::kBool, Dims{}));
      Values so_far;
      for (const Value* value : initial) {
        so_far.push_back(inner.graph().add_input("so_far", value->type));
      }
      Values results;
      Values seeds;
      for (std::size_t o = 0; o < node_.outputs.size(); ++o) {
        if (ctx_.cotangent(o) == nullptr) continue;
        results.push_back(body_.outputs.at(o));
        seeds.push_back(inner.op("SequenceAt", {ctx_.cotangent(o), position_}));
        seeds.back()->type = opdef::gradient_type(results.back()->type);
      }
      Values wrt;
      for (const std::size_t i : wanted_) {
        wrt.push_back(i < node_.inputs.size() ? body_.inputs.at(i) : sources_[i]);
      }
      const Values own = ctx_.differentiate(inner, body_, results, seeds, wrt);
      Values outputs = {inner.identity(goes_on)};
      for (std::size_t k = 0; k < wanted_.size(); ++k) {
        outputs.push_back(is_mapped(wanted_[k]) ? inner.op("SequenceInsert", {so_far[k], own[k]})
                                                : opdef::add_gradients(inner, so_far[k], own[k]));
      }
      return outputs;
    });
  }

  // Returns the value of a body input in this iteration; nullptr for a value to recompute.
  Value* operand(GraphBuilder& inner, const Value* value) const {
    const auto found = std::ranges::find(body_.inputs, value);
    if (found == body_.inputs.end()) return nullptr;
    const auto i = static_cast<std::size_t>(found - body_.inputs.begin());
    if (!is_mapped(i)) return sources_[i];
    Value* element = inner.op("SequenceAt", {sources_[i], position_});
    element->type = value->type;
    return element;
  }

  // Refuses bodies with random numbers: the gradient would generate different ones.
  void check_draws(const ir::Graph& graph) const {
    for (const Node* node : graph.nodes) {
      if (opdef::draws_like_another(*node)) {
        throw GradientError({.what = "random numbers of " + node->op_type +
                                     " in a SequenceMap cannot be generated again",
                             .where = {.node = node_.name, .op_type = node_.op_type},
                             .hint = "Generate the random numbers before the node."});
      }
      for (const ir::Graph* inner : node->subgraphs()) check_draws(*inner);
    }
  }

  VjpContext& ctx_;
  GraphBuilder& g_;
  const Node& node_;
  ir::Graph& body_;
  Values sources_;  // inputs and captured values
  std::vector<std::size_t> wanted_;
  Value* position_ = nullptr;
};

}  // namespace

Values sequence_map_vjp(VjpContext& ctx, GraphBuilder& g) { return MapGradient(ctx, g).run(); }

}  // namespace onnxgrad::ops::sequence_op
