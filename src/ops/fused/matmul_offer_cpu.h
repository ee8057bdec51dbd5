#ifndef ONNXGRAD_OPS_FUSED_MATMUL_OFFER_CPU_H_
#define ONNXGRAD_OPS_FUSED_MATMUL_OFFER_CPU_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "device/cpu/gemm.h"
#include "device/cpu/quantized_matrix.h"
#include "opdef/expr.h"
#include "ops/kernel_support.h"

namespace onnxgrad::ops {

/// A packed B: the matrix without its codes, and the constants that it points to.
struct QuantizedOperand {
  device::QuantizedMatrix matrix = {};
  Tensor scales = {}, zeros = {}, groups = {};
  std::vector<float> table = {};
};

/// Kernel of one GEMM with an optional epilogue. Integers are indices of the node's inputs; the
/// result is output 0, whose last axis has `gemm.n` elements.
struct MatmulSpec {
  device::GemmSpec gemm;
  int a = 0;
  int b = 1;
  int start = -1;              ///< addend of the GEMM; -1: none, as in gemm.start
  std::vector<int> more = {};  ///< further addends, as in gemm.more
  int factor = -1;             ///< scalar factor of the product
  int scales = -1;             ///< matrix of element-wise factors of the sum, as in gemm.is_scaled
  bool sums_columns = false;   ///< output 1 is the sum of each column of the result
  /// Element-wise epilogue: operand 0 is the product, the others are `epilogue_inputs`, broadcast
  /// to the result.
  std::optional<opdef::ExprProgram> epilogue = {};
  std::vector<int> epilogue_inputs = {};
  /// Input `b` has the codes of this matrix; gemm.b_source reads it.
  std::shared_ptr<const QuantizedOperand> quantized = {};
};

/// Offers a GEMM kernel. If A is float16 or bfloat16, B has A's type, or is float32 and is rounded
/// to it; the result is a float32 sum, or rounded once. An epilogue that adds rows and matrices, or
/// is a Relu, or both, needs no extra pass over the result; nor does an element-wise factor or the
/// column sums of a large product.
KernelOffer offer_matmul(const KernelRequest& request, MatmulSpec spec);

/// Returns m, n, k of op(A) op(B), where leading axes of A collapse into m. A and B have at least
/// rank 2 if they are transposed, else B has rank 2. nullopt if the shapes do not match.
std::optional<device::GemmSpec> matmul_shape(const KernelRequest& request, int a, int b,
                                             bool transpose_a, bool transpose_b);

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_FUSED_MATMUL_OFFER_CPU_H_
