#include "onnx/upgrade_rules.h"

#include <algorithm>
#include <limits>
#include <ranges>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "onnx/functions.h"
#include "onnx/removed_operators.h"
#include "onnx/rewriting.h"
#include "onnx/schemas.h"
#include "onnxgrad/error.h"

// One rule per change of form. A rule for version v takes a node as it was before v; several apply
// one after another. What a rule appends is already in the internal form.

namespace onnxgrad::onnx_io {
namespace {

using ir::GraphBuilder;
using ir::Node;
using ir::Value;

constexpr std::string_view kHalfPixelForNearest = "tf_half_pixel_for_nn";  // mode of Resize

[[noreturn]] void refuse_upgrade(const Node& node, std::string what) {
  throw ModelError({.what = std::move(what),
                    .where = {.node = node.name, .op_type = node.op_type},
                    .hint = "Export the model again with opset 18 or newer."});
}

void set_input(Node& node, std::size_t index, Value* value) {
  if (node.inputs.size() <= index) node.inputs.resize(index + 1, nullptr);
  node.inputs[index] = value;
}

// An attribute with a list of integers becomes input `index`; an absent or empty one no input.
void ints_to_input(Node& node, GraphBuilder& g, std::string_view name, std::size_t index) {
  const std::vector<std::int64_t> values = node.ints_attribute(name);
  node.remove_attribute(name);
  if (!values.empty()) set_input(node, index, g.ints(values));
}

Replacement axes_to_input(Node& node, GraphBuilder& g) {
  ints_to_input(node, g, "axes", 1);
  return std::nullopt;
}

Replacement unsqueeze_13(Node& node, GraphBuilder& g) {
  set_input(node, 1, g.ints(node.ints_attribute("axes")));
  node.remove_attribute("axes");
  return std::nullopt;
}

// Whether a BatchNormalization has more outputs than the first.
bool has_statistics(const Node& node) {
  return std::any_of(node.outputs.begin() + 1, node.outputs.end(),
                     [](const Value* value) { return value != nullptr; });
}

// With spatial = 0, scale, bias and statistics have the shape of a row: each element of a row is a
// channel of its own. Rows of rank 1 are the same in both forms.
Replacement batch_normalization_9(Node& node, GraphBuilder& g) {
  const bool is_spatial = node.int_attribute("spatial", 1) != 0;
  node.remove_attribute("spatial");
  const auto has_rank = [&](std::size_t i, std::size_t rank) {
    return node.inputs[i]->type.has_rank() && node.inputs[i]->type.rank() == rank;
  };
  if (is_spatial || has_rank(0, 2) || has_rank(1, 1)) return std::nullopt;
  Value* x = node.inputs[0];
  Value* row = g.dims_of(x, 1, std::numeric_limits<std::int64_t>::max());
  std::vector<Value*> inputs = {g.op("Flatten", {x}, {attribute("axis", std::int64_t{1})})};
  for (std::size_t i = 1; i < 5; ++i) {
    inputs.push_back(g.reshape(node.inputs[i], std::vector<std::int64_t>{-1}));
  }
  const bool is_training = has_statistics(node);
  std::vector<ir::Attribute> attributes = node.attributes;
  attributes.push_back(attribute("training_mode", std::int64_t{is_training ? 1 : 0}));
  std::vector<Value*> results =
      g.ops("BatchNormalization", std::move(inputs), is_training ? 3 : 1, std::move(attributes));
  results[0] = g.reshape(results[0], g.shape_of(x));
  for (std::size_t i = 1; i < results.size(); ++i) results[i] = g.reshape(results[i], row);
  results.resize(node.outputs.size(), nullptr);
  return results;
}

// Five outputs meant training mode; the last two were buffers for the backward pass.
Replacement batch_normalization_14(Node& node, GraphBuilder& g) {
  if (!has_statistics(node)) {
    node.outputs.resize(1);
    return std::nullopt;
  }
  std::vector<ir::Attribute> attributes = node.attributes;
  attributes.push_back(attribute("training_mode", std::int64_t{1}));
  std::vector<Value*> results = g.ops("BatchNormalization", node.inputs, 3, std::move(attributes));
  results.resize(node.outputs.size(), nullptr);  // saved_mean and saved_var: refused where read
  return results;
}

Replacement clip_11(Node& node, GraphBuilder& g) {
  constexpr float kMax = std::numeric_limits<float>::max();
  set_input(node, 1, g.scalar_like(node.inputs.at(0), node.float_attribute("min", -kMax)));
  set_input(node, 2, g.scalar_like(node.inputs.at(0), node.float_attribute("max", kMax)));
  node.remove_attribute("min");
  node.remove_attribute("max");
  return std::nullopt;
}

// The experimental operator: it takes statistics of each channel, or of all elements.
Replacement mean_variance_normalization_9(Node& node, GraphBuilder& g) {
  Value* x = node.inputs.at(0);
  if (!x->type.has_rank()) refuse_upgrade(node, "the rank of its input is not known");
  const bool is_across = node.int_attribute("across_channels", 0) != 0;
  const bool divides = node.int_attribute("normalize_variance", 1) != 0;
  node.remove_attribute("across_channels");
  node.remove_attribute("normalize_variance");
  std::vector<std::int64_t> axes;
  for (std::size_t axis = 0; axis < x->type.rank(); ++axis) {
    if (is_across || axis != 1) axes.push_back(static_cast<std::int64_t>(axis));
  }
  if (!divides) return std::vector<Value*>{g.sub(x, g.reduce_mean(x, axes, true))};
  node.set_attribute("axes", axes);
  return std::nullopt;
}

// The mask was of the data's type.
Replacement dropout_10(Node& node, GraphBuilder& g) {
  if (node.output(1) == nullptr) return std::nullopt;
  const std::vector<Value*> results = g.ops(
      "Dropout",
      {node.inputs.at(0), g.constant(Tensor::scalar(node.float_attribute("ratio", 0.5F)))}, 2);
  return std::vector<Value*>{results[0], g.op("CastLike", {results[1], node.inputs[0]})};
}

Replacement dropout_12(Node& node, GraphBuilder& g) {
  set_input(node, 1, g.constant(Tensor::scalar(node.float_attribute("ratio", 0.5F)), "ratio"));
  node.remove_attribute("ratio");
  return std::nullopt;
}

Replacement upsample_9(Node& node, GraphBuilder& g) {
  const std::vector<float> scales = node.floats_attribute("scales");
  node.remove_attribute("scales");
  set_input(
      node, 1,
      g.constant(Tensor::from(scales, Dims{static_cast<std::int64_t>(scales.size())}), "scales"));
  return std::nullopt;
}

Replacement upsample_10(Node& node, GraphBuilder& /*g*/) {
  node.op_type = "Resize";
  return std::nullopt;
}

// Resize-10, and Upsample before it, sampled at asymmetric positions; nearest rounded down when
// enlarging and up when shrinking, as in onnxruntime.
Replacement resize_11(Node& node, GraphBuilder& /*g*/) {
  const Value* scales = node.input(1);
  if (node.string_attribute("mode", "nearest") == "nearest") {
    std::string nearest = "floor";
    if (scales != nullptr && scales->is_initializer() &&
        scales->initializer.dtype() == DataType::kFloat32) {
      const auto values = scales->initializer.data<float>();
      const bool shrinks = std::ranges::any_of(values, [](float s) { return s < 1; });
      const bool enlarges = std::ranges::any_of(values, [](float s) { return s > 1; });
      if (shrinks && enlarges) refuse_upgrade(node, "it shrinks and enlarges at once");
      if (shrinks) nearest = "ceil";
    }
    node.set_attribute("nearest_mode", nearest);
  }
  node.set_attribute("coordinate_transformation_mode", std::string("asymmetric"));
  node.inputs.insert(node.inputs.begin() + 1, nullptr);
  return std::nullopt;
}

// Empty tensors meant absent roi and scales. The mode tf_half_pixel_for_nn, half a pixel after
// half_pixel, went: floor(x + 1/2) is round_prefer_ceil of x, and ceil(x + 1/2 - 1/2) its ceil.
Replacement resize_13(Node& node, GraphBuilder& /*g*/) {
  if (node.string_attribute("coordinate_transformation_mode", "") == kHalfPixelForNearest &&
      node.string_attribute("mode", "nearest") == "nearest") {
    const std::string nearest = node.string_attribute("nearest_mode", "round_prefer_floor");
    const bool is_floor = nearest == "floor";
    if (is_floor || nearest == "round_prefer_floor") {
      node.set_attribute("coordinate_transformation_mode", std::string("half_pixel"));
      node.set_attribute("nearest_mode", std::string(is_floor ? "round_prefer_ceil" : "ceil"));
    }
  }
  for (std::size_t i = 1; i < node.inputs.size(); ++i) {
    const Value* input = node.inputs[i];
    if (input != nullptr && input->is_initializer() && input->initializer.num_elements() == 0) {
      node.inputs[i] = nullptr;
    }
  }
  while (!node.inputs.empty() && node.inputs.back() == nullptr) node.inputs.pop_back();
  return std::nullopt;
}

// Before 13 the dimensions from `axis` on were merged.
Replacement softmax_13(Node& node, GraphBuilder& g) {
  Value* x = node.inputs.at(0);
  const std::int64_t axis = node.int_attribute("axis", 1);
  if (x->type.has_rank()) {
    const auto rank = static_cast<std::int64_t>(x->type.rank());
    if (axis == rank - 1 || axis == -1) {
      node.set_attribute("axis", std::int64_t{-1});
      return std::nullopt;
    }
  }
  Value* rows = g.op("Flatten", {x}, {attribute("axis", axis)});
  Value* y = g.op(node.op_type, {rows}, {attribute("axis", std::int64_t{-1})});
  return std::vector<Value*>{g.reshape(y, g.shape_of(x))};
}

Replacement split_13(Node& node, GraphBuilder& g) {
  ints_to_input(node, g, "split", 1);
  return std::nullopt;
}

Replacement split_18(Node& node, GraphBuilder& /*g*/) {
  if (node.input(1) == nullptr) {
    node.set_attribute("num_outputs", static_cast<std::int64_t>(node.outputs.size()));
  }
  return std::nullopt;
}

Replacement slice_10(Node& node, GraphBuilder& g) {
  set_input(node, 1, g.ints(node.ints_attribute("starts")));
  set_input(node, 2, g.ints(node.ints_attribute("ends")));
  node.remove_attribute("starts");
  node.remove_attribute("ends");
  ints_to_input(node, g, "axes", 3);
  return std::nullopt;
}

Replacement topk_10(Node& node, GraphBuilder& g) {
  set_input(node, 1, g.ints({node.int_attribute("k", 0)}));
  node.remove_attribute("k");
  return std::nullopt;
}

Replacement pad_11(Node& node, GraphBuilder& g) {
  const float value = node.float_attribute("value", 0);
  set_input(node, 1, g.ints(node.ints_attribute("pads")));
  if (node.string_attribute("mode", "constant") == "constant") {
    set_input(node, 2, g.scalar_like(node.inputs.at(0), value));
  }
  node.remove_attribute("pads");
  node.remove_attribute("value");
  return std::nullopt;
}

Replacement scatter_11(Node& node, GraphBuilder& /*g*/) {
  node.op_type = "ScatterElements";
  return std::nullopt;
}

// The first `length` rows of x in reverse order, then the others.
Value* reverse_rows(GraphBuilder& g, Value* x, Value* length) {
  Value* count = g.squeeze(g.dims_of(x, 0, 1), {0});
  Value* place = g.op("Range", {g.int_scalar(0), count, g.int_scalar(1)});
  Value* mirrored = g.sub(g.sub(length, g.int_scalar(1)), place);
  return g.gather(x, g.where(g.less(place, length), mirrored, place), 0);
}

// The body of a Scan of opset 8, in a Scan over the steps of one example. `rows`: the example's
// states, then what it scans. `length`: how many steps it has, those behind it give zeros and leave
// the states as they are; nullptr: all.
std::vector<Value*> scan_example(GraphBuilder& g, const Node& node, const ir::Graph& body,
                                 const std::vector<Value*>& rows, Value* length) {
  const auto num_scanned = static_cast<std::size_t>(node.int_attribute("num_scan_inputs", 0));
  const std::size_t num_states = rows.size() - num_scanned;
  const ir::GraphPtr step = g.subgraph(body.name + "_step", [&](GraphBuilder& inner) {
    ir::Graph& graph = inner.graph();
    const ir::Type scalar = ir::Type::tensor(DataType::kInt64, Dims{});
    Value* number = length == nullptr ? nullptr : graph.add_input("number", scalar);
    std::unordered_map<const Value*, Value*> map;
    for (const Value* formal : body.inputs) {
      map[formal] = graph.add_input(formal->name, formal->type);
    }
    ir::append_nodes(body, graph, map);
    std::vector<Value*> results;
    Value* is_there = length == nullptr ? nullptr : inner.less(number, length);
    if (length != nullptr) results.push_back(inner.add(number, inner.int_scalar(1)));
    for (std::size_t i = 0; i < body.outputs.size(); ++i) {
      Value* result = map.at(body.outputs[i]);
      if (length != nullptr) {
        Value* other = i < num_states ? map.at(body.inputs[i]) : inner.zeros_like(result);
        result = inner.where(is_there, result, other);
      }
      results.push_back(result);
    }
    return results;
  });
  std::vector<Value*> inputs = rows;
  if (length != nullptr) inputs.insert(inputs.begin(), g.int_scalar(0));
  std::vector<ir::Attribute> attributes = {
      attribute("body", step),
      attribute("num_scan_inputs", static_cast<std::int64_t>(num_scanned))};
  std::vector<std::int64_t> directions = node.ints_attribute("directions");
  for (std::size_t k = 0; length != nullptr && k < directions.size(); ++k) {
    if (directions[k] == 0) continue;
    Value*& row = inputs.at(1 + num_states + k);
    row = reverse_rows(g, row, length);
    directions[k] = 0;
  }
  if (!directions.empty()) attributes.push_back(attribute("scan_input_directions", directions));
  const std::size_t extra = length == nullptr ? 0 : 1;
  std::vector<Value*> results =
      g.ops("Scan", std::move(inputs), body.outputs.size() + extra, std::move(attributes));
  results.erase(results.begin(), results.begin() + static_cast<std::ptrdiff_t>(extra));
  return results;
}

// Scan of opset 8 has a batch axis before all others, and lengths: a Scan over the examples.
Replacement scan_9(Node& node, GraphBuilder& g) {
  const ir::AttributeValue* attribute_value = node.find_attribute("body");
  const auto* body = attribute_value ? std::get_if<ir::GraphPtr>(attribute_value) : nullptr;
  const auto num_scanned = node.int_attribute("num_scan_inputs", 0);
  if (body == nullptr || num_scanned < 1 || node.inputs.size() != (*body)->inputs.size() + 1 ||
      static_cast<std::size_t>(num_scanned) >= node.inputs.size() ||
      node.outputs.size() != (*body)->outputs.size()) {
    refuse_upgrade(node, "its inputs, outputs and body do not fit");
  }
  const std::vector<Value*> operands(node.inputs.begin() + 1, node.inputs.end());
  Value* lengths = node.inputs[0];
  const auto without_first = [](const Value* value) {
    ir::Type type = value->type;
    if (type.shape && !type.shape->empty()) type.shape->erase(type.shape->begin());
    return type;
  };
  const ir::GraphPtr example = g.subgraph((*body)->name + "_example", [&](GraphBuilder& inner) {
    std::vector<Value*> rows;
    for (const Value* operand : operands) {
      rows.push_back(inner.graph().add_input(operand->name, without_first(operand)));
    }
    Value* length = nullptr;
    if (lengths != nullptr) {
      length = inner.graph().add_input(lengths->name, ir::Type::tensor(DataType::kInt64, Dims{}));
    }
    return scan_example(inner, node, **body, rows, length);
  });
  std::vector<Value*> inputs = operands;
  if (lengths != nullptr) inputs.push_back(lengths);
  const auto count = static_cast<std::int64_t>(inputs.size());
  return g.ops("Scan", std::move(inputs), node.outputs.size(),
               {attribute("body", example), attribute("num_scan_inputs", count)});
}

Replacement roi_align_16(Node& node, GraphBuilder& /*g*/) {
  node.set_attribute("coordinate_transformation_mode", std::string("output_half_pixel"));
  return std::nullopt;
}

Replacement grid_sample_20(Node& node, GraphBuilder& /*g*/) {
  const std::string mode = node.string_attribute("mode", "bilinear");
  if (mode == "bilinear") node.set_attribute("mode", std::string("linear"));
  if (mode == "bicubic") node.set_attribute("mode", std::string("cubic"));
  return std::nullopt;
}

Replacement dft_20(Node& node, GraphBuilder& g) {
  set_input(node, 2, g.int_scalar(node.int_attribute("axis", 1)));
  node.remove_attribute("axis");
  return std::nullopt;
}

// scale and bias were per group: [G] becomes [C] with each element C / G times. Statistics were of
// the type of X; now they are float32 unless an attribute says otherwise.
Replacement group_normalization_21(Node& node, GraphBuilder& g) {
  const std::int64_t groups = node.int_attribute("num_groups", 0);
  if (groups < 1) refuse_upgrade(node, "num_groups is " + std::to_string(groups));
  Value* channels = g.op("Shape", {node.inputs.at(0)},
                         {attribute("start", std::int64_t{1}), attribute("end", std::int64_t{2})});
  Value* size = g.div(channels, g.ints({groups}));
  for (const std::size_t i : {std::size_t{1}, std::size_t{2}}) {
    Value* columns = g.unsqueeze(node.inputs.at(i), {1});
    Value* repeated = g.expand(columns, g.concat({g.ints({groups}), size}, 0));
    node.inputs[i] = g.reshape(repeated, std::vector<std::int64_t>{-1});
  }
  if (node.inputs.at(0)->dtype() == DataType::kFloat64) {
    node.set_attribute("stash_type", std::int64_t{11});  // double
  }
  return std::nullopt;
}

// float16 and bfloat16 ranges introduced an accumulation type; others are unchanged.
Replacement remove_stash_type(Node& node, GraphBuilder& /*g*/) {
  node.remove_attribute("stash_type");
  return std::nullopt;
}

// Mode CRD, the inverse of DepthToSpace's: [N, C, H, W] as [N, C, H / b, b, W / b, b] becomes
// [N, C, b, b, H / b, W / b].
Replacement space_to_depth_28(Node& node, GraphBuilder& g) {
  const std::string mode = node.string_attribute("mode", "DCR");
  node.remove_attribute("mode");
  if (mode == "DCR") return std::nullopt;
  Value* x = node.inputs.at(0);
  const std::int64_t b = node.int_attribute("blocksize", 0);
  if (b < 1) refuse_upgrade(node, "blocksize is " + std::to_string(b));
  Value* block = g.ints({b});
  Value* channels = g.dims_of(x, 1, 2);
  Value* height = g.div(g.dims_of(x, 2, 3), block);
  Value* width = g.div(g.dims_of(x, 3, 4), block);
  Value* batch = g.dims_of(x, 0, 1);
  Value* blocks = g.reshape(x, g.concat({batch, channels, height, block, width, block}, 0));
  Value* depth = g.mul(channels, g.ints({b * b}));
  return {{g.reshape(g.transpose(blocks, {0, 1, 3, 5, 2, 4}),
                     g.concat({batch, depth, height, width}, 0))}};
}

// Shifts of signed integers by shifts of unsigned ones. A shift to the right copies the sign bit:
// of a negative x it is ~(~x >> y). An amount outside of [0, bits) leaves copies of the sign bit,
// or 0.
Replacement bit_shift_28(Node& node, GraphBuilder& g) {
  Value* x = node.inputs.at(0);
  const DataType dtype = x->dtype();
  DataType bits = DataType::kUndefined;
  if (dtype == DataType::kInt8) bits = DataType::kUint8;
  if (dtype == DataType::kInt16) bits = DataType::kUint16;
  if (dtype == DataType::kInt32) bits = DataType::kUint32;
  if (dtype == DataType::kInt64) bits = DataType::kUint64;
  if (bits == DataType::kUndefined) return std::nullopt;
  const auto as = [&](Value* value, DataType to) {
    return g.op("BitCast", {value}, {attribute("to", static_cast<std::int64_t>(to))});
  };
  const std::string direction = node.string_attribute("direction", "");
  const bool is_right = direction == "RIGHT";
  Value* y = node.inputs.at(1);
  Value* zero = g.scalar_like(x, 0);
  Value* last = g.scalar_like(x, static_cast<double>(Dims{}.size_bytes(dtype) * 8 - 1));
  Value* is_out = g.op("Or", {g.less(y, zero), g.greater(y, last)});
  Value* is_negative = is_right ? g.less(x, zero) : nullptr;
  const auto flipped = [&](Value* value) {
    return g.where(is_negative, g.op("BitwiseNot", {value}), value);
  };
  Value* shifted =
      g.op("BitShift", {as(is_right ? flipped(x) : x, bits), as(g.where(is_out, zero, y), bits)},
           {attribute("direction", direction)});
  Value* z = g.where(is_out, zero, as(shifted, dtype));
  return std::vector<Value*>{is_right ? flipped(z) : z};
}

}  // namespace

std::optional<std::vector<Value*>> in_float32(const Node& node, GraphBuilder& g, bool if_refused) {
  const Schema* schema = find_schema("", node.op_type, ir::kInternalOpset);
  if (schema == nullptr) return std::nullopt;
  const auto is_other = [](const Value* value) {
    return value != nullptr && !value->type.is_tensor() &&
           value->type.kind != ir::Type::Kind::kUnknown;
  };
  if (std::ranges::any_of(node.inputs, is_other)) return std::nullopt;
  // Sequences and optionals hold 16-bit types.
  for (std::size_t i = 0; i < node.outputs.size(); ++i) {
    const Parameter* parameter = schema->output(i);
    if (parameter == nullptr || parameter->takes_others) return std::nullopt;
  }
  std::vector<DataType> stored(schema->num_constraints(), DataType::kUndefined);
  std::vector<Value*> inputs = node.inputs;
  bool is_any = false;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Parameter* parameter = schema->input(i);
    if (inputs[i] == nullptr || parameter == nullptr || parameter->constraint < 0) continue;
    const DataType dtype = inputs[i]->dtype();
    if (!is_f16(dtype) || !parameter->takes(DataType::kFloat32)) continue;
    if (if_refused && parameter->takes(dtype)) continue;
    stored[static_cast<std::size_t>(parameter->constraint)] = dtype;
    inputs[i] = g.cast(inputs[i], DataType::kFloat32);
    is_any = true;
  }
  if (!is_any) return std::nullopt;
  for (std::size_t i = 0; i < node.outputs.size(); ++i) {
    // Refuses outputs whose type an attribute or another operand gives (DequantizeLinear).
    const Parameter* parameter = schema->output(i);
    const bool is_bound =
        parameter->constraint < 0 ||
        std::ranges::any_of(
            std::views::iota(std::size_t{0}, node.inputs.size()),
            [&](auto input) { return schema->input(input)->constraint == parameter->constraint; });
    if (!is_bound && parameter->takes(DataType::kFloat16)) return std::nullopt;
  }
  std::vector<Value*> results =
      g.ops(node.op_type, std::move(inputs), node.outputs.size(), node.attributes);
  for (std::size_t i = 0; i < results.size(); ++i) {
    const Parameter* parameter = schema->output(i);
    if (parameter == nullptr || parameter->constraint < 0 || results[i] == nullptr) continue;
    const DataType dtype = stored[static_cast<std::size_t>(parameter->constraint)];
    if (dtype != DataType::kUndefined) results[i] = g.cast(results[i], dtype);
  }
  return results;
}

namespace {

// The first opset with the new form.
constexpr RewriteRule kUpgradeRules[] = {
    {"BatchNormalization", 9, batch_normalization_9},
    {"BatchNormalization", 14, batch_normalization_14},
    {"Clip", 11, clip_11},
    {"DFT", 20, dft_20},
    {"Dropout", 10, dropout_10},
    {"Dropout", 12, dropout_12},
    {"GridSample", 20, grid_sample_20},
    {"GroupNormalization", 21, group_normalization_21},
    {"Hardmax", 13, softmax_13},
    {"LogSoftmax", 13, softmax_13},
    {"MeanVarianceNormalization", 9, mean_variance_normalization_9},
    {"Pad", 11, pad_11},
    {"ReduceL1", 18, axes_to_input},
    {"ReduceL2", 18, axes_to_input},
    {"ReduceLogSum", 18, axes_to_input},
    {"ReduceLogSumExp", 18, axes_to_input},
    {"ReduceMax", 18, axes_to_input},
    {"ReduceMean", 18, axes_to_input},
    {"ReduceMin", 18, axes_to_input},
    {"ReduceProd", 18, axes_to_input},
    {"ReduceSum", 13, axes_to_input},
    {"ReduceSumSquare", 18, axes_to_input},
    {"Resize", 11, resize_11},
    {"Resize", 13, resize_13},
    {"RoiAlign", 16, roi_align_16},
    {"Scan", 9, scan_9},
    {"Scatter", 11, scatter_11},
    {"Slice", 10, slice_10},
    {"Softmax", 13, softmax_13},
    {"Split", 13, split_13},
    {"Split", 18, split_18},
    {"Squeeze", 13, axes_to_input},
    {"TopK", 10, topk_10},
    {"Unsqueeze", 13, unsqueeze_13},
    {"Upsample", 9, upsample_9},
    {"Upsample", 10, upsample_10},
};

// Changes of opsets above ours that only some nodes use.
constexpr RewriteRule kNewerRules[] = {
    {"BitShift", 28, bit_shift_28},
    {"Range", 27, remove_stash_type},
    {"SpaceToDepth", 28, space_to_depth_28},
};

void refuse_references(const Node& node) {
  for (const ir::Attribute& a : node.attributes) {
    if (std::holds_alternative<ir::AttributeRef>(a.value)) {
      refuse_upgrade(node, "attribute '" + a.name + "' is a reference that no call has set");
    }
  }
}

}  // namespace

std::optional<std::vector<Value*>> upgrade_node(Node& node, std::int64_t opset, GraphBuilder& g) {
  if (opset > ir::kInternalOpset) {
    for (const RewriteRule& rule : kNewerRules) {
      if (node.op_type != rule.op_type || opset < rule.opset) continue;
      if (Replacement replacement = rule.apply(node, g)) return replacement;
    }
    return in_float32(node, g, /*if_refused=*/true);
  }
  // In order of versions, since a rule may change the node's operator.
  for (std::int64_t version = opset + 1; version <= ir::kInternalOpset; ++version) {
    for (const RewriteRule& rule : kUpgradeRules) {
      if (rule.opset != version || node.op_type != rule.op_type) continue;
      refuse_references(node);
      if (Replacement replacement = rule.apply(node, g)) return replacement;
      break;
    }
  }
  for (const RewriteRule& rule : removed_operator_rules()) {
    if (node.op_type != rule.op_type || opset >= rule.opset) continue;
    refuse_references(node);
    if (Replacement replacement = rule.apply(node, g)) return replacement;
    break;
  }
  return std::nullopt;
}

}  // namespace onnxgrad::onnx_io
