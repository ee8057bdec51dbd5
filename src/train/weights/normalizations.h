#ifndef ONNXGRAD_TRAIN_NORMALIZATIONS_H_
#define ONNXGRAD_TRAIN_NORMALIZATIONS_H_

#include "ir/graph.h"

// Normalisations written out as several nodes: layer normalisation before opset 17, RMS
// normalisation, group normalisation of exporters. Their scale and shift are operands of Mul and
// Add; only the nodes before these distinguish them from constants.

namespace onnxgrad::train {

/// True if `value` is x / sqrt(mean + epsilon) with a mean computed from data, in any
/// form: Sqrt or Pow, Div or a product with the reciprocal; or the result of an
/// InstanceNormalization. Looks through operators that keep values (Cast, Reshape, ...).
bool is_normalized(const ir::Value* value);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_NORMALIZATIONS_H_
