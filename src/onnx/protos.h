#ifndef ONNXGRAD_ONNX_PROTOS_H_
#define ONNXGRAD_ONNX_PROTOS_H_

#include <onnx/onnx_pb.h>

#include "ir/attribute.h"
#include "ir/type.h"
#include "onnxgrad/tensor.h"

// Conversion of single types, tensors and attributes to the messages that ONNX's inference
// functions read.

namespace onnxgrad::onnx_io {

/// Converts a type; unknown kinds become an empty message.
void to_proto(const ir::Type& type, onnx::TypeProto& proto);

/// Converts a type back. Throws: ShapeError (negative or too large dimension, rank above 64).
ir::Type from_proto(const onnx::TypeProto& proto);

/// Converts a tensor: data as raw_data, strings as string_data.
void to_proto(const Tensor& tensor, onnx::TensorProto& proto);

/// Converts an attribute. Graphs are omitted (only type and name are set): inference reaches them
/// in another way.
void to_proto(const ir::Attribute& attribute, onnx::AttributeProto& proto);

}  // namespace onnxgrad::onnx_io

#endif  // ONNXGRAD_ONNX_PROTOS_H_
