#include <algorithm>
#include <numeric>
#include <optional>
#include <unordered_map>
#include <vector>

#include "ir/pattern.h"
#include "opdef/registry.h"
#include "ops/rules.h"
#include "ops/sequence/sequence_gradient.h"

// Sequences whose elements are known by position when a model is loaded or compiled are resolved: a
// node that produces one becomes a SequenceConstruct of its elements, a node that reads one reads
// the elements. No value of such a sequence is left, so only tensors have gradients. Other
// sequences have gradient rules (sequence_gradient.h).

namespace onnxgrad::ops::sequence_op {
namespace {

using Values = std::vector<Value*>;
using Results = std::optional<Values>;

constexpr std::size_t kMaxElements = 4096;

// Returns the elements of a sequence; nullopt if they are not known.
Results elements_of(const Value* sequence) {
  if (sequence == nullptr) return std::nullopt;
  const Node* node = ir::look_through_identities(sequence)->producer;
  if (node == nullptr || !node->domain.empty()) return std::nullopt;
  if (node->op_type == "SequenceEmpty") return Values{};
  if (node->op_type != "SequenceConstruct") return std::nullopt;
  return node->inputs;
}

// Returns `position` in [0, size), or in [0, size] for a place to insert at; `absent` if it is not
// given.
std::optional<std::size_t> position_in(const Node& node, const Value* position, std::size_t size,
                                       bool insert, std::size_t absent) {
  auto place = static_cast<std::int64_t>(absent);
  if (position != nullptr) {
    const auto given = constant_int(position);
    if (!given) return std::nullopt;
    place = *given;
  }
  const auto count = static_cast<std::int64_t>(size);
  if (place < -count || place > count || (place == count && !insert)) {
    throw DataError({.what = "position " + std::to_string(place) + " in a sequence of " +
                             std::to_string(size) + (size == 1 ? " element" : " elements"),
                     .where = {.node = node.name, .op_type = node.op_type},
                     .hint = "Give a position within the sequence."});
  }
  return static_cast<std::size_t>(place < 0 ? place + count : place);
}

// Builds a SequenceConstruct; an empty sequence takes the type of its elements from `like`.
Results make_sequence(GraphBuilder& g, const Values& elements, const Value* like) {
  if (!elements.empty()) return Values{g.op("SequenceConstruct", elements)};
  const auto& element = like->type.element;
  if (element == nullptr || element->dtype == DataType::kUndefined) return std::nullopt;
  return Values{g.op("SequenceEmpty", {}, {{"dtype", static_cast<std::int64_t>(element->dtype)}})};
}

bool have_equal_shapes(const Values& elements) {
  const ir::Type& first = elements.front()->type;
  return first.has_rank() && std::ranges::all_of(elements, [&](const Value* element) {
           const ir::Type& type = element->type;
           if (type.dtype != first.dtype || !type.has_rank() || type.rank() != first.rank()) {
             return false;
           }
           return std::ranges::equal(
               *type.shape, *first.shape,
               [](const ir::Dim& a, const ir::Dim& b) { return a.surely_equals(b); });
         });
}

// Tensor split along `axis` into parts of `part` rows each; the last part may be smaller.
struct EqualParts {
  Value* tensor = nullptr;
  std::int64_t axis = 0;
  std::int64_t part = 1;
  bool drops_axis = false;  // parts of one row, with the axis removed
};

std::optional<EqualParts> equal_parts(const Value* sequence) {
  const Node* node = ir::look_through_identities(sequence)->producer;
  if (node == nullptr || !node->domain.empty() || node->op_type != "SplitToSequence") return {};
  EqualParts parts{.tensor = node->inputs[0], .axis = node->int_attribute("axis", 0)};
  const Value* split = node->input(1);
  if (split == nullptr) {
    parts.drops_axis = node->int_attribute("keepdims", 1) == 0;
    return parts;
  }
  const auto given = constant_int(split);
  if (!given || split->initializer.dims().rank() != 0 || *given < 1) return {};
  parts.part = *given;
  return parts;
}

// Returns the EqualParts of elements that are all outputs of one Split, in order.
std::optional<EqualParts> equal_parts(const Values& elements) {
  const Node* node = elements.empty() ? nullptr : elements.front()->producer;
  if (node == nullptr || !node->domain.empty() || node->op_type != "Split") return {};
  const auto sizes = node->outputs == elements ? constant_ints(node->input(1)) : std::nullopt;
  if (!sizes || sizes->empty() || sizes->back() > sizes->front() || sizes->front() < 1 ||
      std::ranges::count(*sizes, sizes->front()) < std::ssize(*sizes) - 1) {
    return {};
  }
  return EqualParts{
      .tensor = node->inputs[0], .axis = node->int_attribute("axis", 0), .part = sizes->front()};
}

// Returns the number of parts, int64 [1].
Value* count_parts(GraphBuilder& g, const EqualParts& parts) {
  Value* rows = dim_value(g, parts.tensor, parts.axis);
  if (parts.part == 1) return rows;
  return g.div(g.add(rows, g.ints({parts.part - 1})), g.ints({parts.part}));
}

// Returns the part at `position`, which may be negative.
Value* take_part(GraphBuilder& g, const EqualParts& parts, Value* position) {
  if (parts.drops_axis) return g.gather(parts.tensor, position, parts.axis);
  Value* place = g.reshape(g.cast(position, DataType::kInt64), std::vector<std::int64_t>{1});
  if (parts.part == 1) return g.gather(parts.tensor, place, parts.axis);
  Value* from_end = g.add(place, count_parts(g, parts));
  Value* first = g.where(g.less(place, g.ints({0})), from_end, place);
  Value* start = g.mul(first, g.ints({parts.part}));
  Value* end = g.add(start, g.ints({parts.part}));
  return g.op("Slice", {parts.tensor, start, end, g.ints({parts.axis})});
}

// Stacks the elements that the iterations of a Loop append to an initially empty sequence: adds an
// output to the Loop. nullptr if `sequence` is not built that way.
Value* collected_rows(GraphBuilder& g, const Value* sequence) {
  sequence = ir::look_through_identities(sequence);
  Node* loop = sequence->producer;
  if (loop == nullptr || loop->op_type != "Loop" || !loop->domain.empty()) return nullptr;
  const auto state = static_cast<std::size_t>(sequence->output_index);
  if (state + 2 >= loop->inputs.size()) return nullptr;
  const Results initial = elements_of(loop->inputs[state + 2]);
  if (!initial || !initial->empty()) return nullptr;
  ir::Graph& body = *std::get<ir::GraphPtr>(*loop->find_attribute("body"));
  const Node* insert = ir::look_through_identities(body.outputs[state + 1])->producer;
  if (insert == nullptr || insert->op_type != "SequenceInsert" || insert->input(2) != nullptr ||
      ir::look_through_identities(insert->inputs[0]) != body.inputs[state + 2]) {
    return nullptr;
  }
  Value* element = insert->inputs[1];
  const bool is_own = element->graph == &body && element->producer != nullptr;
  body.outputs.push_back(is_own ? element : g.inside(body).identity(element));
  ir::Type type = element->type;
  if (type.shape) type.shape->insert(type.shape->begin(), ir::Dim());
  return loop->graph->add_output(loop, loop->outputs.size(), std::move(type),
                                 element->name + "_all");
}

bool has_fixed_shape(const Value* value) {
  return value->type.has_rank() && std::ranges::all_of(*value->type.shape, [](const ir::Dim& dim) {
           return dim.is_static() || dim.is_symbolic();
         });
}

// Returns the stacked elements of a Loop if they all have one shape: row i is then element i.
Value* equal_rows(GraphBuilder& g, const Value* sequence) {
  const Node* loop = ir::look_through_identities(sequence)->producer;
  if (loop == nullptr || loop->op_type != "Loop" || loop->subgraphs().size() != 1) return nullptr;
  const auto place =
      static_cast<std::size_t>(ir::look_through_identities(sequence)->output_index) + 1;
  const ir::Graph& body = *loop->subgraphs().front();
  if (place >= body.outputs.size()) return nullptr;
  const Node* insert = ir::look_through_identities(body.outputs[place])->producer;
  const bool is_insert = insert != nullptr && insert->inputs.size() == 2 &&
                         insert->op_type == "SequenceInsert" && has_fixed_shape(insert->inputs[1]);
  return is_insert ? collected_rows(g, sequence) : nullptr;
}

// SequenceAt with a computed position: takes a row of the stacked elements, if they have one shape.
Results lower_at(const Node& node, GraphBuilder& g) {
  const Results elements = elements_of(node.input(0));
  if (const auto parts = equal_parts(node.input(0)); parts && !elements) {
    return Values{take_part(g, *parts, node.input(1))};
  }
  if (!elements) {
    Value* rows = equal_rows(g, node.input(0));
    if (rows == nullptr) return std::nullopt;
    return Values{g.gather(rows, node.input(1), 0)};
  }
  if (const auto place = position_in(node, node.input(1), elements->size(), false, 0)) {
    return Values{(*elements)[*place]};
  }
  if (const auto parts = equal_parts(*elements)) return Values{take_part(g, *parts, node.input(1))};
  if (elements->empty() || !have_equal_shapes(*elements)) return std::nullopt;
  Values rows;
  for (Value* element : *elements) rows.push_back(g.unsqueeze(element, {0}));
  return Values{g.gather(g.concat(rows, 0), node.input(1), 0)};
}

Results lower_insert(const Node& node, GraphBuilder& g) {
  Results elements = elements_of(node.input(0));
  if (!elements || elements->size() >= kMaxElements) return std::nullopt;
  const auto place = position_in(node, node.input(2), elements->size(), true, elements->size());
  if (!place) return std::nullopt;
  elements->insert(elements->begin() + static_cast<std::ptrdiff_t>(*place), node.input(1));
  return make_sequence(g, *elements, node.input(0));
}

Results lower_erase(const Node& node, GraphBuilder& g) {
  Results elements = elements_of(node.input(0));
  if (!elements) return std::nullopt;
  const std::size_t last = elements->empty() ? 0 : elements->size() - 1;
  const auto place = position_in(node, node.input(1), elements->size(), false, last);
  if (!place) return std::nullopt;
  elements->erase(elements->begin() + static_cast<std::ptrdiff_t>(*place));
  return make_sequence(g, *elements, node.input(0));
}

Results lower_length(const Node& node, GraphBuilder& g) {
  const Results elements = elements_of(node.input(0));
  if (const auto parts = equal_parts(node.input(0)); parts && !elements) {
    return Values{g.squeeze(count_parts(g, *parts), {0})};
  }
  if (!elements) {
    Value* rows = equal_rows(g, node.input(0));
    if (rows == nullptr) return std::nullopt;
    return Values{g.squeeze(dim_value(g, rows, 0), {0})};
  }
  return Values{g.int_scalar(static_cast<std::int64_t>(elements->size()))};
}

// Reshapes [n, ...] to [..., n, ...] or, without a new axis, [..., n d, ...].
Value* join_rows(GraphBuilder& g, Value* rows, std::int64_t axis, bool new_axis) {
  const std::size_t rank = rows->type.rank();
  std::vector<std::int64_t> perm(rank);
  std::iota(perm.begin(), perm.end(), 0);
  std::rotate(perm.begin(), perm.begin() + 1, perm.begin() + axis + 1);
  Value* moved = axis == 0 ? rows : g.transpose(rows, perm);
  if (new_axis) return moved;
  Values dims;
  if (axis > 0) dims.push_back(g.dims_of(moved, 0, axis));
  dims.push_back(g.mul(dim_value(g, moved, axis), dim_value(g, moved, axis + 1)));
  const auto last = static_cast<std::int64_t>(rank);
  if (axis + 2 < last) dims.push_back(g.dims_of(moved, axis + 2, last));
  return g.reshape(moved, dims.size() == 1 ? dims.front() : g.concat(dims, 0));
}

Results lower_collected(const Node& node, GraphBuilder& g) {
  const Value* sequence = ir::look_through_identities(node.input(0));
  if (sequence->type.kind != ir::Type::Kind::kSequence || !sequence->type.element) return {};
  const bool new_axis = node.int_attribute("new_axis") == 1;
  const Node* loop = sequence->producer;
  if (loop == nullptr || loop->subgraphs().size() != 1) return std::nullopt;
  const auto place = static_cast<std::size_t>(sequence->output_index) + 1;
  const ir::Graph& body = *loop->subgraphs().front();
  if (place >= body.outputs.size()) return std::nullopt;
  const Node* insert = ir::look_through_identities(body.outputs[place])->producer;
  // Parts of different sizes can be concatenated, but not stacked.
  if (insert == nullptr || insert->op_type != "SequenceInsert" || insert->inputs.size() != 2 ||
      !insert->inputs[1]->type.has_rank() || (!new_axis && !has_fixed_shape(insert->inputs[1]))) {
    return std::nullopt;
  }
  const auto rank = static_cast<std::int64_t>(insert->inputs[1]->type.rank()) + (new_axis ? 1 : 0);
  const std::int64_t axis =
      normalize_axis(node.int_attribute("axis"), static_cast<std::size_t>(rank));
  Value* rows = collected_rows(g, sequence);
  if (rows == nullptr) return std::nullopt;
  return Values{join_rows(g, rows, axis, new_axis)};
}

Results lower_concat(const Node& node, GraphBuilder& g) {
  Results elements = elements_of(node.input(0));
  const std::int64_t axis = node.int_attribute("axis");
  if (!elements) return lower_collected(node, g);
  if (elements->empty()) return std::nullopt;
  if (node.int_attribute("new_axis") == 1) {
    for (Value*& element : *elements) element = g.unsqueeze(element, {axis});
  }
  return Values{g.concat(*elements, axis)};
}

// Returns the sizes of the parts along `axis`; nullopt if they, or their number, are not known, or
// if there are more than kMaxElements.
std::optional<std::vector<std::int64_t>> split_sizes(const Node& node, std::int64_t axis) {
  const Value* split = node.input(1);
  auto given = split == nullptr ? std::vector<std::int64_t>{1} : constant_ints(split);
  if (!given) return std::nullopt;
  if (split != nullptr && split->initializer.dims().rank() == 1) return given;
  const auto size = known_dim(node.input(0), axis);
  if (!size || given->size() != 1 || given->front() < 1) return std::nullopt;
  const std::int64_t part = given->front();
  if (*size / part > static_cast<std::int64_t>(kMaxElements)) return std::nullopt;
  std::vector<std::int64_t> sizes;
  for (std::int64_t left = *size; left > 0; left -= part) sizes.push_back(std::min(part, left));
  return sizes;
}

Results lower_split(const Node& node, GraphBuilder& g) {
  const std::int64_t axis = node.int_attribute("axis");
  const auto sizes = split_sizes(node, axis);
  if (!sizes || sizes->empty() || sizes->size() > kMaxElements) return std::nullopt;
  Values parts{node.input(0)};
  if (sizes->size() > 1) {
    parts = g.ops("Split", {node.input(0), g.ints(*sizes)}, sizes->size(), {{"axis", axis}});
  }
  if (node.input(1) == nullptr && node.int_attribute("keepdims") == 0) {
    for (Value*& part : parts) part = g.squeeze(part, {axis});
  }
  return Values{g.op("SequenceConstruct", parts)};
}

// SequenceMap: copies the body for each position.
Results lower_map(const Node& node, GraphBuilder& g) {
  const ir::GraphPtr body = std::get<ir::GraphPtr>(*node.find_attribute("body"));
  const Results first = elements_of(node.input(0));
  const bool fits = body->inputs.size() == node.inputs.size() &&
                    body->outputs.size() == node.outputs.size();  // else inference reports it
  if (!fits || !first || first->empty() || first->size() * body->nodes.size() > kMaxElements) {
    return std::nullopt;
  }
  std::vector<Values> operands;
  for (Value* input : node.inputs) {
    const Results elements = elements_of(input);
    const bool is_sequence = input->type.kind == ir::Type::Kind::kSequence;
    if (is_sequence && (!elements || elements->size() != first->size())) return std::nullopt;
    operands.push_back(is_sequence ? *elements : Values(first->size(), input));
  }
  std::vector<Values> results(node.outputs.size());
  for (std::size_t i = 0; i < first->size(); ++i) {
    std::unordered_map<const Value*, Value*> map;
    for (std::size_t k = 0; k < operands.size(); ++k) map[body->inputs[k]] = operands[k][i];
    const std::size_t first_new = g.graph().nodes.size();
    ir::append_nodes(*body, g.graph(), map);
    for (std::size_t n = first_new; n < g.graph().nodes.size(); ++n) {
      g.inferer().infer(*g.graph().nodes[n]);
    }
    for (std::size_t o = 0; o < results.size(); ++o) {
      Value* output = body->outputs[o];
      const auto copied = map.find(output);
      results[o].push_back(copied == map.end() ? output : copied->second);
    }
  }
  Values sequences;
  for (const Values& elements : results) sequences.push_back(g.op("SequenceConstruct", elements));
  return sequences;
}

}  // namespace

void register_sequence(opdef::OpRegistry& registry) {
  AttributeSpec axis = axis_attribute("axis");
  axis.required = true;
  registry.add({.op_type = "SequenceConstruct",
                .since_version = 11,
                .differentiable_inputs = {0, -1},
                .vjp = sequence_construct_vjp});
  registry.add({.op_type = "SequenceEmpty",
                .since_version = 11,
                .attributes = {{.name = "dtype", .min = 1, .max = 16}}});
  registry.add({.op_type = "SequenceAt",
                .since_version = 11,
                .differentiable_inputs = {0},
                .vjp = sequence_at_vjp,
                .lower = lower_at});
  registry.add({.op_type = "SequenceInsert",
                .since_version = 11,
                .differentiable_inputs = {0, 1},
                .vjp = sequence_insert_vjp,
                .lower = lower_insert});
  registry.add({.op_type = "SequenceErase",
                .since_version = 11,
                .differentiable_inputs = {0},
                .vjp = sequence_erase_vjp,
                .lower = lower_erase});
  registry.add({.op_type = "SequenceLength",
                .since_version = 11,
                .lower = lower_length,
                .zero_gradient = true});
  registry.add({.op_type = "ConcatFromSequence",
                .since_version = 11,
                .differentiable_inputs = {0},
                .attributes = {axis, flag_attribute("new_axis", false)},
                .vjp = concat_from_sequence_vjp,
                .lower = lower_concat});
  registry.add({.op_type = "SplitToSequence",
                .since_version = 24,
                .differentiable_inputs = {0},
                .attributes = {axis_attribute("axis", 0), flag_attribute("keepdims", true)},
                .vjp = split_to_sequence_vjp,
                .lower = lower_split});
  registry.add({.op_type = "SequenceMap",
                .since_version = 17,
                .differentiable_inputs = {0, -1},
                .attributes = {{.name = "body", .type = AttributeType::kGraph, .required = true}},
                .vjp = sequence_map_vjp,
                .lower = lower_map});
}

}  // namespace onnxgrad::ops::sequence_op
