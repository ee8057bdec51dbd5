#ifndef ONNXGRAD_OPS_QUANTIZE_LINEAR_QUANTIZATION_H_
#define ONNXGRAD_OPS_QUANTIZE_LINEAR_QUANTIZATION_H_

#include <cstdint>

#include "opdef/op_def.h"
#include "ops/rules.h"

namespace onnxgrad::ops {

/// Emits DequantizeLinear (QuantizeLinear) with a scale of one element, or of one per element along
/// `axis`, and a zero point or nullptr. An x that comes from a QuantizeLinear with equal scale is
/// replaced by the straight-through function of its operand.
Value* dequantize(GraphBuilder& g, Value* x, Value* scale, Value* zero_point, std::int64_t axis);
Value* quantize(GraphBuilder& g, Value* x, Value* scale, Value* zero_point, DataType dtype);

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_QUANTIZE_LINEAR_QUANTIZATION_H_
