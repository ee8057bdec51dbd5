#ifndef ONNXGRAD_OPS_NN_CONV_TASK_H_
#define ONNXGRAD_OPS_NN_CONV_TASK_H_

#include <cstddef>
#include <cstdint>
#include <limits>
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
  // Of onnxgrad.fused.Conv: y = the convolution + residual, restricted to [low, high].
  int residual = -1;
  float low = -std::numeric_limits<float>::infinity();
  float high = std::numeric_limits<float>::infinity();

  bool finishes() const;
  /// For Conv, ConvTranspose, ConvInputGrad or ConvWeightGrad; nullopt above three spatial axes.
  /// Throws: ShapeError, ModelError (operands that do not match), naming the node.
  static std::optional<ConvTask> of(const opdef::KernelRequest& request);
};

/// What follows the sums of `channels` planes of y, `plane` elements apart, for `count` positions
/// from element `first` on: called when a kernel has just written them.
template <class T>
void finish_results(const ConvTask& task, std::byte* const* args, std::int64_t first,
                    std::int64_t channels, std::int64_t plane, std::int64_t count);

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_NN_CONV_TASK_H_
