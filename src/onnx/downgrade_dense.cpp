#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <optional>
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

// Elements of a matrix of zeros and ones above which a gradient could not be run.
constexpr std::int64_t kMaxDense = std::int64_t{1} << 31;

std::optional<std::int64_t> known_length(const Value& value, std::size_t axis) {
  if (!value.type.has_rank() || axis >= value.type.rank()) return std::nullopt;
  const ir::Dim& dim = (*value.type.shape)[axis];
  return dim.is_static() ? std::optional(dim.value()) : std::nullopt;
}

std::vector<std::int64_t> numbered(std::int64_t first, std::int64_t end) {
  std::vector<std::int64_t> list(static_cast<std::size_t>(std::max<std::int64_t>(end - first, 0)));
  std::iota(list.begin(), list.end(), first);
  return list;
}

void check_size(const Node& node, const Value& indices, std::optional<std::int64_t> depth) {
  const auto dims = indices.type.static_dims();
  if (!dims || !depth || *depth == 0) return;
  if (dims->num_elements() <= kMaxDense / *depth) return;
  refuse_downgrade(node, "sums at " + std::to_string(dims->num_elements()) + " of " +
                             std::to_string(*depth) + " positions");
}

// True for tensors of zeros: what gradients add to.
bool is_zero(const Value* value) {
  if (value == nullptr) return false;
  const Tensor* tensor = constant_of(value);
  if (tensor == nullptr && value->producer != nullptr) {
    const Node& node = *value->producer;
    if (node.op_type == "Expand" || node.op_type == "Identity") return is_zero(node.input(0));
    if (node.op_type != "ConstantOfShape") return false;
    const ir::AttributeValue* given = node.find_attribute("value");
    if (given == nullptr) return true;
    tensor = std::get_if<Tensor>(given);
  }
  if (tensor == nullptr || tensor->dtype() == DataType::kString) return false;
  return std::ranges::all_of(tensor->to_doubles(), [](double number) { return number == 0; });
}

// Indices of [0, depth), int64; negative ones count from the end.
Value* wrapped(GraphBuilder& g, Value* indices, Value* depth) {
  const auto known = constant_of(indices);
  Value* numbers = g.cast(indices, DataType::kInt64);
  if (known != nullptr &&
      std::ranges::all_of(known->to_int64s(), [](std::int64_t i) { return i >= 0; })) {
    return numbers;
  }
  return g.where(g.less(numbers, g.int_scalar(0)), g.add(numbers, depth), numbers);
}

// 1 where the index names the element of a new last axis, else 0: of `like`'s dtype.
Value* hits(GraphBuilder& g, Value* indices, Value* depth, Value* like) {
  Value* values = g.ints({0, 1});  // no floating-point numbers, which might be weights
  Value* ones = g.op("OneHot", {wrapped(g, indices, depth), depth, values});
  return like == nullptr ? g.cast(ones, DataType::kBool) : g.cast_like(ones, like);
}

// x with its last axis moved to `axis`.
Value* last_to(GraphBuilder& g, Value* x, std::size_t axis, std::size_t rank) {
  std::vector<std::int64_t> perm = numbered(0, static_cast<std::int64_t>(rank) - 1);
  perm.insert(perm.begin() + static_cast<std::ptrdiff_t>(axis),
              static_cast<std::int64_t>(rank) - 1);
  return g.transpose(x, perm);
}

Value* to_last(GraphBuilder& g, Value* x, std::size_t axis, std::size_t rank) {
  std::vector<std::int64_t> perm = numbered(0, static_cast<std::int64_t>(rank));
  perm.erase(perm.begin() + static_cast<std::ptrdiff_t>(axis));
  perm.push_back(static_cast<std::int64_t>(axis));
  return g.transpose(x, perm);
}

// The axis of GatherElements and ScatterElements that the indices are positions of.
std::size_t indexed_axis(const Node& node) {
  const std::size_t rank = known_rank(node);
  if (known_rank(node, 1) != rank) refuse_downgrade(node, "indices of another rank");
  return static_cast<std::size_t>(normalize_axis(node.int_attribute("axis", 0), rank));
}

// The other axes along which the indices may have fewer elements than the data, of which they then
// name the first ones.
std::vector<std::size_t> shorter_axes(const Node& node, std::size_t axis) {
  std::vector<std::size_t> axes;
  for (std::size_t i = 0; i < known_rank(node); ++i) {
    const ir::Dim& data = (*node.inputs[0]->type.shape)[i];
    if (i != axis && !data.surely_equals((*node.inputs[1]->type.shape)[i])) axes.push_back(i);
  }
  return axes;
}

// x with zeros after it, as many elements along `axis` as `like` has.
Value* filled_up(GraphBuilder& g, Value* x, std::size_t axis, Value* like) {
  std::vector<Value*> shape;
  for (std::size_t i = 0; i < x->type.rank(); ++i) {
    Value* own = length_of(g, x, i);
    shape.push_back(i == axis ? g.sub(length_of(g, like, axis), own) : own);
  }
  Value* zeros = g.op("ConstantOfShape", {shape.size() == 1 ? shape[0] : g.concat(shape, 0)},
                      {attribute("value", Tensor::zeros(x->dtype(), {1}))});
  return g.concat({x, zeros}, static_cast<std::int64_t>(axis));
}

// The number of elements along these axes, int64 [1].
Value* product_of(GraphBuilder& g, Value& value, std::size_t first, std::size_t end) {
  std::int64_t known = 1;
  Value* others = nullptr;
  for (std::size_t i = first; i < end; ++i) {
    if (const auto length = known_length(value, i)) {
      known *= *length;
      continue;
    }
    Value* length = length_of(g, &value, i);
    others = others == nullptr ? length : g.mul(others, length);
  }
  if (others == nullptr) return g.ints({known});
  return known == 1 ? others : g.mul(others, g.ints({known}));
}

void expect_sum(const Node& node) {
  const std::string reduction = node.string_attribute("reduction", "none");
  if (reduction != "add") refuse_downgrade(node, "reduction '" + reduction + "'");
}

Value* add_unless_zero(GraphBuilder& g, Value* data, Value* sums) {
  return is_zero(data) ? sums : g.add(data, sums);
}

// The index of each tuple of `node`'s indices [..., q] in the first q axes of its data, int64 [K],
// the number of their elements, and the shape [count, ...] of the data with these axes merged.
struct Tuples {
  Value* index = nullptr;
  Value* count = nullptr;  // int64 [1]
  Value* shape = nullptr;
  std::optional<std::int64_t> known_count = {};
};

Tuples merge_tuples(const Node& node, GraphBuilder& g) {
  Value* data = node.inputs[0];
  Value* indices = node.inputs[1];
  const std::size_t rank = known_rank(node);
  const std::size_t index_rank = known_rank(node, 1);
  if (index_rank == 0) refuse_downgrade(node, "indices of rank 0");
  const auto size = known_length(*indices, index_rank - 1);
  if (!size) refuse_downgrade(node, "tuples of indices of unknown length");
  Tuples tuples;
  const auto merged = static_cast<std::size_t>(*size);
  tuples.known_count = 1;
  for (std::size_t i = 0; i < merged; ++i) {
    Value* length = length_of(g, data, i);
    Value* column = indices;
    if (merged > 1 || index_rank > 1) {
      column = g.reshape(g.gather(indices, g.ints({static_cast<std::int64_t>(i)}),
                                  static_cast<std::int64_t>(index_rank) - 1),
                         std::vector<std::int64_t>{-1});
    }
    column = wrapped(g, column, length);
    tuples.index = i == 0 ? column : g.add(g.mul(tuples.index, length), column);
    tuples.count = i == 0 ? length : g.mul(tuples.count, length);
    const auto known = known_length(*data, i);
    tuples.known_count =
        known && tuples.known_count ? std::optional(*tuples.known_count * *known) : std::nullopt;
  }
  if (merged == 0) refuse_downgrade(node, "empty tuples of indices");
  if (tuples.known_count) tuples.count = g.ints({*tuples.known_count});
  std::vector<Value*> rest = {tuples.count};
  for (std::size_t i = merged; i < rank; ++i) rest.push_back(length_of(g, data, i));
  tuples.shape = rest.size() == 1 ? rest[0] : g.concat(rest, 0);
  return tuples;
}

// Number of times that each element of the merged axes is indexed, [count, 1], and the sums of the
// updates there, [count, R].
Value* sums_at(const Node& node, GraphBuilder& g, const Tuples& tuples) {
  check_size(node, *node.inputs[1], tuples.known_count);
  Value* updates = node.inputs[2];
  const std::size_t rank = known_rank(node);
  const std::size_t merged =
      static_cast<std::size_t>(*known_length(*node.inputs[1], known_rank(node, 1) - 1));
  Value* tuple_count = product_of(g, *node.inputs[1], 0, known_rank(node, 1) - 1);
  Value* rest = product_of(g, *node.inputs[0], merged, rank);
  Value* rows = g.reshape(updates, g.concat({tuple_count, rest}, 0));
  Value* matrix = hits(g, tuples.index, tuples.count, updates);
  return g.matmul(g.transpose(matrix, {1, 0}), rows);
}

// The square matrix [length, length] with 1 where the row is before the column (with `is_strict`,
// not the same).
Value* triangle(GraphBuilder& g, Value* length, Value* like, bool is_strict, bool is_upper) {
  Value* numbers = numbers_to(g, length);
  Value* rows = g.unsqueeze(numbers, {1});
  Value* columns = g.unsqueeze(numbers, {0});
  Value* before = is_upper ? g.less(rows, columns) : g.less(columns, rows);
  if (!is_strict) before = g.op("Or", {before, g.equal(rows, columns)});
  return g.cast_like(before, like);
}

}  // namespace

Value* length_of(GraphBuilder& g, Value* value, std::size_t axis) {
  if (const auto known = known_length(*value, axis)) return g.ints({*known});
  const auto first = static_cast<std::int64_t>(axis);
  return g.dims_of(value, first, first + 1);
}

Value* numbers_to(GraphBuilder& g, Value* count) {
  if (const auto known = known_ints(count); known && known->size() == 1) {
    return g.ints(numbered(0, known->front()));
  }
  Value* ones = g.op("ConstantOfShape", {count},
                     {attribute("value", Tensor::from(std::vector<std::int64_t>{1}, Dims{1}))});
  return g.squeeze(g.op("NonZero", {ones}), {0});
}

// y = data + sum over k of updates at indices[.., k, ..]
Replacement scatter_elements_15(Node& node, GraphBuilder& g) {
  if (node.string_attribute("reduction", "none") == "none") return std::nullopt;
  expect_sum(node);
  const std::size_t axis = indexed_axis(node);
  const std::size_t rank = known_rank(node);
  check_size(node, *node.inputs[1], known_length(*node.inputs[0], axis));
  Value* data = node.inputs[0];
  Value* updates = node.inputs[2];
  Value* matrix = hits(g, node.inputs[1], length_of(g, data, axis), updates);
  const auto last = static_cast<std::int64_t>(rank);
  if (rank == 1) {
    Value* sums = g.matmul(g.unsqueeze(updates, {0}), matrix);
    return {{add_unless_zero(g, data, g.squeeze(sums, {0}))}};
  }
  Value* sums = g.reduce_sum(g.mul(g.unsqueeze(updates, {last}), matrix),
                             {static_cast<std::int64_t>(axis)}, /*keepdims=*/false);
  sums = last_to(g, sums, axis, rank);
  for (const std::size_t i : shorter_axes(node, axis)) sums = filled_up(g, sums, i, data);
  return {{add_unless_zero(g, data, sums)}};
}

Replacement scatter_nd_15(Node& node, GraphBuilder& g) {
  if (node.string_attribute("reduction", "none") == "none") return std::nullopt;
  expect_sum(node);
  const Tuples tuples = merge_tuples(node, g);
  Value* sums = g.reshape(sums_at(node, g, tuples), g.shape_of(node.inputs[0]));
  return {{add_unless_zero(g, node.inputs[0], sums)}};
}

// y = updates at the elements that are named, else data
Replacement scatter_nd_10(Node& node, GraphBuilder& g) {
  Value* data = node.inputs[0];
  const Tuples tuples = merge_tuples(node, g);
  Value* sums = g.reshape(sums_at(node, g, tuples), g.shape_of(data));
  if (is_zero(data)) return {{sums}};
  Value* matrix = hits(g, tuples.index, tuples.count, g.constant(Tensor::scalar(0.0F), "zero"));
  Value* named = g.reduce_sum(matrix, {0}, /*keepdims=*/false);
  const std::size_t rank = known_rank(node);
  std::vector<Value*> shape;
  const auto merged =
      static_cast<std::size_t>(*known_length(*node.inputs[1], known_rank(node, 1) - 1));
  for (std::size_t i = 0; i < rank; ++i) {
    shape.push_back(i < merged ? length_of(g, data, i) : g.ints({1}));
  }
  Value* is_named = g.greater(g.reshape(named, g.concat(shape, 0)), g.scalar_like(named, 0));
  return {{g.where(is_named, sums, data)}};
}

// y[.., k, ..] = data[.., indices[.., k, ..], ..]
Replacement gather_elements_10(Node& node, GraphBuilder& g) {
  const std::size_t axis = indexed_axis(node);
  const std::size_t rank = known_rank(node);
  Value* data = node.inputs[0];
  check_size(node, *node.inputs[1], known_length(*data, axis));
  for (const std::size_t i : shorter_axes(node, axis)) {
    Value* count = length_of(g, node.inputs[1], i);
    data = g.gather(data, numbers_to(g, count), static_cast<std::int64_t>(i));
  }
  Value* is_hit = hits(g, node.inputs[1], length_of(g, data, axis), nullptr);
  Value* choices = g.unsqueeze(to_last(g, data, axis, rank), {static_cast<std::int64_t>(axis)});
  // No product: what is not picked may be infinite.
  Value* picked = g.where(is_hit, choices, g.scalar_like(data, 0));
  return {{g.reduce_sum(picked, {static_cast<std::int64_t>(rank)}, /*keepdims=*/false)}};
}

Replacement gather_nd_10(Node& node, GraphBuilder& g) {
  if (node.int_attribute("batch_dims", 0) != 0) refuse_downgrade(node, "batch_dims");
  const Tuples tuples = merge_tuples(node, g);
  Value* rows = g.gather(g.reshape(node.inputs[0], tuples.shape), tuples.index, 0);
  // The shape of the indices without the tuples, then that of what a tuple names.
  const std::size_t rank = known_rank(node);
  const std::size_t index_rank = known_rank(node, 1);
  const auto merged = static_cast<std::size_t>(*known_length(*node.inputs[1], index_rank - 1));
  std::vector<Value*> shape;
  for (std::size_t i = 0; i + 1 < index_rank; ++i) {
    shape.push_back(length_of(g, node.inputs[1], i));
  }
  for (std::size_t i = merged; i < rank; ++i) shape.push_back(length_of(g, node.inputs[0], i));
  if (shape.empty()) return {{g.squeeze(rows, {0})}};
  return {{g.reshape(rows, shape.size() == 1 ? shape[0] : g.concat(shape, 0))}};
}

Replacement range_10(Node& node, GraphBuilder& g) {
  if (node.outputs[0]->dtype() != DataType::kInt64) {
    const Tensor* ends[3] = {};
    for (std::size_t i = 0; i < 3; ++i) ends[i] = constant_of(node.input(i));
    const bool is_known =
        std::ranges::all_of(ends, [](const Tensor* t) { return t && t->num_elements() == 1; });
    if (!is_known) refuse_downgrade(node, "numbers that are not known");
    const double start = ends[0]->to_doubles().front();
    const double step = ends[2]->to_doubles().front();
    std::vector<double> numbers;
    const double count = std::ceil((ends[1]->to_doubles().front() - start) / step);
    if (!(count < 1e6)) refuse_downgrade(node, "so many numbers");
    for (double i = 0; i < count; ++i) numbers.push_back(start + i * step);  // NOLINT: whole
    const Dims dims{static_cast<std::int64_t>(numbers.size())};
    return {{g.constant(Tensor::from(numbers, dims).cast(node.outputs[0]->dtype()), "range")}};
  }
  const auto step = known_ints(node.input(2));
  if (!step || step->size() != 1 || step->front() == 0) {
    refuse_downgrade(node, "a step that is not known");
  }
  const std::vector<std::int64_t> one = {1};
  Value* start = g.reshape(node.inputs[0], one);
  Value* distance = g.sub(g.reshape(node.inputs[1], one), start);
  if (step->front() < 0) distance = g.neg(distance);
  const std::int64_t size = std::abs(step->front());
  Value* zero = g.ints({0});
  Value* count = g.where(g.less(distance, zero), zero, distance);
  if (size > 1) count = g.div(g.add(count, g.ints({size - 1})), g.ints({size}));
  if (const auto known = known_ints(node.inputs[0])) {
    const auto end = known_ints(node.inputs[1]);
    if (end && known->size() == 1 && end->size() == 1) {
      const std::int64_t room =
          step->front() > 0 ? end->front() - known->front() : known->front() - end->front();
      count = g.ints({room <= 0 ? 0 : (room + size - 1) / size});
    }
  }
  Value* numbers = numbers_to(g, count);
  if (step->front() != 1) numbers = g.mul(numbers, g.ints({step->front()}));
  return {{g.add(start, numbers)}};
}

// Bounds that are computed: y = x gathered at start, start + 1, ... before end.
Replacement slice_9_computed(Node& node, GraphBuilder& g) {
  const std::size_t rank = known_rank(node);
  if (node.input(3) == nullptr) refuse_downgrade(node, "bounds that are not constant without axes");
  const std::vector<std::int64_t> axes = constant_ints(node, 3, "axes");
  Value* y = node.inputs[0];
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const std::int64_t axis = normalize_axis(axes[i], rank);
    const auto at = static_cast<std::int64_t>(i);
    Value* length = length_of(g, node.inputs[0], static_cast<std::size_t>(axis));
    Value* zero = g.ints({0});
    const auto place = [&](std::size_t input) {
      Value* given = g.cast(g.slice(node.inputs.at(input), {at}, {at + 1}, {0}), DataType::kInt64);
      given = g.where(g.less(given, zero), g.add(given, length), given);
      given = g.where(g.less(given, zero), zero, given);
      return g.where(g.less(length, given), length, given);
    };
    Value* start = place(1);
    Value* count = g.sub(place(2), start);
    count = g.where(g.less(count, zero), zero, count);
    y = g.gather(y, g.add(start, numbers_to(g, count)), axis);
  }
  return {{y}};
}

// y = x with its axis last times a triangle of ones
Replacement cumsum_10(Node& node, GraphBuilder& g) {
  const std::size_t rank = known_rank(node);
  const auto given = constant_ints(node, 1, "an axis");
  if (given.size() != 1 || rank == 0) refuse_downgrade(node, "this axis");
  const auto axis = static_cast<std::size_t>(normalize_axis(given.front(), rank));
  Value* x = node.inputs[0];
  const bool is_exclusive = node.int_attribute("exclusive", 0) != 0;
  const bool is_reverse = node.int_attribute("reverse", 0) != 0;
  Value* matrix = triangle(g, length_of(g, x, axis), x, is_exclusive, !is_reverse);
  if (rank == 1) return {{g.squeeze(g.matmul(g.unsqueeze(x, {0}), matrix), {0})}};
  return {{last_to(g, g.matmul(to_last(g, x, axis, rank), matrix), axis, rank)}};
}

// y = x where the column is not before (upper) or after (lower) the row, moved by k; else 0
Replacement trilu_13(Node& node, GraphBuilder& g) {
  const std::size_t rank = known_rank(node);
  if (rank < 2) refuse_downgrade(node, "a tensor of rank " + std::to_string(rank));
  Value* x = node.inputs[0];
  Value* rows = g.unsqueeze(numbers_to(g, length_of(g, x, rank - 2)), {1});
  Value* columns = g.unsqueeze(numbers_to(g, length_of(g, x, rank - 1)), {0});
  if (node.input(1) != nullptr) {
    rows = g.add(rows, g.reshape(node.inputs[1], std::vector<std::int64_t>{1, 1}));
  }
  const bool is_upper = node.int_attribute("upper", 1) != 0;
  Value* is_cut = is_upper ? g.less(columns, rows) : g.less(rows, columns);
  return {{g.where(is_cut, g.scalar_like(x, 0), x)}};
}

}  // namespace onnxgrad::onnx_io
