#include "runtime/input_sizes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <string>

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

}  // namespace

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
