#ifndef ONNXGRAD_ONNX_TYPE_MESSAGE_H_
#define ONNXGRAD_ONNX_TYPE_MESSAGE_H_

#include <string_view>

#include "ir/type.h"
#include "onnx/wire.h"

// TypeProto in the wire format.

namespace onnxgrad::onnx_io {

/// Parses a TypeProto. Negative dimensions, which some exporters write for unknown ones, are
/// unknown. Throws: ModelError (no message, nested deeper than 32), ShapeError (rank above 64).
ir::Type read_type(std::string_view bytes);

void write_type(WireWriter& out, int field, const ir::Type& type);

}  // namespace onnxgrad::onnx_io

#endif  // ONNXGRAD_ONNX_TYPE_MESSAGE_H_
