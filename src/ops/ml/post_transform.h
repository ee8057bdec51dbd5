#ifndef ONNXGRAD_OPS_ML_POST_TRANSFORM_H_
#define ONNXGRAD_OPS_ML_POST_TRANSFORM_H_

#include <string>
#include <string_view>
#include <vector>

#include "opdef/registry.h"
#include "ops/rules.h"

// What the operators of ai.onnx.ml have in common.

namespace onnxgrad::ops {

inline constexpr std::string_view kMl = "ai.onnx.ml";

/// The scores [N, E] after `transform`: NONE, SOFTMAX, LOGISTIC, SOFTMAX_ZERO or PROBIT.
Value* post_transform(GraphBuilder& g, Value* scores, const std::string& transform);

/// An initializer with the numbers of a floating-point attribute of `node`, of which element i is
/// at index[i] of it, or at i if there is no index.
Value* attribute_initializer(GraphBuilder& g, const Node& node, const std::string& attribute,
                             Tensor numbers, std::vector<std::int64_t> index = {});

/// Throws: ModelError naming the node: attributes that do not fit each other.
[[noreturn]] void refuse_attributes(const Node& node, std::string what);

/// The class list: classlabels_ints or classlabels_int64s, or classlabels_strings; undefined if
/// there is none. As an initializer, and picked by the numbers [N].
Tensor class_list(const Node& node);
Value* pick_labels(GraphBuilder& g, const Node& node, Value* numbers);

opdef::AttributeSpec list_attribute(std::string_view name, opdef::AttributeType type);

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_ML_POST_TRANSFORM_H_
