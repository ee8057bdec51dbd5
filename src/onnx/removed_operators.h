#ifndef ONNXGRAD_ONNX_REMOVED_OPERATORS_H_
#define ONNXGRAD_ONNX_REMOVED_OPERATORS_H_

#include <span>

#include "onnx/rewriting.h"
#include "onnx/schemas.h"

// Experimental operators of ai.onnx that ONNX removed before 1.5 and that onnxruntime still runs in
// opsets before 10: Affine, Crop, DynamicSlice, ImageScaler, ParametricSoftplus, Scale, ScaledTanh.

namespace onnxgrad::onnx_io {

/// Schemas of these operators, deprecated from opset 10 on.
std::span<const SchemaRow> removed_schema_table();

/// One rule for each operator, which writes it as operators of the internal opset. It applies to
/// opsets before `RewriteRule::opset`.
std::span<const RewriteRule> removed_operator_rules();

}  // namespace onnxgrad::onnx_io

#endif  // ONNXGRAD_ONNX_REMOVED_OPERATORS_H_
