#ifndef ONNXGRAD_OPS_NN_CONV_CONV_OPERANDS_H_
#define ONNXGRAD_OPS_NN_CONV_CONV_OPERANDS_H_

#include <cstdint>
#include <limits>
#include <optional>

#include "opdef/kernel.h"
#include "ops/nn/conv/conv.h"

namespace onnxgrad::ops {

/// Convolution of a node, for the kernels of any device: which of the three computations of conv.h
/// it is, and the indices of its tensors in a kernel's args.
struct ConvOperands {
  enum class Pass : std::uint8_t { kForward, kBackwardData, kBackwardWeight };

  Pass pass = Pass::kForward;
  ConvShape shape = {};
  int x = -1;
  int w = -1;
  int y = -1;
  int bias = -1;  ///< per channel of the result; -1: none
  int scratch = -1;
  // onnxgrad.fused.Conv only: y = clamp(convolution + residual, low, high).
  int residual = -1;
  float low = -std::numeric_limits<float>::infinity();
  float high = std::numeric_limits<float>::infinity();

  bool finishes() const;
  /// Reads a Conv, ConvTranspose, ConvInputGrad, ConvWeightGrad, ConvWeightUpdate or ConvDescent;
  /// nullopt if there are more than three spatial axes.
  /// Throws: ShapeError, ModelError (operands that do not match), naming the node.
  static std::optional<ConvOperands> of(const opdef::KernelRequest& request);
};

/// Returns the type and shape of an argument of a kernel: inputs first, then outputs.
const opdef::TensorDesc& operand(const opdef::KernelRequest& request, int arg);

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_NN_CONV_CONV_OPERANDS_H_
