#include "onnx/downgrade_rules.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>

#include "onnx/functions.h"
#include "onnx/known_values.h"
#include "onnx/rewriting.h"
#include "onnx/schemas.h"
#include "onnxgrad/error.h"

// One rule per change of form, newest first. What a rule cannot express in the older form is
// refused; the check against the older schema that follows finds nodes without a
// necessary rule.

namespace onnxgrad::onnx_io {
namespace {

using ir::GraphBuilder;
using ir::Node;
using ir::Value;

[[noreturn]] void refuse_downgrade(const Node& node, const std::string& what) {
  throw ModelError({.what = what + ", which the target opset cannot express",
                    .where = {.node = node.name, .op_type = node.op_type},
                    .hint = "Choose a newer target opset."});
}

std::vector<std::int64_t> constant_ints(const Node& node, std::size_t input, const char* what) {
  const auto numbers = known_ints(node.input(input));
  if (!numbers) refuse_downgrade(node, std::string(what) + " that are not constant");
  return *numbers;
}

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

std::size_t known_rank(const Node& node) {
  const Value* x = node.input(0);
  if (x == nullptr || !x->type.has_rank()) refuse_downgrade(node, "an input of unknown rank");
  return x->type.rank();
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

// Where rank and axes are known, portable_form has made the pads those of all axes.
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

Replacement resize_18(Node& node, GraphBuilder& /*g*/) {
  if (node.string_attribute("coordinate_transformation_mode", "") == "half_pixel_symmetric") {
    refuse_downgrade(node, "half_pixel_symmetric");
  }
  return std::nullopt;
}

// Scales and sizes of some axes become those of all axes.
Replacement resize_17(Node& node, GraphBuilder& g) {
  const std::vector<std::int64_t> axes = node.ints_attribute("axes");
  node.remove_attribute("axes");
  if (axes.empty()) return std::nullopt;
  const std::size_t rank = known_rank(node);
  if (node.input(1) != nullptr) refuse_downgrade(node, "a region of interest of some axes");
  const Tensor* scales = constant_of(node.input(2));
  if (scales == nullptr) refuse_downgrade(node, "axes with sizes");
  const std::vector<double> some = scales->to_doubles();
  if (some.size() != axes.size()) refuse_downgrade(node, "scales that do not match the axes");
  std::vector<float> all(rank, 1.0F);
  for (std::size_t i = 0; i < axes.size(); ++i) {
    all[static_cast<std::size_t>(normalize_axis(axes[i], rank))] = static_cast<float>(some[i]);
  }
  node.inputs[2] = g.constant(Tensor::from(all, Dims{static_cast<std::int64_t>(rank)}), "scales");
  return std::nullopt;
}

// roi and scales must be present; empty ones mean absent ones.
Replacement resize_12(Node& node, GraphBuilder& g) {
  node.inputs.resize(std::max<std::size_t>(node.inputs.size(), 3), nullptr);
  for (const std::size_t i : {std::size_t{1}, std::size_t{2}}) {
    if (node.inputs[i] == nullptr) {
      node.inputs[i] = g.constant(Tensor::zeros(DataType::kFloat32, {0}), "empty");
    }
  }
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

Replacement resize_10(Node& node, GraphBuilder& /*g*/) {
  refuse_downgrade(node, "Resize with coordinate modes");
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

Replacement reshape_13(Node& node, GraphBuilder& /*g*/) {
  if (node.int_attribute("allowzero", 0) == 0) return std::nullopt;
  const std::vector<std::int64_t> shape = constant_ints(node, 1, "zero dimensions");
  if (std::ranges::find(shape, 0) != shape.end()) refuse_downgrade(node, "a dimension of 0");
  node.remove_attribute("allowzero");
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

Replacement slice_9(Node& node, GraphBuilder& /*g*/) {
  if (node.input(4) != nullptr) {
    const std::vector<std::int64_t> steps = constant_ints(node, 4, "steps");
    if (std::ranges::any_of(steps, [](std::int64_t s) { return s != 1; }))
      refuse_downgrade(node, "steps");
  }
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
    {"CastLike", 14, cast_like_14},
    {"Clip", 10, clip_10},
    {"Constant", 11, constant_11},
    {"DFT", 19, dft_19},
    {"Dropout", 11, dropout_11},
    {"GridSample", 19, grid_sample_19},
    {"Hardmax", 12, softmax_12},
    {"LogSoftmax", 12, softmax_12},
    {"LpPool", 17, remove_unit_dilations},
    {"MaxPool", 9, remove_unit_dilations},
    {"Pad", 18, pad_18},
    {"Pad", 17, pad_17},
    {"Pad", 10, pad_10},
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
    {"RoiAlign", 15, roi_align_15},
    {"ScatterElements", 17, scatter_17},
    {"ScatterElements", 10, scatter_10},
    {"ScatterND", 17, scatter_17},
    {"Shape", 14, shape_14},
    {"Slice", 9, slice_9},
    {"Softmax", 12, softmax_12},
    {"Split", 17, split_17},
    {"Split", 12, split_12},
    {"Squeeze", 12, axes_to_attribute},
    {"TopK", 9, topk_9},
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
