#ifndef ONNXGRAD_OPS_QUANTIZE_QUANTIZED_NUMBER_H_
#define ONNXGRAD_OPS_QUANTIZE_QUANTIZED_NUMBER_H_

#include "ops/rules.h"

// Gradients of quantized values. Integers that QuantizeLinear computes carry no gradient. Where
// they are read as floating-point values (Cast, DequantizeLinear, MatMulInteger), floating-point
// values equal to them, which do carry one, take their place, through all operators in between that
// act alike on both.

namespace onnxgrad::ops {

/// Returns floating-point values equal to the integers `q`, with a gradient; nullptr if `q` does
/// not come from a QuantizeLinear through such operators.
Value* quantized_number(GraphBuilder& g, Value* q);

/// Returns such values for the output of a QuantizeLinear, float32; nullptr if its ranks are
/// unknown. Defined with its rule, in linear_quantization.cpp.
Value* number_of_quantize(GraphBuilder& g, const Node& quantize);

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_QUANTIZE_QUANTIZED_NUMBER_H_
