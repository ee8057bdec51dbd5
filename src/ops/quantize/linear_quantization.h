#ifndef ONNXGRAD_OPS_QUANTIZE_LINEAR_QUANTIZATION_H_
#define ONNXGRAD_OPS_QUANTIZE_LINEAR_QUANTIZATION_H_

#include <cstdint>

#include "opdef/op_def.h"
#include "ops/rules.h"

namespace onnxgrad::ops {

/// DequantizeLinear (QuantizeLinear) with a scale of one element, or of one per element along
/// `axis`, and a zero point or nullptr. x that comes from a QuantizeLinear of the same scale is
/// replaced by the straight-through function of its operand.
Value* dequantize(GraphBuilder& g, Value* x, Value* scale, Value* zero_point, std::int64_t axis);
Value* quantize(GraphBuilder& g, Value* x, Value* scale, Value* zero_point, DataType dtype);

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_QUANTIZE_LINEAR_QUANTIZATION_H_
