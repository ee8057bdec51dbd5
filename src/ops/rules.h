#ifndef ONNXGRAD_OPS_RULES_H_
#define ONNXGRAD_OPS_RULES_H_

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "opdef/function_body.h"
#include "opdef/op_def.h"

// Helpers shared by the gradient rules of several families: queries for values that may be
// constant, and small graphs that compute them if they are not.

namespace onnxgrad::ops {

using ir::Attribute;
using ir::GraphBuilder;
using ir::Node;
using ir::Value;
using opdef::AttributeSpec;
using opdef::AttributeType;
using opdef::FunctionBody;
using opdef::VjpContext;

/// Specification of an attribute that is 0 or 1.
AttributeSpec flag_attribute(std::string_view name, bool default_value);
/// Specification of an axis of a tensor of at most Dims::kMaxRank dimensions; negative axes count
/// from the end.
AttributeSpec axis_attribute(std::string_view name, std::optional<std::int64_t> default_value = {});
/// Specification of any 32-bit float, including infinities and NaN.
AttributeSpec float_attribute(std::string_view name, std::optional<float> default_value = {});
/// Specification of a finite 32-bit float above 0.
AttributeSpec positive_attribute(std::string_view name, std::optional<float> default_value = {});
/// Specification of one of these strings; the first is the default.
AttributeSpec choice_attribute(std::string_view name, std::vector<std::string_view> choices);

/// Returns the elements of a constant integer tensor; nullopt if it is not one (or absent).
std::optional<std::vector<std::int64_t>> constant_ints(const Value* value);
/// Returns the only element of a constant integer tensor; nullopt if it does not have exactly one.
std::optional<std::int64_t> constant_int(const Value* value);
/// Returns the only element of a constant numeric tensor; nullopt if it does not have exactly one.
std::optional<double> constant_number(const Value* value);

/// Returns the rank; nullopt if it is not known statically.
std::optional<std::size_t> known_rank(const Value* value);
/// Returns the rank of input `i`. Throws: GradientError naming the node if it is not known.
std::size_t required_rank(const VjpContext& ctx, std::size_t i);
/// Returns the size along `axis` (negative: from the end), if known.
std::optional<std::int64_t> known_dim(const Value* value, std::int64_t axis);

/// Returns the shape of `x`, int64 [rank]: a constant if known, else a Shape node.
Value* shape_value(GraphBuilder& g, Value* x);
/// Returns the rank of `x`, int64 [1]: a constant if known.
Value* rank_value(GraphBuilder& g, Value* x);
/// Returns the size of `x` along `axis`, int64 [1]: a constant if known.
Value* dim_value(GraphBuilder& g, Value* x, std::int64_t axis);
/// Returns start, start + 1, ... as int64 [stop - start]; `start` and `stop` are int64 [1].
Value* range_value(GraphBuilder& g, Value* start, Value* stop);
/// Returns zeros of `like`'s dtype with shape `shape` (int64 [rank]).
Value* zeros_of_shape(GraphBuilder& g, Value* shape, Value* like);

/// Returns the row-major index of each element of `x`, int64 of x's shape. Applying an operator to
/// these indices shows where its output elements come from.
Value* position_numbers(GraphBuilder& g, Value* x);
/// Returns zeros of x's shape and dy's dtype to which each element of `dy` is added at its index in
/// `positions` (same shape as dy): the transpose of gathering elements.
Value* add_at_positions(GraphBuilder& g, Value* positions, Value* dy, Value* x);

/// Returns condition ? x : 0.
Value* keep_where(GraphBuilder& g, Value* condition, Value* x);
/// Returns condition ? 0 : x.
Value* drop_where(GraphBuilder& g, Value* condition, Value* x);

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_RULES_H_
