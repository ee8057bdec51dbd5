#ifndef ONNXGRAD_OPS_CONTRIB_CONTRIB_H_
#define ONNXGRAD_OPS_CONTRIB_CONTRIB_H_

#include <cstddef>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "onnxgrad/error.h"
#include "opdef/registry.h"
#include "ops/rules.h"

// Operators of domain com.microsoft, which onnxruntime's optimizers and quantizers write. ONNX has
// no schemas for them (onnxruntime's ContribOperators.md defines them); when a model is loaded they
// are rewritten as standard operators. The operands keep their names and places in the file, so
// their weights are trained and returned like those of any other node.

namespace onnxgrad::ops {

/// Values that replace the outputs of a lowered node; see opdef::LowerFn.
using Lowered = std::optional<std::vector<Value*>>;

inline constexpr std::string_view kMicrosoft = "com.microsoft";

/// Registers operators of onnxruntime.
struct LoweredOps {
  opdef::OpRegistry& registry;

  void operator()(std::string_view op_type, opdef::LowerFn lower,
                  std::vector<AttributeSpec> attributes = {}) const {
    registry.add({.domain = kMicrosoft,
                  .op_type = op_type,
                  .attributes = std::move(attributes),
                  .lower = lower});
  }
};

/// Checks the inputs of `node` against `names`; a name that ends in '?' may be absent.
/// Throws: ModelError naming the node if it has more inputs than names, if one of the first
/// `required` inputs is absent, or if one is not a tensor.
void check_inputs(const Node& node, std::size_t required,
                  std::initializer_list<std::string_view> names);

/// Throws: UnsupportedOperatorError, for a form of the operator that has no standard form.
[[noreturn]] void refuse_form(const Node& node, std::string what, Hint hint);

/// Throws: UnsupportedOperatorError if that input is present, or if that integer attribute is not
/// zero.
void refuse_input(const Node& node, std::size_t input, std::string_view name);
void refuse_attribute(const Node& node, std::string_view name);

/// Throws: ModelError naming the node if exactly one of the two inputs is absent.
void check_both_or_none(const Node& node, std::size_t first, std::string_view first_name,
                        std::size_t second, std::string_view second_name);

/// Returns the size along `axis`. Throws: ModelError if the model does not give it.
std::int64_t required_dim(const Node& node, const Value* value, std::int64_t axis,
                          std::string_view name);

/// Returns the number of columns of one head if `width` columns are split evenly into `heads`.
/// Throws: ShapeError naming the node and the input `name` if that number is not a whole one above
/// zero.
std::int64_t head_size(const Node& node, std::int64_t width, std::int64_t heads,
                       std::string_view name);

/// Returns x + bias, or x if `bias` is absent.
Value* add_if(GraphBuilder& g, Value* x, Value* bias);

/// Returns 0.5 x (1 + erf(x / sqrt(2))).
Value* gelu(GraphBuilder& g, Value* x);
/// Returns 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))).
Value* tanh_gelu(GraphBuilder& g, Value* x);

/// Attribute specifications; without `default_value` the attribute has no default.
AttributeSpec int_attribute(std::string_view name, std::int64_t min, std::int64_t max,
                            std::optional<std::int64_t> default_value = {});
AttributeSpec ints_attribute(std::string_view name);
AttributeSpec floats_attribute(std::string_view name);
AttributeSpec string_attribute(std::string_view name);

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_CONTRIB_CONTRIB_H_
