#ifndef ONNXGRAD_OPS_FUSED_PRODUCT_CPU_H_
#define ONNXGRAD_OPS_FUSED_PRODUCT_CPU_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "device/cpu/gemm.h"
#include "opdef/expr.h"
#include "opdef/kernel.h"

namespace onnxgrad::ops {

/// A kernel made of one matrix product and, optionally, element-wise work on it. Numbers are those
/// of the node's inputs; the result is output 0, whose last axis has `gemm.n` elements.
struct ProductSpec {
  device::GemmSpec gemm;
  int a = 0;
  int b = 1;
  int start = -1;              ///< what the product is added to; -1: nothing, as in gemm.start
  std::vector<int> more = {};  ///< further addends, as in gemm.more
  int factor = -1;             ///< one element that the product is multiplied by
  int scales = -1;             ///< a matrix that the sum is multiplied by, as in gemm.is_scaled
  bool sums_columns = false;   ///< output 1 is the sum of each column of the result
  /// Operand 0 is the product, the others are `epilogue_inputs`, broadcast to the result.
  std::optional<opdef::ExprProgram> epilogue = {};
  std::vector<int> epilogue_inputs = {};
};

/// A of float16 or bfloat16: B has its type, or is float32 and is rounded to it; the result is a
/// float32 sum or rounded once. An epilogue that adds rows and matrices, or is a Relu, or both,
/// needs no extra pass; nor does a multiplication by a matrix or the sums of columns of a large
/// product.
opdef::KernelOffer offer_product(const opdef::KernelRequest& request, ProductSpec spec);

/// m, n, k of op(A) op(B), where leading axes of A collapse into m. A and B have at least rank 2 if
/// they are transposed, else B has rank 2. nullopt if the shapes do not match.
std::optional<device::GemmSpec> product_shape(const opdef::KernelRequest& request, int a, int b,
                                              bool transpose_a, bool transpose_b);

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_FUSED_PRODUCT_CPU_H_
