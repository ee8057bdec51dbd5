#ifndef ONNXGRAD_PASSES_FUSE_GEMM_H_
#define ONNXGRAD_PASSES_FUSE_GEMM_H_

#include <optional>

#include "ir/graph.h"

namespace onnxgrad::passes {

/// Makes the onnxgrad.fused.Gemm of the product in a MatMul or Gemm, in no graph yet: Transposes of
/// the operands are flags. nullopt: another operator, or unknown shapes.
std::optional<ir::Node> gemm_of(const ir::Node& node);

}  // namespace onnxgrad::passes

#endif  // ONNXGRAD_PASSES_FUSE_GEMM_H_
