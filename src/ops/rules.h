#ifndef ONNXGRAD_OPS_RULES_H_
#define ONNXGRAD_OPS_RULES_H_

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "opdef/op_def.h"

// Helpers shared by the gradient rules of several families: queries for values that may be known
// before anything runs, and small graphs that compute them if they are not.

namespace onnxgrad::ops {

using ir::GraphBuilder;
using ir::Node;
using ir::Value;

/// An attribute that is 0 or 1.
opdef::AttributeSpec flag_attribute(std::string_view name, bool default_value);
/// An axis of a tensor of at most Dims::kMaxRank dimensions, negative ones counted from the end.
opdef::AttributeSpec axis_attribute(std::string_view name,
                                    std::optional<std::int64_t> default_value = {});
/// Any 32-bit float, including infinities and NaN.
opdef::AttributeSpec float_attribute(std::string_view name,
                                     std::optional<float> default_value = {});
/// A finite 32-bit float above 0.
opdef::AttributeSpec positive_attribute(std::string_view name,
                                        std::optional<float> default_value = {});
/// One of these strings, by default the first.
opdef::AttributeSpec choice_attribute(std::string_view name, std::vector<std::string_view> choices);

/// The elements of an integer tensor that no run can change; nullopt if it is not one (or absent).
std::optional<std::vector<std::int64_t>> constant_ints(const Value* value);
/// The one element of an integer tensor that no run can change; nullopt if it has another number of
/// elements.
std::optional<std::int64_t> constant_int(const Value* value);
/// The one element of a numeric tensor that no run can change.
std::optional<double> constant_number(const Value* value);

/// The rank; nullopt if it is not known before anything runs.
std::optional<std::size_t> known_rank(const Value* value);
/// The rank of input `i`. Throws: GradientError naming the node if it is not known.
std::size_t required_rank(const opdef::VjpContext& ctx, std::size_t i);
/// The number of elements along `axis` (negative: from the end), if known.
std::optional<std::int64_t> known_dim(const Value* value, std::int64_t axis);

/// The shape of `x`, int64 [rank]: a constant if known, else a Shape node.
Value* shape_value(GraphBuilder& g, Value* x);
/// The rank of `x`, int64 [1]: a constant if known.
Value* rank_value(GraphBuilder& g, Value* x);
/// The size of `x` along `axis`, int64 [1]: a constant if known.
Value* dim_value(GraphBuilder& g, Value* x, std::int64_t axis);
/// int64 [stop - start]: start, start + 1, ...; `start` and `stop` are int64 [1].
Value* range_value(GraphBuilder& g, Value* start, Value* stop);
/// A tensor of `like`'s dtype with this shape (int64 [rank]), all zeros.
Value* zeros_of_shape(GraphBuilder& g, Value* shape, Value* like);

/// The index of each element of `x` in row-major order, int64 of x's shape. Applying an operator
/// to these indices shows where its output elements come from.
Value* position_numbers(GraphBuilder& g, Value* x);
/// Zeros of x's shape and dy's dtype to which each element of `dy` is added at the position in
/// `positions` (same shape as dy): the transpose of gathering elements.
Value* add_at_positions(GraphBuilder& g, Value* positions, Value* dy, Value* x);

/// condition ? x : 0.
Value* keep_where(GraphBuilder& g, Value* condition, Value* x);
/// condition ? 0 : x.
Value* drop_where(GraphBuilder& g, Value* condition, Value* x);

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_RULES_H_
