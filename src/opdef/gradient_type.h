#ifndef ONNXGRAD_OPDEF_GRADIENT_TYPE_H_
#define ONNXGRAD_OPDEF_GRADIENT_TYPE_H_

#include <utility>

#include "ir/builder.h"

namespace onnxgrad::opdef {

/// The type of gradients of values of this type: float32 for float16 and bfloat16.
inline DataType gradient_dtype(DataType dtype) {
  return is_half(dtype) ? DataType::kFloat32 : dtype;
}

inline ir::Type gradient_type(ir::Type type) {
  if (type.is_tensor()) type.dtype = gradient_dtype(type.dtype);
  return type;
}

/// Zeros of the shape of `value` and the type of its gradients.
inline ir::Value* zero_gradient(ir::GraphBuilder& g, ir::Value* value) {
  if (!value->type.is_tensor() || !is_half(value->dtype())) return g.zeros_like(value);
  ir::Value* zero = g.constant(Tensor::zeros(DataType::kFloat32, Dims{}), "zero");
  const auto dims = value->type.static_dims();
  if (!dims) return g.expand(zero, g.shape_of(value));
  return dims->rank() == 0 ? zero : g.expand(zero, g.ints({dims->begin(), dims->end()}));
}

}  // namespace onnxgrad::opdef

#endif  // ONNXGRAD_OPDEF_GRADIENT_TYPE_H_
