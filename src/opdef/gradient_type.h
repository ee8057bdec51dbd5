#ifndef ONNXGRAD_OPDEF_GRADIENT_TYPE_H_
#define ONNXGRAD_OPDEF_GRADIENT_TYPE_H_

#include "ir/builder.h"

// Gradients as values: for a tensor, a tensor of its shape; for a sequence, the sequence of the
// gradients of its elements.

namespace onnxgrad::opdef {

/// The type of gradients of values of this type: float32 for float16 and bfloat16.
inline DataType gradient_dtype(DataType dtype) {
  return is_f16(dtype) ? DataType::kFloat32 : dtype;
}

ir::Type gradient_type(ir::Type type);

/// False for integers, truth values, texts and sequences of such; true where it is not known.
bool can_have_gradient(const ir::Type& type);

/// Zeros of the shape of `value` and the type of its gradients.
ir::Value* zero_gradient(ir::GraphBuilder& g, ir::Value* value);

/// The sum of two gradients of one value.
ir::Value* add_gradients(ir::GraphBuilder& g, ir::Value* a, ir::Value* b);

/// The gradient of `sequence` where only the element at `position`, an integer scalar that may be
/// negative, has one: `gradient`. add_gradients() adds such a gradient to another in one place.
ir::Value* element_gradient(ir::GraphBuilder& g, ir::Value* sequence, ir::Value* position,
                            ir::Value* gradient);

}  // namespace onnxgrad::opdef

#endif  // ONNXGRAD_OPDEF_GRADIENT_TYPE_H_
