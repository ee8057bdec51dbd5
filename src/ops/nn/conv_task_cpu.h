#ifndef ONNXGRAD_OPS_NN_CONV_TASK_CPU_H_
#define ONNXGRAD_OPS_NN_CONV_TASK_CPU_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>

#include "device/isa.h"
#include "opdef/kernel.h"
#include "ops/nn/conv.h"

namespace onnxgrad::ops {

struct PartUpdate;  // fused/part_update_cpu.h

/// Convolution of a node: which of the three computations of conv.h it is, and the indices of its
/// tensors in a kernel's args.
struct ConvTask {
  enum class Pass : std::uint8_t { kForward, kBackwardData, kBackwardWeight };

  Pass pass = Pass::kForward;
  ConvShape shape = {};
  int x = -1;
  int w = -1;
  int y = -1;
  int bias = -1;  ///< per channel of the result; -1: none
  int scratch = -1;
  device::Isa isa = {};
  // onnxgrad.fused.Conv only: y = clamp(convolution + residual, low, high).
  int residual = -1;
  float low = -std::numeric_limits<float>::infinity();
  float high = std::numeric_limits<float>::infinity();

  /// onnxgrad.fused.ConvWeightUpdate and ConvDescent only: consumer of the blocks of w, which is a
  /// gradient; w itself is not stored.
  std::shared_ptr<const PartUpdate> update = nullptr;

  bool finishes() const;
  /// Fills a task for Conv, ConvTranspose, ConvInputGrad, ConvWeightGrad or, without `update`,
  /// ConvWeightUpdate or ConvDescent; nullopt if there are more than three spatial axes.
  /// Throws: ShapeError, ModelError (operands that do not match), naming the node.
  static std::optional<ConvTask> of(const opdef::KernelRequest& request);
};

/// Returns the type and shape of an argument of a kernel: inputs first, then outputs.
const opdef::TensorDesc& operand(const opdef::KernelRequest& request, int arg);

/// Applies the epilogue to `count` positions, from element `first` on, in `channels` planes of y
/// with stride `plane`; a kernel calls it for elements that it has just written.
template <class T>
void finish_results(const ConvTask& task, KernelArgs args, std::int64_t first,
                    std::int64_t channels, std::int64_t plane, std::int64_t count);

/// Block of weights stored transposed: `from` is [columns, channels]. In w, a matrix of output
/// channels by (input channel, tap), it begins at row `channel` and column `column`.
template <class T>
struct WeightBlock {
  const T* from = nullptr;
  std::int64_t from_row = 0;
  std::int64_t channel = 0;
  std::int64_t channels = 0;
  std::int64_t column = 0;
  std::int64_t columns = 0;
};

/// Columns of w that an update consumes per call.
inline constexpr std::int64_t kConsumedColumns = 96;

/// Stores a block of w, or passes it to the update through `spare`, which has kConsumedColumns
/// elements per channel.
template <class T>
void finish_weights(const ConvTask& task, KernelArgs args, const WeightBlock<T>& block, T* spare);

/// Stores elements [first, last) of w, which are contiguous in `from`, or passes them to the
/// update.
template <class T>
void finish_weights(const ConvTask& task, KernelArgs args, const T* from, std::int64_t first,
                    std::int64_t last);

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_NN_CONV_TASK_CPU_H_
