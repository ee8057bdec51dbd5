#include "runtime/input_sizes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <string>

#include "ir/pattern.h"

namespace onnxgrad::runtime {
namespace {

struct NamedSize {
  std::size_t port = 0;
  std::size_t axis = 0;
  std::int64_t size = 0;
};

std::vector<NamedSize> sizes_of(std::span<const Port> ports, std::span<const Dims> dims,
                                const ir::Dim& name) {
  std::vector<NamedSize> sizes;
  for (std::size_t i = 0; i < ports.size(); ++i) {
    const auto& shape = ports[i].type.shape;
    if (!shape || shape->size() != dims[i].rank()) continue;
    for (std::size_t axis = 0; axis < shape->size(); ++axis) {
      if ((*shape)[axis].surely_equals(name)) sizes.push_back({i, axis, dims[i][axis]});
    }
  }
  return sizes;
}

// "'x' has 5, 'y' has 4"
std::string list_sizes(std::span<const Port> ports, std::span<const Dims> dims,
                       const std::vector<NamedSize>& sizes, bool with_shapes) {
  std::string list;
  for (const NamedSize& one : sizes) {
    list += fmt::format("{}'{}' {}has {}", list.empty() ? "" : ", ", ports[one.port].name,
                        with_shapes ? dims[one.port].to_string() + " " : "", one.size);
  }
  return list;
}

// The first one that differs from the first of all; nullptr: none.
const NamedSize* find_other(const std::vector<NamedSize>& sizes) {
  const auto differs = [&](const NamedSize& one) { return one.size != sizes.front().size; };
  const auto other = std::ranges::find_if(sizes, differs);
  return other == sizes.end() ? nullptr : &*other;
}

/// A constant or a weight, and the number of its rows.
struct Table {
  const ir::Value* value = nullptr;
  std::int64_t length = 0;
};

// The axis that a Slice or Gather takes rows of a table of this rank along.
std::size_t axis_of_rows(const ir::Node& node, std::size_t rank) {
  std::int64_t axis = node.int_attribute("axis", 0);
  if (ir::is_op(node, {"Slice"})) {
    const auto axes = ir::constant_integers(node.input(3));
    if (!axes.empty()) axis = axes.front();
  }
  if (axis < 0) axis += static_cast<std::int64_t>(rank);
  return std::min(static_cast<std::size_t>(std::max<std::int64_t>(axis, 0)), rank - 1);
}

// The table that an operand is rows of.
Table table_of(const ir::Value* operand) {
  const ir::Node* taken = nullptr;  // the last node that takes rows
  while (operand != nullptr && operand->producer != nullptr) {
    const ir::Node& node = *operand->producer;
    const bool takes = ir::is_op(node, {"Slice", "Gather"});
    const bool passes = ir::is_op(node, {"Identity", "Cast", "Unsqueeze", "Squeeze", "Reshape"});
    if (!takes && !passes) return {};
    if (takes) taken = &node;
    operand = node.input(0);
  }
  if (operand == nullptr) return {};
  const std::optional<Dims> dims = operand->type.static_dims();
  if (!dims || dims->rank() < 2) return {};
  const std::size_t axis = taken == nullptr ? dims->rank() - 2 : axis_of_rows(*taken, dims->rank());
  return {.value = operand, .length = (*dims)[axis]};
}

}  // namespace

void check_tables(const ir::Graph& graph, std::span<const Port> ports, std::span<const Dims> dims,
                  const ShapeError& because) {
  const Place& place = because.problem().where;
  const auto node = std::ranges::find_if(graph.nodes, [&](const ir::Node* one) {
    return one->name == place.node && one->op_type == place.op_type;
  });
  if (place.node.empty() || node == graph.nodes.end()) return;
  for (const ir::Value* operand : (*node)->inputs) {
    const Table table = table_of(operand);
    if (table.value == nullptr) continue;
    for (std::size_t port = 0; port < ports.size(); ++port) {
      const auto& shape = ports[port].type.shape;
      for (std::size_t axis = 1; shape && axis < dims[port].rank(); ++axis) {
        if ((*shape)[axis].is_static() || dims[port][axis] <= table.length) continue;
        throw ShapeError(
            {.what = fmt::format("'{}' {} has length {} along axis {}, but the table '{}' {} has "
                                 "{} places",
                                 ports[port].name, dims[port].to_string(), dims[port][axis], axis,
                                 table.value->name, table.value->type.to_string(), table.length),
             .where = {.node = place.node, .op_type = place.op_type, .value = ports[port].name},
             .detail = "As a result: " + because.problem().what + ".",
             .hint = fmt::format("Give sequences of at most {}, or export the model with a longer "
                                 "table.",
                                 table.length)});
      }
    }
  }
}

void check_one_size(std::span<const Port> ports, std::span<const Dims> dims, std::size_t port,
                    std::size_t axis, const ShapeError* because) {
  const auto& shape = ports[port].type.shape;
  if (!shape || axis >= shape->size() || !(*shape)[axis].is_symbolic()) return;
  const std::vector<NamedSize> sizes = sizes_of(ports, dims, (*shape)[axis]);
  const NamedSize* const other = find_other(sizes);
  if (other == nullptr) return;
  const bool are_rows =
      std::ranges::all_of(sizes, [](const NamedSize& one) { return one.axis == 0; });
  const std::string list = list_sizes(ports, dims, sizes, !are_rows);
  const std::string& name = (*shape)[axis].symbol();
  throw ShapeError(
      {.what = fmt::format("the arrays differ in {}: {}",
                           are_rows ? "the number of rows" : "the size of '" + name + "'", list),
       .where = {.value = ports[other->port].name},
       .detail = because == nullptr ? "" : "As a result: " + because->problem().what + ".",
       .hint = are_rows ? "Give one row of each for each example."
                        : "Give arrays of equal size there; the model has one name for it."});
}

void SizeWatch::look_at(std::span<const Port> ports, const std::vector<Dims>& dims) {
  if (dims == last_) return;
  last_ = dims;
  for (std::size_t port = 0; port < ports.size(); ++port) {
    for (const ir::Dim& dim : ports[port].type.shape.value_or(ir::SymbolicShape())) {
      if (!dim.is_symbolic() || dim.is_open() || warned_of_.contains(dim.symbol())) continue;
      const std::vector<NamedSize> sizes = sizes_of(ports, dims, dim);
      if (find_other(sizes) == nullptr) continue;
      warned_of_.insert(dim.symbol());
      const std::string message =
          fmt::format("the model has one name, '{}', for sizes that differ: {}", dim.symbol(),
                      list_sizes(ports, dims, sizes, /*with_shapes=*/true));
      if (warn_) {
        warn_(message);
      } else {
        fmt::print(stderr, "onnxgrad: {}\n", message);
      }
    }
  }
}

void check_sizes(std::span<const Port> ports, std::span<const Dims> dims,
                 const ShapeError& because) {
  for (std::size_t port = 0; port < ports.size(); ++port) {
    for (std::size_t axis = 0; axis < dims[port].rank(); ++axis) {
      check_one_size(ports, dims, port, axis, &because);
    }
  }
}

}  // namespace onnxgrad::runtime
