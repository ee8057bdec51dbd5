#include "train/transfer/width_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "ir/pattern.h"

namespace onnxgrad::train::width_rules {

using ir::is_op;
using ir::Node;
using ir::Value;

std::string refuse(const Node& node, std::string_view why) {
  return fmt::format("{} {}", node.describe(), why);
}

Integers integers_of(const Value* value) {
  const Tensor* numbers = WidthChange::constant(value);
  return numbers != nullptr && is_integer(numbers->dtype()) ? numbers->to_int64s() : Integers{};
}

std::int64_t positive(std::int64_t axis, std::int64_t rank) {
  return axis < 0 ? axis + rank : axis;
}

std::string carry_rest(Node& node, WidthChange& change, bool is_label) {
  for (const Value* output : node.outputs) {
    if (output != nullptr) change.carry(output, {.is_label = is_label});
  }
  return "";
}

const Carried& carried_of(const Node& node, const WidthChange& change) {
  for (const Value* input : node.inputs) {
    if (const Carried* state = change.find(input)) return *state;
  }
  return *change.find(node.inputs.front());
}

std::string pass_same(Node& node, WidthChange& change) {
  const Carried state = carried_of(node, change);
  if (!state.has_classes) return carry_rest(node, change, state.is_label);
  for (const Value* output : node.outputs) {
    if (output != nullptr) change.carry(output, state);
  }
  return "";
}

namespace {

// Axes of Squeeze, Unsqueeze and reductions: an attribute or an input; nullopt: computed.
std::optional<Integers> axes_of(const Node& node) {
  if (node.input(1) == nullptr) return node.ints_attribute("axes");
  Integers axes = integers_of(node.input(1));
  if (axes.empty()) return std::nullopt;
  return axes;
}

// Elements before and after the axis, as far as they are numbers.
std::optional<std::int64_t> product_after(const ir::Type& type, std::int64_t axis) {
  if (!type.has_rank()) return std::nullopt;
  std::int64_t product = 1;
  for (std::size_t i = static_cast<std::size_t>(axis) + 1; i < type.rank(); ++i) {
    const ir::Dim& dim = type.shape->at(i);
    if (!dim.is_static()) return std::nullopt;
    product *= dim.value();
  }
  return product;
}

constexpr std::int64_t kComputed = -2;

/// A target shape: numbers and, for each of them, the node that has it as a constant.
struct TargetShape {
  Integers sizes = {};
  std::vector<std::pair<Node*, std::size_t>> places = {};  ///< input of a Concat; else nullptr
};

std::optional<TargetShape> target_shape(const Node& reshape) {
  const Value* value = reshape.input(1);
  if (value == nullptr) {
    return TargetShape{.sizes = reshape.ints_attribute("shape"), .places = {}};
  }
  if (const Tensor* numbers = WidthChange::constant(value)) {
    return TargetShape{.sizes = numbers->to_int64s(), .places = {}};
  }
  if (!is_op(value->producer, "Concat")) return std::nullopt;
  TargetShape shape;
  for (std::size_t i = 0; i < value->producer->inputs.size(); ++i) {
    const Value* part = value->producer->inputs[i];
    Integers numbers = integers_of(part);
    if (numbers.empty()) numbers = {kComputed};
    shape.sizes.insert(shape.sizes.end(), numbers.begin(), numbers.end());
    for (std::size_t k = 0; k < numbers.size(); ++k) shape.places.emplace_back(value->producer, i);
  }
  return shape;
}

// Index of the classes among the sizes; nullopt: they are mixed with others.
std::optional<std::size_t> place_in(const Integers& sizes, const Carried& state,
                                    const ir::Type& before, std::int64_t width) {
  const auto fits = [&](std::size_t i) {
    const bool may_be_free = i > 0 || state.axis == 0;  // else it counts rows too
    return sizes[i] == width || (sizes[i] == -1 && may_be_free) || sizes[i] == kComputed ||
           (sizes[i] == 0 && static_cast<std::int64_t>(i) == state.axis);
  };
  if (const auto after = product_after(before, state.axis)) {
    std::int64_t product = 1;
    for (std::size_t i = sizes.size(); i-- > 0;) {
      if (product == *after && (sizes[i] != 1 || width == 1)) {
        return fits(i) ? std::optional(i) : std::nullopt;
      }
      if (sizes[i] < 1) break;
      product *= sizes[i];
    }
  }
  const auto axis = static_cast<std::size_t>(state.axis);
  if (axis < sizes.size() && (sizes[axis] == width || sizes[axis] == 0)) return axis;
  return std::nullopt;
}

void set_size(Node& node, const TargetShape& shape, std::size_t place, WidthChange& change) {
  if (shape.places.empty() && node.input(1) == nullptr) {
    Integers sizes = shape.sizes;
    sizes[place] = change.new_width();
    change.edit([&node, sizes] { node.set_attribute("shape", sizes); });
    return;
  }
  Node& holder = shape.places.empty() ? node : *shape.places[place].first;
  const std::size_t input = shape.places.empty() ? 1 : shape.places[place].second;
  std::size_t first = 0;  // index of the first size in this constant
  while (!shape.places.empty() && shape.places[first].second != input) ++first;
  Integers sizes = integers_of(holder.inputs[input]);
  sizes[place - first] = change.new_width();
  const auto count = static_cast<std::int64_t>(sizes.size());
  change.replace_input(holder, input, Tensor::from(sizes, Dims{count}));
}

}  // namespace

std::string pass_transpose(Node& node, WidthChange& change) {
  Carried state = carried_of(node, change);
  if (!state.has_classes) return carry_rest(node, change);
  Integers perm = node.ints_attribute("perm");
  if (perm.empty()) {
    state.axis = state.rank - 1 - state.axis;
  } else {
    state.axis = std::ranges::find(perm, state.axis) - perm.begin();
  }
  change.carry(node.output(0), state);
  return "";
}

std::string pass_squeeze(Node& node, WidthChange& change) {
  Carried state = carried_of(node, change);
  if (!state.has_classes) return carry_rest(node, change, state.is_label);
  auto axes = axes_of(node);
  if (!axes) return refuse(node, "has axes that are computed");
  if (axes->empty()) {
    const ir::Type type = change.type_of(node.inputs[0]);
    if (!type.has_rank()) return refuse(node, "reads a value of unknown rank");
    for (std::size_t i = 0; i < type.rank(); ++i) {
      if (type.shape->at(i) == ir::Dim(1)) axes->push_back(static_cast<std::int64_t>(i));
    }
  }
  for (std::int64_t& axis : *axes) axis = positive(axis, state.rank);
  const bool has_class_axis = std::erase(*axes, state.axis) > 0;
  if (has_class_axis && change.new_width() != 1) {  // what had one column has several
    change.edit([&node, &change, axes = *axes] {
      if (axes.empty()) {
        node.op_type = "Identity";
        node.inputs.resize(1);
        node.attributes.clear();
      } else if (node.input(1) != nullptr) {
        node.inputs[1] = change.new_initializer(
            node.inputs[1], Tensor::from(axes, Dims{static_cast<std::int64_t>(axes.size())}));
      } else {
        node.set_attribute("axes", axes);
      }
    });
  } else if (has_class_axis) {
    return carry_rest(node, change);
  }
  state.axis -= std::ranges::count_if(*axes, [&](std::int64_t axis) { return axis < state.axis; });
  state.rank -= static_cast<std::int64_t>(axes->size());
  change.carry(node.output(0), state);
  return "";
}

std::string pass_unsqueeze(Node& node, WidthChange& change) {
  Carried state = carried_of(node, change);
  if (!state.has_classes) return carry_rest(node, change, state.is_label);
  auto axes = axes_of(node);
  if (!axes) return refuse(node, "has axes that are computed");
  const std::int64_t rank = state.rank + static_cast<std::int64_t>(axes->size());
  for (std::int64_t& axis : *axes) axis = positive(axis, rank);
  std::ranges::sort(*axes);
  for (const std::int64_t axis : *axes) {
    if (axis <= state.axis) ++state.axis;
  }
  state.rank = rank;
  change.carry(node.output(0), state);
  return "";
}

std::string pass_reduction(Node& node, WidthChange& change) {
  Carried state = carried_of(node, change);
  if (!state.has_classes) return carry_rest(node, change);
  auto axes = axes_of(node);
  if (!axes) return refuse(node, "has axes that are computed");
  for (std::int64_t& axis : *axes) axis = positive(axis, state.rank);
  if (axes->empty() || std::ranges::find(*axes, state.axis) != axes->end()) {
    return carry_rest(node, change);
  }
  if (node.int_attribute("keepdims", 1) == 0) {
    state.axis -=
        std::ranges::count_if(*axes, [&](std::int64_t axis) { return axis < state.axis; });
    state.rank -= static_cast<std::int64_t>(axes->size());
  }
  change.carry(node.output(0), state);
  return "";
}

std::string pass_flatten(Node& node, WidthChange& change) {
  Carried state = carried_of(node, change);
  if (!state.has_classes) return carry_rest(node, change, state.is_label);
  const std::int64_t axis = positive(node.int_attribute("axis", 1), state.rank);
  const auto after = product_after(change.type_of(node.inputs[0]), state.axis);
  const bool is_alone = state.axis == state.rank - 1 || (after && *after == 1);
  if (axis != state.axis || !is_alone) return refuse(node, "mixes its results");
  state.axis = 1;
  state.rank = 2;
  change.carry(node.output(0), state);
  return "";
}

std::string pass_reshape(Node& node, WidthChange& change) {
  if (change.find(node.input(0)) == nullptr) return carry_rest(node, change);  // only its shape
  Carried state = *change.find(node.input(0));
  if (!state.has_classes) return carry_rest(node, change, state.is_label);
  const auto shape = target_shape(node);
  if (!shape) {
    const auto rank = change.rank_of(node.output(0));
    if (!rank || *rank != state.rank) return refuse(node, "has a shape that is computed");
    change.carry(node.output(0), state);
    return "";
  }
  // One column that becomes a vector: with several, the matrix is left. skl2onnx writes [-1, 1] for
  // regressions of several columns too.
  const bool is_column =
      state.rank == 2 && ((change.old_width() == 1 && shape->sizes.size() == 1) ||
                          (change.old_width() > 1 && shape->sizes == Integers{-1, 1}));
  if (is_column && change.new_width() != 1) {
    change.edit([&node] {
      node.op_type = "Identity";
      node.inputs.resize(1);
      node.attributes.clear();
    });
    change.carry(node.output(0), state);
    return "";
  }
  if (is_column) return carry_rest(node, change);
  // A regression's rows in one column, and one column of two classes.
  const auto place =
      change.old_width() == 1 && shape->sizes.size() == static_cast<std::size_t>(state.rank)
          ? std::optional(static_cast<std::size_t>(state.axis))
          : place_in(shape->sizes, state, change.type_of(node.inputs[0]), change.old_width());
  if (!place) return refuse(node, "mixes its results");
  if (shape->sizes[*place] == change.old_width()) set_size(node, *shape, *place, change);
  state.axis = static_cast<std::int64_t>(*place);
  state.rank = static_cast<std::int64_t>(shape->sizes.size());
  change.carry(node.output(0), state);
  return "";
}

}  // namespace onnxgrad::train::width_rules
