#ifndef ONNXGRAD_OPDEF_COMMON_LAYOUT_H_
#define ONNXGRAD_OPDEF_COMMON_LAYOUT_H_

#include "opdef/kernel.h"
#include "opdef/layout.h"

// The trait "takes any common layout" of kernels that compute each element of their results from
// the elements at that place of their operands: they need not know the order of elements.

namespace onnxgrad::opdef {

/// The layout that such a kernel can use for all operands and results: that of most operands, of
/// two the one that is not plain. Plain if an operand of more than one element, or a result, has
/// another shape than the first result.
Layout common_layout(const KernelRequest& request);

/// Answers a request by an offer for plain memory that has this trait: it sees operands and results
/// in the shape of their memory.
KernelOffer offer_in_common_layout(const KernelRequest& request, KernelOfferFn offer);

}  // namespace onnxgrad::opdef

#endif  // ONNXGRAD_OPDEF_COMMON_LAYOUT_H_
