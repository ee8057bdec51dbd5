#ifndef ONNXGRAD_OPS_NN_CONV_TASK_H_
#define ONNXGRAD_OPS_NN_CONV_TASK_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>

#include "opdef/kernel.h"
#include "ops/nn/conv.h"

namespace onnxgrad::ops {

struct PartUpdate;  // fused/part_update_cpu.h

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

  /// Of onnxgrad.fused.ConvWeightUpdate and ConvDescent: what parts of w, which is a gradient, are
  /// handed to; w itself is stored nowhere.
  std::shared_ptr<const PartUpdate> update = nullptr;

  bool finishes() const;
  /// For Conv, ConvTranspose, ConvInputGrad, ConvWeightGrad or, without `update`, ConvWeightUpdate
  /// or ConvDescent; nullopt above three spatial axes.
  /// Throws: ShapeError, ModelError (operands that do not match), naming the node.
  static std::optional<ConvTask> of(const opdef::KernelRequest& request);
};

/// An argument of a kernel: an input, or an output after them.
const opdef::TensorDesc& operand(const opdef::KernelRequest& request, int arg);

/// What follows the sums of `channels` planes of y, `plane` elements apart, for `count` positions
/// from element `first` on: called when a kernel has just written them.
template <class T>
void finish_results(const ConvTask& task, std::byte* const* args, std::int64_t first,
                    std::int64_t channels, std::int64_t plane, std::int64_t count);

/// Weights [channels, columns] from row `channel` of w, a matrix of output channels by input
/// channels and taps, and column `column` on: transposed, [columns, channels].
template <class T>
struct WeightBlock {
  const T* from = nullptr;
  std::int64_t from_row = 0;
  std::int64_t channel = 0;
  std::int64_t channels = 0;
  std::int64_t column = 0;
  std::int64_t columns = 0;
};

/// Columns that are handed to an update at once.
inline constexpr std::int64_t kHandedColumns = 96;

/// Stores a block of w, or hands it to the update through `spare`, kHandedColumns elements for each
/// channel.
template <class T>
void finish_weights(const ConvTask& task, std::byte* const* args, const WeightBlock<T>& block,
                    T* spare);

/// The same for elements [first, last) of w, which are those of `from`.
template <class T>
void finish_weights(const ConvTask& task, std::byte* const* args, const T* from, std::int64_t first,
                    std::int64_t last);

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_NN_CONV_TASK_H_
