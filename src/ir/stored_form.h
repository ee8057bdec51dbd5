#ifndef ONNXGRAD_IR_STORED_FORM_H_
#define ONNXGRAD_IR_STORED_FORM_H_

#include "ir/origin.h"
#include "onnxgrad/tensor.h"

namespace onnxgrad::ir {

/// `weight` (of a floating type) as the file stores it: element i is factor[i] * weight[index[i]]
/// of `origin`, rounded to the dtype of `weight`; the shape is `dims`. `weight` itself if the
/// origin has no index. Throws: InternalError (the origin is not that of a weight of this size, or
/// omits some element).
Tensor stored_form(const Tensor& weight, const WeightOrigin& origin, const Dims& dims);

}  // namespace onnxgrad::ir

#endif  // ONNXGRAD_IR_STORED_FORM_H_
