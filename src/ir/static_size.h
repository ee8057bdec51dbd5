#ifndef ONNXGRAD_IR_STATIC_SIZE_H_
#define ONNXGRAD_IR_STATIC_SIZE_H_

#include <cstdint>
#include <optional>

#include "ir/graph.h"

namespace onnxgrad::ir {

/// The number of elements of a value whose dimensions are all numbers, without making its Dims.
/// Throws: ShapeError (Dims).
std::optional<std::int64_t> static_elements(const Value& value);

/// The bytes of a value whose dimensions are all numbers; see Dims::size_bytes(). Throws:
/// ShapeError.
std::optional<std::int64_t> static_bytes(const Value& value);

}  // namespace onnxgrad::ir

#endif  // ONNXGRAD_IR_STATIC_SIZE_H_
