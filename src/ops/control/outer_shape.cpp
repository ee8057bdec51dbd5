#include "ops/control/outer_shape.h"

#include <algorithm>
#include <vector>

namespace onnxgrad::ops {
namespace {

// Returns the dimension `dim` as int64 [1]; nullptr if no value has it.
Value* find_dim(GraphBuilder& g, const ir::Dim& dim, std::span<Value* const> outer) {
  if (dim.is_static()) return g.ints({dim.value()});
  for (Value* value : outer) {
    if (value == nullptr || !value->type.has_rank()) continue;
    const ir::SymbolicShape& shape = *value->type.shape;
    const auto place =
        std::ranges::find_if(shape, [&](const ir::Dim& other) { return other.surely_equals(dim); });
    if (place != shape.end()) return dim_value(g, value, place - shape.begin());
  }
  return nullptr;
}

}  // namespace

Value* find_shape(GraphBuilder& g, const ir::Type& type, std::span<Value* const> outer) {
  if (const auto known = type.static_dims()) return g.ints({known->begin(), known->end()});
  if (!type.has_rank()) return nullptr;
  std::vector<Value*> dims;
  for (const ir::Dim& dim : *type.shape) {
    dims.push_back(find_dim(g, dim, outer));
    if (dims.back() == nullptr) return nullptr;
  }
  return g.concat(dims, 0);
}

Value* find_shape(GraphBuilder& g, const Node& shape, std::span<Value* const> outer) {
  ir::Type type = shape.input(0)->type;
  if (!type.has_rank()) return nullptr;
  const auto rank = static_cast<std::int64_t>(type.rank());
  const auto bound = [rank](std::int64_t axis) {
    return std::clamp<std::int64_t>(axis < 0 ? axis + rank : axis, 0, rank);
  };
  const std::int64_t first = bound(shape.int_attribute("start", 0));
  const std::int64_t last = std::max(first, bound(shape.int_attribute("end", rank)));
  const auto begin = type.shape->begin();
  type.shape = ir::SymbolicShape(begin + first, begin + last);
  return type.rank() == 0 ? g.ints({}) : find_shape(g, type, outer);
}

}  // namespace onnxgrad::ops
