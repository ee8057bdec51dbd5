#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "onnx/downgrading.h"
#include "onnx/known_values.h"
#include "onnxgrad/error.h"

namespace onnxgrad::onnx_io {
namespace {

using ir::GraphBuilder;
using ir::Node;
using ir::Value;

// A row of `values` as a tensor that broadcasts along axis 1 of x.
Value* along_channels(GraphBuilder& g, Value* values, std::size_t rank) {
  std::vector<std::int64_t> shape(rank, 1);
  shape.at(1) = -1;
  return g.reshape(values, shape);
}

// An input of one number per named axis as one of numbers for all axes: `rest[i]`, int64 or float
// [1], for those that are not named.
Value* for_all_axes(GraphBuilder& g, Value* some, const std::vector<std::int64_t>& axes,
                    const std::vector<Value*>& rest, std::int64_t offset = 0) {
  std::vector<Value*> parts = rest;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const std::int64_t at = offset + static_cast<std::int64_t>(i);
    const auto axis = static_cast<std::size_t>(normalize_axis(axes[i], rest.size()));
    parts[axis] = g.slice(some, {at}, {at + 1}, {0});
  }
  return g.concat(parts, 0);
}

bool is_absent(const Value* value) {
  if (value == nullptr) return true;
  const Tensor* tensor = constant_of(value);
  return tensor != nullptr && tensor->num_elements() == 0;
}

// Whether nearest_mode and the scales are those of Resize before 11: down where it enlarges, up
// where it shrinks.
bool rounds_as_before_11(const Node& node) {
  const Tensor* scales = constant_of(node.input(2));
  if (scales == nullptr) return false;
  const std::vector<double> numbers = scales->to_doubles();
  const bool shrinks = std::ranges::any_of(numbers, [](double s) { return s < 1; });
  const bool enlarges = std::ranges::any_of(numbers, [](double s) { return s > 1; });
  if (shrinks && enlarges) return false;
  const std::string mode = node.string_attribute("nearest_mode", "round_prefer_floor");
  return (mode == "floor" && !shrinks) || (mode == "ceil" && !enlarges);
}

bool has_one_scale(const Node& node) {
  const Value* scale = node.input(1);
  if (scale == nullptr || !scale->type.has_rank()) return false;
  const auto dims = scale->type.static_dims();
  return scale->type.rank() == 0 || (dims && dims->rank() == 1 && (*dims)[0] == 1);
}

// True for indices < 0 ? indices + depth : indices.
bool is_wrapped(const Value& indices) {
  const Node* where = indices.producer;
  if (where == nullptr || where->op_type != "Where") return false;
  const Node* less = where->input(0)->producer;
  return less != nullptr && less->op_type == "Less" && less->input(0) == where->input(2);
}

}  // namespace

// In training mode: y = (x - mean) / sqrt(variance + epsilon) * scale + bias with the statistics of
// the batch, and running ones that move towards them. Older opsets had this form, with two outputs
// more, but runtimes do not have it.
Replacement batch_normalization_13(Node& node, GraphBuilder& g) {
  if (node.int_attribute("training_mode", 0) == 0) {
    node.remove_attribute("training_mode");
    return std::nullopt;
  }
  const std::size_t rank = known_rank(node);
  if (rank < 2) refuse_downgrade(node, "training mode of rank " + std::to_string(rank));
  Value* x = node.inputs[0];
  std::vector<std::int64_t> axes = {0};
  for (std::size_t i = 2; i < rank; ++i) axes.push_back(static_cast<std::int64_t>(i));
  Value* mean = g.reduce_mean(x, axes, /*keepdims=*/true);
  Value* centered = g.sub(x, mean);
  Value* variance = g.reduce_mean(g.mul(centered, centered), axes, /*keepdims=*/true);
  const auto epsilon = static_cast<double>(node.float_attribute("epsilon", 1e-5F));
  Value* deviation = g.sqrt(g.add(variance, g.scalar_like(x, epsilon)));
  Value* scaled =
      g.mul(g.div(centered, deviation), along_channels(g, g.cast_like(node.inputs[1], x), rank));
  std::vector<Value*> results = {
      g.add(scaled, along_channels(g, g.cast_like(node.inputs[2], x), rank))};
  const auto momentum = static_cast<double>(node.float_attribute("momentum", 0.9F));
  Value* const batch[] = {mean, variance};
  for (std::size_t i = 0; i < 2; ++i) {
    Value* running = node.inputs[3 + i];
    if (node.output(1 + i) == nullptr) {
      results.push_back(nullptr);
      continue;
    }
    Value* now = g.cast_like(g.reshape(batch[i], std::vector<std::int64_t>{-1}), running);
    results.push_back(g.add(g.scale(running, momentum), g.scale(now, 1 - momentum)));
  }
  results.resize(node.outputs.size());
  return results;
}

// The result had the type of the scale.
Replacement dequantize_22(Node& node, GraphBuilder& g) {
  const auto wanted = static_cast<DataType>(node.int_attribute("output_dtype", 0));
  node.remove_attribute("output_dtype");
  const Value* scale = node.input(1);
  if (wanted == DataType::kUndefined || scale == nullptr || scale->dtype() == wanted) {
    return std::nullopt;
  }
  Value* y = g.op("DequantizeLinear", node.inputs, node.attributes);
  return {{g.op("Cast", {y}, {attribute("to", static_cast<std::int64_t>(wanted))})}};
}

Replacement quantize_22(Node& node, GraphBuilder& /*g*/) {
  const auto precision = static_cast<DataType>(node.int_attribute("precision", 0));
  const bool is_usual = precision == DataType::kUndefined || precision == DataType::kFloat32;
  if (!is_usual) refuse_downgrade(node, "precision " + std::to_string(static_cast<int>(precision)));
  node.remove_attribute("precision");
  return std::nullopt;
}

// The type was that of the zero point.
Replacement quantize_20(Node& node, GraphBuilder& g) {
  if (node.int_attribute("block_size", 0) != 0) refuse_downgrade(node, "block_size");
  node.remove_attribute("block_size");
  const auto wanted = static_cast<DataType>(node.int_attribute("output_dtype", 0));
  node.remove_attribute("output_dtype");
  if (node.op_type != "QuantizeLinear" || wanted == DataType::kUndefined ||
      node.input(2) != nullptr || wanted == DataType::kUint8) {
    return std::nullopt;
  }
  node.inputs.resize(2);
  node.inputs.push_back(g.op("ConstantOfShape", {g.shape_of(node.inputs.at(1))},
                             {attribute("value", Tensor::zeros(wanted, {1}))}));
  return std::nullopt;
}

// One scale for all elements.
Replacement quantize_12(Node& node, GraphBuilder& g) {
  if (!has_one_scale(node)) refuse_downgrade(node, "a scale per element of an axis");
  node.remove_attribute("axis");
  for (std::size_t i = 1; i < node.inputs.size(); ++i) {
    Value*& one = node.inputs[i];
    if (one != nullptr && one->type.has_rank() && one->type.rank() == 1) one = g.squeeze(one, {0});
  }
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
  if (node.int_attribute("antialias", 0) != 0) refuse_downgrade(node, "antialias");
  const std::string policy = node.string_attribute("keep_aspect_ratio_policy", "stretch");
  const bool by_sizes = !is_absent(node.input(3));
  if (by_sizes && policy != "stretch") refuse_downgrade(node, "keep_aspect_ratio_policy");
  node.remove_attribute("keep_aspect_ratio_policy");
  const std::vector<std::int64_t> axes = node.ints_attribute("axes");
  node.remove_attribute("axes");
  if (axes.empty()) return std::nullopt;
  const std::size_t rank = known_rank(node);
  std::vector<Value*> rest;
  for (std::size_t i = 0; i < rank; ++i) {
    rest.push_back(by_sizes ? length_of(g, node.inputs[0], i)
                            : g.constant(Tensor::from(std::vector<float>{1}, Dims{1}), "one"));
  }
  const std::size_t given = by_sizes ? 3 : 2;
  if (!is_absent(node.input(1))) {
    Value* roi = node.inputs[1];
    const auto whole = [&](double end) {
      Value* one = g.scalar_like(roi, end);
      return std::vector<Value*>(rank, g.reshape(one, g.ints({1}), /*allow_zero=*/false));
    };
    node.inputs[1] = g.concat({for_all_axes(g, roi, axes, whole(0)),
                               for_all_axes(g, roi, axes, whole(1), std::ssize(axes))},
                              0);
  }
  const auto numbers = constant_of(node.input(given));
  if (numbers != nullptr && numbers->num_elements() != std::ssize(axes)) {
    refuse_downgrade(node, "scales or sizes that do not match the axes");
  }
  if (numbers != nullptr && !by_sizes) {
    const std::vector<double> some = numbers->to_doubles();
    std::vector<float> all(rank, 1.0F);
    for (std::size_t i = 0; i < axes.size(); ++i) {
      all[static_cast<std::size_t>(normalize_axis(axes[i], rank))] = static_cast<float>(some[i]);
    }
    node.inputs[2] = g.constant(Tensor::from(all, Dims{static_cast<std::int64_t>(rank)}), "scales");
  } else {
    node.inputs[given] = for_all_axes(g, node.inputs[given], axes, rest);
  }
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

// Positions were o / scale, and nearest ones rounded towards the smaller image.
Replacement resize_10(Node& node, GraphBuilder& /*g*/) {
  const std::string mode = node.string_attribute("mode", "nearest");
  const std::string coordinates =
      node.string_attribute("coordinate_transformation_mode", "half_pixel");
  if (!is_absent(node.input(3))) refuse_downgrade(node, "sizes");
  if (mode == "cubic") refuse_downgrade(node, "mode cubic");
  if (coordinates != "asymmetric") {
    refuse_downgrade(node, "coordinate_transformation_mode '" + coordinates + "'");
  }
  if (mode == "nearest" && !rounds_as_before_11(node)) {
    refuse_downgrade(node, "nearest_mode '" + node.string_attribute("nearest_mode", "") + "'");
  }
  node.inputs = {node.inputs.at(0), node.inputs.at(2)};
  node.attributes = {attribute("mode", mode)};
  return std::nullopt;
}

Replacement resize_9(Node& node, GraphBuilder& /*g*/) {
  const Tensor* scales = constant_of(node.input(1));
  if (scales == nullptr ||
      std::ranges::any_of(scales->to_doubles(), [](auto s) { return s < 1; })) {
    refuse_downgrade(node, "scales that may be below 1");
  }
  node.op_type = "Upsample";
  return std::nullopt;
}

// Equality of floating-point numbers: neither is less, and none is NaN.
Replacement equal_10(Node& node, GraphBuilder& g) {
  Value* a = node.inputs.at(0);
  Value* b = node.inputs.at(1);
  if (!is_floating(a->dtype())) {
    if (is_integer(a->dtype()) && a->dtype() != DataType::kInt32 &&
        a->dtype() != DataType::kInt64) {
      return {{g.equal(g.cast(a, DataType::kInt64), g.cast(b, DataType::kInt64))}};
    }
    return std::nullopt;
  }
  const auto either = [&](Value* x, Value* y) { return g.op("Or", {x, y}); };
  Value* differs = either(g.less(a, b), g.greater(a, b));
  Value* is_none = either(g.op("IsNaN", {a}), g.op("IsNaN", {b}));
  return {{g.op("Not", {either(differs, is_none)})}};
}

// r = floor(x + 1/2), or the even neighbour of x + 1/2 where that is a whole number.
Replacement round_10(Node& node, GraphBuilder& g) {
  Value* x = node.inputs.at(0);
  Value* half = g.scalar_like(x, 0.5);
  Value* above = g.add(x, half);
  Value* r = g.op("Floor", {above});
  Value* odd = g.sub(r, g.scale(g.op("Floor", {g.mul(r, half)}), 2));
  Value* is_tie = g.equal(above, r);
  return {{g.where(is_tie, g.sub(r, odd), r)}};
}

// Max and Min took floating-point numbers only.
Replacement extremum_11(Node& node, GraphBuilder& g) {
  if (node.inputs.empty() || !is_integer(node.inputs[0]->dtype())) return std::nullopt;
  Value* y = node.inputs[0];
  for (std::size_t i = 1; i < node.inputs.size(); ++i) {
    Value* x = node.inputs[i];
    y = g.where(node.op_type == "Max" ? g.less(y, x) : g.less(x, y), x, y);
  }
  return {{node.inputs.size() == 1 ? g.identity(y) : y}};
}

// C had to be there: y = alpha A B
Replacement gemm_10(Node& node, GraphBuilder& g) {
  if (node.input(2) != nullptr) return std::nullopt;
  const auto operand = [&](std::size_t i, const char* flag) {
    Value* x = node.inputs.at(i);
    return node.int_attribute(flag, 0) != 0 ? g.transpose(x, {1, 0}) : x;
  };
  Value* y = g.matmul(operand(0, "transA"), operand(1, "transB"));
  const auto alpha = static_cast<double>(node.float_attribute("alpha", 1));
  return {{alpha == 1 ? y : g.scale(y, alpha)}};
}

Replacement mod_9(Node& node, GraphBuilder& g) {
  Value* a = node.inputs.at(0);
  Value* b = node.inputs.at(1);
  if (!is_integer(a->dtype()) && node.int_attribute("fmod", 0) == 0) {
    refuse_downgrade(node, "remainders of this type");
  }
  Value* quotient = g.div(a, b);  // truncates integers
  if (node.int_attribute("fmod", 0) != 0) {
    if (is_floating(a->dtype())) {
      Value* down = g.op("Floor", {quotient});
      Value* up = g.op("Ceil", {quotient});
      quotient = g.where(g.less(quotient, g.scalar_like(quotient, 0)), up, down);
    }
    return {{g.sub(a, g.mul(quotient, b))}};
  }
  Value* rest = g.sub(a, g.mul(quotient, b));
  Value* zero = g.scalar_like(rest, 0);
  const auto differ = [&](Value* x, Value* y) {
    return g.op("Xor", {g.less(x, zero), g.less(y, zero)});
  };
  Value* is_other = g.op("And", {g.op("Not", {g.equal(rest, zero)}), differ(rest, b)});
  return {{g.where(is_other, g.add(rest, b), rest)}};
}

Replacement is_inf_9(Node& node, GraphBuilder& g) {
  Value* x = node.inputs.at(0);
  Value* infinity = g.scalar_like(x, std::numeric_limits<double>::infinity());
  const bool positive = node.int_attribute("detect_positive", 1) != 0;
  const bool negative = node.int_attribute("detect_negative", 1) != 0;
  if (positive && negative) return {{g.equal(g.abs(x), infinity)}};
  if (!positive && !negative) refuse_downgrade(node, "no sign to detect");
  return {{g.equal(x, positive ? infinity : g.neg(infinity))}};
}

// Negative indices did not count from the end.
Replacement one_hot_10(Node& node, GraphBuilder& g) {
  Value* indices = node.inputs.at(0);
  const Tensor* known = constant_of(indices);
  const auto is_negative = [](double index) { return index < 0; };
  if (known != nullptr && std::ranges::none_of(known->to_doubles(), is_negative)) {
    return std::nullopt;
  }
  if (is_wrapped(*indices)) return std::nullopt;
  Value* numbers = g.cast(indices, DataType::kInt64);
  Value* depth =
      g.cast(g.reshape(node.inputs.at(1), std::vector<std::int64_t>{1}), DataType::kInt64);
  Value* wrapped = g.where(g.less(numbers, g.int_scalar(0)), g.add(numbers, depth), numbers);
  return {{g.op("OneHot", {wrapped, node.inputs[1], node.inputs.at(2)}, node.attributes)}};
}

}  // namespace onnxgrad::onnx_io
