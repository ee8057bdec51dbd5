#ifndef ONNXGRAD_ONNX_CONTRIB_SCHEMAS_H_
#define ONNXGRAD_ONNX_CONTRIB_SCHEMAS_H_

#include <span>

#include "onnx/schemas.h"

namespace onnxgrad::onnx_io {

/// Schemas of operators of onnxruntime's domain com.microsoft that have kernels, so that their
/// nodes are checked and their types inferred like those of ONNX's. All others become standard
/// operators when a model is loaded (ops/contrib) and need none.
std::span<const SchemaRow> contrib_schema_table();

}  // namespace onnxgrad::onnx_io

#endif  // ONNXGRAD_ONNX_CONTRIB_SCHEMAS_H_
