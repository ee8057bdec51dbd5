#include "onnx/downgrade_rules.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "onnx/downgrading.h"
#include "onnx/functions.h"
#include "onnx/known_values.h"
#include "onnx/rewriting.h"
#include "onnx/schemas.h"
#include "onnxgrad/error.h"

// One rule per change of form, newest first. What a rule cannot express in the older form is
// refused; the check against the older schema that follows finds nodes without a
// necessary rule.

namespace onnxgrad::onnx_io {

using ir::GraphBuilder;
using ir::Node;
using ir::Value;

void refuse_downgrade(const Node& node, const std::string& what) {
  throw ModelError({.what = what + ", which the target opset cannot express",
                    .where = {.graph = node.graph == nullptr ? "" : node.graph->name,
                              .node = node.name,
                              .op_type = node.op_type},
                    .hint = "Choose a newer target opset."});
}

std::vector<std::int64_t> constant_ints(const Node& node, std::size_t input, const char* what) {
  const auto numbers = known_ints(node.input(input));
  if (!numbers) refuse_downgrade(node, std::string(what) + " that are not constant");
  return *numbers;
}

std::size_t known_rank(const Node& node, std::size_t input) {
  const Value* x = node.input(input);
  if (x == nullptr || !x->type.has_rank()) refuse_downgrade(node, "an input of unknown rank");
  return x->type.rank();
}

namespace {

double constant_number(const Node& node, std::size_t input, const char* what) {
  const Tensor* tensor = constant_of(node.input(input));
  if (tensor == nullptr || tensor->num_elements() != 1) {
    refuse_downgrade(node, std::string(what) + " that is not constant");
  }
  return tensor->to_doubles().front();
}

void erase_input(Node& node, std::size_t index) {
  if (node.inputs.size() > index) node.inputs[index] = nullptr;
  while (!node.inputs.empty() && node.inputs.back() == nullptr) node.inputs.pop_back();
}

// Whether each axis of x is summed over, bool [rank], where GraphBuilder::sum_to compares shapes at
// run time: the axes are the places of the true elements of a list.
Value* chosen_axes(const Node& node) {
  const Node* squeeze = node.inputs[1]->producer;
  if (squeeze == nullptr || squeeze->op_type != "Squeeze") return nullptr;
  const Node* places = squeeze->inputs.at(0)->producer;
  const bool is_found = places != nullptr && places->op_type == "NonZero";
  return is_found ? places->inputs.at(0) : nullptr;
}

// ReduceSum over axes that are known at run time: an If for each axis whose size may change.
Replacement reduce_chosen_axes(Node& node, GraphBuilder& g, Value* is_chosen) {
  const std::size_t rank = known_rank(node);
  if (node.int_attribute("keepdims", 1) == 0) refuse_downgrade(node, "axes that are not constant");
  Value* y = node.inputs[0];
  for (std::size_t i = 0; i < rank; ++i) {
    const auto axis = static_cast<std::int64_t>(i);
    const std::string name = node.op_type + "_" + std::to_string(i);
    const ir::Dim& before = (*node.inputs[0]->type.shape)[i];
    const ir::Type& result = node.outputs[0]->type;
    const ir::Dim after = result.has_rank() ? (*result.shape)[i] : ir::Dim();
    const bool is_kept = after.is_static() && after.value() != 1;
    if (is_kept || before.surely_equals(after)) continue;  // or a sum of one element
    if (before.is_static() && after.is_static()) {
      y = g.op(node.op_type, {y, g.ints({axis})});
      continue;
    }
    Value* const x = y;
    const ir::GraphPtr sum = g.subgraph(name + "_sum", [&](GraphBuilder& inner) {
      return std::vector<Value*>{inner.op(node.op_type, {x, inner.ints({axis})})};
    });
    const ir::GraphPtr same = g.subgraph(
        name + "_same", [&](GraphBuilder& inner) { return std::vector{inner.identity(x)}; });
    y = g.op("If", {g.squeeze(g.gather(is_chosen, g.ints({axis}), 0), {0})},
             {attribute("then_branch", sum), attribute("else_branch", same)});
  }
  return {{y}};
}

Replacement reduce_axes(Node& node, GraphBuilder& g) {
  if (node.input(1) == nullptr) {
    if (node.int_attribute("noop_with_empty_axes", 0) == 0) return std::nullopt;
    const bool keeps = node.op_type == "ReduceSum" || node.op_type == "ReduceMean" ||
                       node.op_type == "ReduceMax" || node.op_type == "ReduceMin" ||
                       node.op_type == "ReduceProd";
    if (!keeps) refuse_downgrade(node, "noop_with_empty_axes");
    return std::vector<Value*>{g.identity(node.inputs[0])};
  }
  const bool is_known = known_ints(node.input(1)).has_value();
  if (Value* is_chosen = is_known ? nullptr : chosen_axes(node)) {
    return reduce_chosen_axes(node, g, is_chosen);
  }
  const std::vector<std::int64_t> axes = constant_ints(node, 1, "axes");
  erase_input(node, 1);
  if (axes.empty()) return reduce_axes(node, g);
  node.remove_attribute("noop_with_empty_axes");
  node.set_attribute("axes", axes);
  return std::nullopt;
}

Replacement axes_to_attribute(Node& node, GraphBuilder& /*g*/) {
  if (node.input(1) == nullptr) return std::nullopt;
  node.set_attribute("axes", constant_ints(node, 1, "axes"));
  erase_input(node, 1);
  return std::nullopt;
}

// Without num_outputs the parts must be equal; else the sizes are computed, the last one smaller.
Replacement split_17(Node& node, GraphBuilder& g) {
  if (node.find_attribute("num_outputs") == nullptr) return std::nullopt;
  const auto count = static_cast<std::int64_t>(node.outputs.size());
  const std::int64_t axis = node.int_attribute("axis", 0);
  node.remove_attribute("num_outputs");
  Value* x = node.inputs.at(0);
  if (x->type.has_rank()) {
    const auto i = static_cast<std::size_t>(normalize_axis(axis, x->type.rank()));
    const ir::Dim& dim = (*x->type.shape)[i];
    if (dim.is_static() && dim.value() % count == 0) return std::nullopt;
  }
  std::vector<ir::Attribute> only_axis = {attribute("start", axis)};
  if (axis != -1) only_axis.push_back(attribute("end", axis + 1));
  Value* size = g.op("Shape", {x}, std::move(only_axis));
  Value* part = g.div(g.add(size, g.ints({count - 1})), g.ints({count}));
  std::vector<Value*> sizes(static_cast<std::size_t>(count) - 1, part);
  sizes.push_back(g.sub(size, g.mul(part, g.ints({count - 1}))));
  return g.ops("Split", {x, g.concat(sizes, 0)}, node.outputs.size(), {attribute("axis", axis)});
}

Replacement split_12(Node& node, GraphBuilder& /*g*/) {
  if (node.input(1) == nullptr) return std::nullopt;
  node.set_attribute("split", constant_ints(node, 1, "sizes"));
  erase_input(node, 1);
  return std::nullopt;
}

Replacement pad_18(Node& node, GraphBuilder& /*g*/) {
  if (node.string_attribute("mode", "constant") == "wrap") refuse_downgrade(node, "mode wrap");
  return std::nullopt;
}

// Refuses pads of some axes: with known rank and axes, portable_form has made them pads of all
// axes.
Replacement pad_17(Node& node, GraphBuilder& /*g*/) {
  if (node.input(3) == nullptr) return std::nullopt;
  constant_ints(node, 3, "axes");
  known_rank(node);
  refuse_downgrade(node, "pads that do not match the axes");
}

Replacement pad_10(Node& node, GraphBuilder& /*g*/) {
  node.set_attribute("pads", constant_ints(node, 1, "pads"));
  if (node.input(2) != nullptr) {
    node.set_attribute("value", static_cast<float>(constant_number(node, 2, "a value")));
  }
  node.inputs.resize(1);
  return std::nullopt;
}

Replacement scatter_17(Node& node, GraphBuilder& /*g*/) {
  const std::string reduction = node.string_attribute("reduction", "none");
  if (reduction == "max" || reduction == "min") refuse_downgrade(node, "reduction " + reduction);
  return std::nullopt;
}

Replacement scatter_10(Node& node, GraphBuilder& /*g*/) {
  node.op_type = "Scatter";
  return std::nullopt;
}

// Before 16 there was one mode, and it is no longer the default.
Replacement roi_align_15(Node& node, GraphBuilder& /*g*/) {
  const std::string mode = node.string_attribute("coordinate_transformation_mode", "half_pixel");
  if (mode != "output_half_pixel") refuse_downgrade(node, "mode " + mode);
  node.remove_attribute("coordinate_transformation_mode");
  return std::nullopt;
}

Replacement grid_sample_19(Node& node, GraphBuilder& /*g*/) {
  const std::string mode = node.string_attribute("mode", "linear");
  if (mode == "linear") node.set_attribute("mode", std::string("bilinear"));
  if (mode == "cubic") node.set_attribute("mode", std::string("bicubic"));
  return std::nullopt;
}

Replacement dft_19(Node& node, GraphBuilder& /*g*/) {
  std::int64_t axis = -2;
  if (node.input(2) != nullptr) {
    axis = static_cast<std::int64_t>(constant_number(node, 2, "an axis"));
    erase_input(node, 2);
  }
  node.set_attribute("axis", normalize_axis(axis, known_rank(node)));
  return std::nullopt;
}

// Older pools have dilations of 1.
Replacement remove_unit_dilations(Node& node, GraphBuilder& /*g*/) {
  for (const std::int64_t dilation : node.ints_attribute("dilations")) {
    if (dilation != 1) refuse_downgrade(node, "dilations");
  }
  node.remove_attribute("dilations");
  return std::nullopt;
}

// A 0 in the shape copied the dimension of the input. Where a shape is computed, its zeros are
// those of the input, in the same places: other tensors without elements are an error when they are
// run.
Replacement reshape_13(Node& node, GraphBuilder& g) {
  if (node.int_attribute("allowzero", 0) == 0) return std::nullopt;
  node.remove_attribute("allowzero");
  const auto shape = known_ints(node.input(1));
  if (!shape || std::ranges::find(*shape, 0) == shape->end()) return std::nullopt;
  const Value* x = node.inputs.at(0);
  for (std::size_t i = 0; i < shape->size(); ++i) {
    const bool is_same = x->type.has_rank() && i < x->type.rank() &&
                         (*x->type.shape)[i].is_static() && (*x->type.shape)[i].value() == 0;
    if ((*shape)[i] != 0 || is_same) continue;
    if (!x->type.is_tensor() || x->dtype() == DataType::kString) {
      refuse_downgrade(node, "a dimension of 0");
    }
    return {{g.op("ConstantOfShape", {g.ints(*shape)},
                  {attribute("value", Tensor::zeros(x->dtype(), {1}))})}};
  }
  return std::nullopt;
}

Replacement shape_14(Node& node, GraphBuilder& g) {
  constexpr std::int64_t kEnd = std::numeric_limits<std::int64_t>::max();
  const std::int64_t start = node.int_attribute("start", 0);
  const std::int64_t end = node.int_attribute("end", kEnd);
  if (start == 0 && end == kEnd) return std::nullopt;
  return std::vector<Value*>{g.slice(g.shape_of(node.inputs.at(0)), {start}, {end}, {0})};
}

Replacement cast_like_14(Node& node, GraphBuilder& g) {
  const Value* like = node.inputs.at(1);
  if (like == nullptr || like->dtype() == DataType::kUndefined) refuse_downgrade(node, "CastLike");
  return std::vector<Value*>{
      g.op("Cast", {node.inputs[0]}, {attribute("to", static_cast<std::int64_t>(like->dtype()))})};
}

// Before 13 the dimensions from `axis` on were merged, so the axis must be the last.
Replacement softmax_12(Node& node, GraphBuilder& g) {
  const auto rank = static_cast<std::int64_t>(known_rank(node));
  const std::int64_t axis = normalize_axis(node.int_attribute("axis", -1), known_rank(node));
  if (axis == rank - 1) {
    node.set_attribute("axis", axis);
    return std::nullopt;
  }
  std::vector<std::int64_t> swapped(static_cast<std::size_t>(rank));
  std::iota(swapped.begin(), swapped.end(), 0);
  std::swap(swapped[static_cast<std::size_t>(axis)], swapped.back());
  Value* y = g.op(node.op_type, {g.transpose(node.inputs[0], swapped)},
                  {attribute("axis", std::int64_t{-1})});
  return std::vector<Value*>{g.transpose(y, swapped)};
}

// A mask, all true here, was at first of the data's type, and meaningless.
Replacement dropout_11(Node& node, GraphBuilder& g) {
  if (node.input(2) != nullptr && constant_number(node, 2, "a training mode") != 0) {
    refuse_downgrade(node, "training mode");
  }
  if (node.output(1) != nullptr) {
    Value* x = node.inputs.at(0);
    return std::vector<Value*>{g.identity(x), g.cast(g.ones_like(x), DataType::kBool)};
  }
  if (node.input(1) != nullptr) {
    node.set_attribute("ratio", static_cast<float>(constant_number(node, 1, "a ratio")));
  }
  node.remove_attribute("seed");
  node.inputs.resize(1);
  return std::nullopt;
}

Replacement clip_10(Node& node, GraphBuilder& /*g*/) {
  const char* const names[] = {"min", "max"};
  for (const std::size_t i : {std::size_t{1}, std::size_t{2}}) {
    if (node.input(i) == nullptr) continue;
    node.set_attribute(names[i - 1], static_cast<float>(constant_number(node, i, "a bound")));
  }
  node.inputs.resize(1);
  return std::nullopt;
}

// Every step-th element along an axis, as a Gather.
Replacement gather_steps(const Node& node, GraphBuilder& g, std::span<const std::int64_t> steps) {
  const std::vector<std::int64_t> starts = constant_ints(node, 1, "starts");
  const std::vector<std::int64_t> ends = constant_ints(node, 2, "ends");
  const std::size_t rank = known_rank(node);
  Value* y = node.inputs[0];
  std::vector<std::int64_t> axes(starts.size());
  std::iota(axes.begin(), axes.end(), 0);
  if (node.input(3) != nullptr) axes = constant_ints(node, 3, "axes");
  for (std::size_t i = 0; i < starts.size(); ++i) {
    const std::int64_t axis = normalize_axis(axes.at(i), rank);
    const ir::Dim& dim = (*node.inputs[0]->type.shape)[static_cast<std::size_t>(axis)];
    if (!dim.is_static()) refuse_downgrade(node, "steps along an axis of unknown length");
    const std::int64_t length = dim.value();
    const std::int64_t step = steps[i];
    const auto clamped = [&](std::int64_t place) {
      if (place < 0) place += length;
      return step > 0 ? std::clamp<std::int64_t>(place, 0, length)
                      : std::clamp<std::int64_t>(place, -1, length - 1);
    };
    const std::int64_t first = clamped(starts[i]);
    const std::int64_t end = ends.at(i) < -length ? (step > 0 ? 0 : -1) : clamped(ends[i]);
    std::vector<std::int64_t> places;
    for (std::int64_t place = first; step > 0 ? place < end : place > end; place += step) {
      places.push_back(place);
    }
    y = g.gather(y, g.ints(places), axis);
  }
  return {{y}};
}

Replacement slice_9(Node& node, GraphBuilder& g) {
  if (node.input(4) != nullptr) {
    const std::vector<std::int64_t> steps = constant_ints(node, 4, "steps");
    if (std::ranges::any_of(steps, [](std::int64_t s) { return s != 1; })) {
      return gather_steps(node, g, steps);
    }
  }
  if (!known_ints(node.input(1)) || !known_ints(node.input(2))) return slice_9_computed(node, g);
  node.set_attribute("starts", constant_ints(node, 1, "starts"));
  node.set_attribute("ends", constant_ints(node, 2, "ends"));
  if (node.input(3) != nullptr) node.set_attribute("axes", constant_ints(node, 3, "axes"));
  node.inputs.resize(1);
  return std::nullopt;
}

Replacement topk_9(Node& node, GraphBuilder& /*g*/) {
  node.set_attribute("k", constant_ints(node, 1, "a number k").at(0));
  erase_input(node, 1);
  return std::nullopt;
}

// Constant nodes of functions.
Replacement constant_11(Node& node, GraphBuilder& /*g*/) {
  for (ir::Attribute& a : node.attributes) {
    Tensor tensor;
    if (const auto* i = std::get_if<std::int64_t>(&a.value)) {
      tensor = Tensor::scalar(*i);
    } else if (const auto* f = std::get_if<float>(&a.value)) {
      tensor = Tensor::scalar(*f);
    } else if (const auto* is = std::get_if<std::vector<std::int64_t>>(&a.value)) {
      tensor = Tensor::from(*is, Dims{static_cast<std::int64_t>(is->size())});
    } else if (const auto* fs = std::get_if<std::vector<float>>(&a.value)) {
      tensor = Tensor::from(*fs, Dims{static_cast<std::int64_t>(fs->size())});
    } else {
      continue;
    }
    a = attribute("value", std::move(tensor));
  }
  return std::nullopt;
}

// The newest opset that needs the older form.
constexpr RewriteRule kDowngradeRules[] = {
    {"AveragePool", 18, remove_unit_dilations},
    {"BatchNormalization", 13, batch_normalization_13},
    {"CastLike", 14, cast_like_14},
    {"Clip", 10, clip_10},
    {"Constant", 11, constant_11},
    {"CumSum", 10, cumsum_10},
    {"DFT", 19, dft_19},
    {"DequantizeLinear", 22, dequantize_22},
    {"DequantizeLinear", 20, quantize_20},
    {"DequantizeLinear", 12, quantize_12},
    {"Dropout", 11, dropout_11},
    {"Equal", 10, equal_10},
    {"GatherElements", 10, gather_elements_10},
    {"GatherND", 10, gather_nd_10},
    {"Gemm", 10, gemm_10},
    {"GridSample", 19, grid_sample_19},
    {"Hardmax", 12, softmax_12},
    {"IsInf", 9, is_inf_9},
    {"LogSoftmax", 12, softmax_12},
    {"LpPool", 17, remove_unit_dilations},
    {"Max", 11, extremum_11},
    {"MaxPool", 9, remove_unit_dilations},
    {"Min", 11, extremum_11},
    {"Mod", 9, mod_9},
    {"OneHot", 10, one_hot_10},
    {"Pad", 18, pad_18},
    {"Pad", 17, pad_17},
    {"Pad", 10, pad_10},
    {"QuantizeLinear", 22, quantize_22},
    {"QuantizeLinear", 20, quantize_20},
    {"QuantizeLinear", 12, quantize_12},
    {"Range", 10, range_10},
    {"ReduceL1", 17, reduce_axes},
    {"ReduceL2", 17, reduce_axes},
    {"ReduceLogSum", 17, reduce_axes},
    {"ReduceLogSumExp", 17, reduce_axes},
    {"ReduceMax", 17, reduce_axes},
    {"ReduceMean", 17, reduce_axes},
    {"ReduceMin", 17, reduce_axes},
    {"ReduceProd", 17, reduce_axes},
    {"ReduceSum", 12, reduce_axes},
    {"ReduceSumSquare", 17, reduce_axes},
    {"Reshape", 13, reshape_13},
    {"Resize", 18, resize_18},
    {"Resize", 17, resize_17},
    {"Resize", 12, resize_12},
    {"Resize", 10, resize_10},
    {"Resize", 9, resize_9},
    {"RoiAlign", 15, roi_align_15},
    {"Round", 10, round_10},
    {"ScatterElements", 17, scatter_17},
    {"ScatterElements", 15, scatter_elements_15},
    {"ScatterElements", 10, scatter_10},
    {"ScatterND", 17, scatter_17},
    {"ScatterND", 15, scatter_nd_15},
    {"ScatterND", 10, scatter_nd_10},
    {"Shape", 14, shape_14},
    {"Slice", 9, slice_9},
    {"Softmax", 12, softmax_12},
    {"Split", 17, split_17},
    {"Split", 12, split_12},
    {"Squeeze", 12, axes_to_attribute},
    {"TopK", 9, topk_9},
    {"Trilu", 13, trilu_13},
    {"Unsqueeze", 12, axes_to_attribute},
};

bool equals_default(const ir::AttributeValue& value, const onnx::AttributeProto& fallback) {
  using onnx::AttributeProto;
  if (attribute_type(value) != fallback.type()) return false;
  if (const auto* i = std::get_if<std::int64_t>(&value)) return *i == fallback.i();
  if (const auto* f = std::get_if<float>(&value)) return *f == fallback.f();
  if (const auto* s = std::get_if<std::string>(&value)) return *s == fallback.s();
  return false;
}

// Later attributes that spell out what was always the case.
void remove_new_defaults(Node& node, std::int64_t opset) {
  const Schema* now = find_schema("", node.op_type, ir::kInternalOpset);
  const Schema* then = find_schema("", node.op_type, opset);
  if (now == nullptr || then == nullptr || now == then) return;
  std::erase_if(node.attributes, [&](const ir::Attribute& a) {
    if (then->op().attributes().contains(a.name)) return false;
    const auto found = now->op().attributes().find(a.name);
    return found != now->op().attributes().end() &&
           equals_default(a.value, found->second.default_value);
  });
}

}  // namespace

std::optional<std::vector<Value*>> downgrade_node(Node& node, std::int64_t opset, GraphBuilder& g) {
  // A rule may change the node's operator; the rules of the old one have been applied by then.
  for (const RewriteRule& rule : kDowngradeRules) {
    if (node.op_type != rule.op_type || opset > rule.opset) continue;
    for (const ir::Attribute& a : node.attributes) {
      if (std::holds_alternative<ir::AttributeRef>(a.value)) {
        refuse_downgrade(node, "attribute '" + a.name + "' that refers to the function's");
      }
    }
    if (Replacement replacement = rule.apply(node, g)) return replacement;
  }
  remove_new_defaults(node, opset);
  return std::nullopt;
}

}  // namespace onnxgrad::onnx_io
