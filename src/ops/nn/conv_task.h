#ifndef ONNXGRAD_OPS_NN_CONV_TASK_H_
#define ONNXGRAD_OPS_NN_CONV_TASK_H_

#include <optional>

#include "opdef/kernel.h"
#include "ops/nn/conv.h"

namespace onnxgrad::ops {

/// Which of the three computations of conv.h a node is, and where its tensors are in a kernel's
/// args.
struct ConvTask {
  enum class Pass : std::uint8_t { kForward, kBackwardData, kBackwardWeight };

  Pass pass = Pass::kForward;
  ConvShape shape = {};
  int x = -1;
  int w = -1;
  int y = -1;
  int bias = -1;  ///< per channel of the result; -1: none
  int scratch = -1;

  /// For Conv, ConvTranspose, ConvInputGrad or ConvWeightGrad; nullopt above three spatial axes.
  /// Throws: ShapeError, ModelError (operands that do not match), naming the node.
  static std::optional<ConvTask> of(const opdef::KernelRequest& request);
};

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_NN_CONV_TASK_H_
