#ifndef ONNXGRAD_OPS_ML_POST_TRANSFORM_H_
#define ONNXGRAD_OPS_ML_POST_TRANSFORM_H_

#include <string>
#include <string_view>
#include <vector>

#include "ops/rules.h"

// Helpers shared by the operators of ai.onnx.ml.

namespace onnxgrad::ops {

inline constexpr std::string_view kMl = "ai.onnx.ml";

/// Returns the scores [N, E] after `transform`: NONE, SOFTMAX, LOGISTIC, SOFTMAX_ZERO or PROBIT.
Value* post_transform(GraphBuilder& g, Value* scores, const std::string& transform);

/// Returns an initializer with elements of a floating-point attribute of `node`; element i is
/// element index[i] of the attribute, or i if there is no index.
Value* attribute_initializer(GraphBuilder& g, const Node& node, const std::string& attribute,
                             Tensor numbers, std::vector<std::int64_t> index = {});

/// Throws: ModelError naming the node, for attributes that contradict each other.
[[noreturn]] void refuse_attributes(const Node& node, std::string what);

/// Return the class list (classlabels_ints or classlabels_int64s, or classlabels_strings; undefined
/// if absent), and its entries at the indices `numbers` [N].
Tensor class_list(const Node& node);
Value* pick_labels(GraphBuilder& g, const Node& node, Value* numbers);

AttributeSpec list_attribute(std::string_view name, AttributeType type);

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_ML_POST_TRANSFORM_H_
