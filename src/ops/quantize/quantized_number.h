#ifndef ONNXGRAD_OPS_QUANTIZE_QUANTIZED_NUMBER_H_
#define ONNXGRAD_OPS_QUANTIZE_QUANTIZED_NUMBER_H_

#include "ops/rules.h"

// Integers that QuantizeLinear computes carry no gradient. Where they are read as floating-point
// numbers (Cast, DequantizeLinear, MatMulInteger), numbers of the same values that do carry one
// take their place, through all operators in between that do the same to numbers as to integers.

namespace onnxgrad::ops {

/// Floating-point numbers equal to the integers `q`, with a gradient; nullptr if `q` does not come
/// from a QuantizeLinear through such operators.
Value* quantized_number(GraphBuilder& g, Value* q);

/// The same of the output of a QuantizeLinear, float32; nullptr if its ranks are unknown.
/// Defined with its rule, in linear_quantization.cpp.
Value* number_of_quantize(GraphBuilder& g, const Node& quantize);

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_QUANTIZE_QUANTIZED_NUMBER_H_
