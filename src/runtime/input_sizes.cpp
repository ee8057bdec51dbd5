#include "runtime/input_sizes.h"

#include <fmt/format.h>

#include <algorithm>
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

}  // namespace

void check_one_size(std::span<const Port> ports, std::span<const Dims> dims, std::size_t port,
                    std::size_t axis, const ShapeError* because) {
  const auto& shape = ports[port].type.shape;
  if (!shape || axis >= shape->size() || !(*shape)[axis].is_symbolic()) return;
  const std::vector<NamedSize> sizes = sizes_of(ports, dims, (*shape)[axis]);
  const auto differs = [&](const NamedSize& one) { return one.size != sizes.front().size; };
  const auto other = std::ranges::find_if(sizes, differs);
  if (other == sizes.end()) return;
  const bool are_rows =
      std::ranges::all_of(sizes, [](const NamedSize& one) { return one.axis == 0; });
  std::string list;
  for (const NamedSize& one : sizes) {
    list += fmt::format("{}'{}' {}has {}", list.empty() ? "" : ", ", ports[one.port].name,
                        are_rows ? "" : dims[one.port].to_string() + " ", one.size);
  }
  const std::string& name = (*shape)[axis].symbol();
  throw ShapeError(
      {.what = fmt::format("the arrays differ in {}: {}",
                           are_rows ? "the number of rows" : "the size of '" + name + "'", list),
       .where = {.value = ports[other->port].name},
       .detail = because == nullptr ? "" : "As a result: " + because->problem().what + ".",
       .hint = are_rows ? "Give one row of each for each example."
                        : "Give arrays of equal size there; the model has one name for it."});
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
