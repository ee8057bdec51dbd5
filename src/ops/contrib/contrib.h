#ifndef ONNXGRAD_OPS_CONTRIB_CONTRIB_H_
#define ONNXGRAD_OPS_CONTRIB_CONTRIB_H_

#include <cstddef>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "onnxgrad/error.h"
#include "opdef/registry.h"
#include "ops/rules.h"

// Operators of domain com.microsoft, which onnxruntime's optimizers and quantizers write. ONNX has
// no schemas of them: each is defined in onnxruntime's ContribOperators.md, and here, when a model
// is loaded, it becomes standard operators. Their operands keep their names and places in the file,
// so weights are trained and returned as those of any other node.

namespace onnxgrad::ops {

/// The values that a lowered node's outputs become; see opdef::LowerFn.
using Lowered = std::optional<std::vector<Value*>>;

inline constexpr std::string_view kMicrosoft = "com.microsoft";

/// Throws: ModelError naming the node if it has more inputs than `names`, or if one of the first
/// `required` is absent, or any is not a tensor. A name that ends in '?' is of one that may be
/// absent.
void check_inputs(const Node& node, std::size_t required,
                  std::initializer_list<std::string_view> names);

/// Throws: UnsupportedOperatorError: a form of the operator that has no standard form.
[[noreturn]] void refuse_form(const Node& node, std::string what, Hint hint);

/// The same where the input of that number is there, or an integer attribute is not zero.
void refuse_input(const Node& node, std::size_t input, std::string_view name);
void refuse_attribute(const Node& node, std::string_view name);

/// Throws: ModelError naming the node if one of the two inputs is absent and the other is not.
void check_both_or_none(const Node& node, std::size_t first, std::string_view first_name,
                        std::size_t second, std::string_view second_name);

/// The size along `axis`. Throws: ModelError if the model does not give it.
std::int64_t required_dim(const Node& node, const Value* value, std::int64_t axis,
                          std::string_view name);

/// The size of each of `heads` equal parts of `width` columns. Throws: ShapeError naming the node
/// and the input `name` if there is no head, or a part without columns, or columns are left over.
std::int64_t head_size(const Node& node, std::int64_t width, std::int64_t heads,
                       std::string_view name);

/// x, or x + bias where that is there.
Value* add_if(GraphBuilder& g, Value* x, Value* bias);

/// 0.5 x (1 + erf(x / sqrt(2))).
Value* gelu(GraphBuilder& g, Value* x);
/// 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))).
Value* tanh_gelu(GraphBuilder& g, Value* x);

/// Attributes without a default.
opdef::AttributeSpec int_attribute(std::string_view name, std::int64_t min, std::int64_t max,
                                   std::optional<std::int64_t> default_value = {});
opdef::AttributeSpec ints_attribute(std::string_view name);
opdef::AttributeSpec floats_attribute(std::string_view name);
opdef::AttributeSpec string_attribute(std::string_view name);

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_CONTRIB_CONTRIB_H_
