#ifndef ONNXGRAD_TRAIN_NORMALIZATIONS_H_
#define ONNXGRAD_TRAIN_NORMALIZATIONS_H_

#include "ir/graph.h"

// Normalisations that are written out: layer normalisation before opset 17, RMS normalisation,
// group normalisation as exporters write it. Their scale and shift are the operands of Mul and Add,
// where nothing but what comes before tells them from constants.

namespace onnxgrad::train {

/// True if `value` is x / sqrt(mean + epsilon) with a mean that is computed from data, in any of
/// the forms of that: Sqrt or Pow, Div or a product with the reciprocal; or the result of an
/// InstanceNormalization. Seen through operators that keep values (Cast, Reshape, ...).
bool is_normalized(const ir::Value* value);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_NORMALIZATIONS_H_
