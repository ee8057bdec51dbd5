#ifndef ONNXGRAD_OPS_NN_CONV_CONV_TASK_CPU_H_
#define ONNXGRAD_OPS_NN_CONV_CONV_TASK_CPU_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "device/isa.h"
#include "opdef/kernel.h"
#include "ops/nn/conv/conv_operands.h"

// Convolutions on the CPU. A pass of a node (forward, gradient of its input, gradient of its
// weights) is a ConvTask, for which conv_cpu.cpp asks the kernels below in this order; the first
// that does not decline computes it. All cut their work into units (ConvUnits, conv_units_cpu.h),
// which the chunks of device/cpu/threads.h share, and lay out their scratch by
// device/cpu/scratch_layout.h: arrays of all threads, then a block for each.
//
//   depthwise_rows_cpu.cpp   one channel per group, 3x3 or 5x5: rows of pixels are vectors
//   depthwise_cpu.cpp        one channel per group: channels are vectors
//   winograd_*_cpu.cpp       float32, one group, 3x3 or 5x5 without strides: products of tiles
//   direct_*_cpu.cpp         all others: tiles of a product whose second operand is never made
//   conv_cpu.cpp             reference, for what is mostly padding
//
//   amx_*_cpu.cpp            bfloat16 with AMX: taps are products of matrices
//   f16_cpu.cpp              16 bits otherwise: some images at a time by one of the kernels above
//   conv_update_cpu.cpp      the gradient of weights goes to an optimizer, block by block
//   conv_chain_cpu.cpp       several convolutions of an inference plan as one kernel

namespace onnxgrad::ops {

struct PartUpdate;  // fused/part_update_cpu.h

/// Convolution of a node for the kernels of the CPU.
struct ConvTask : ConvOperands {
  device::Isa isa = {};

  /// onnxgrad.fused.ConvWeightUpdate and ConvDescent only: consumer of the blocks of w, which is a
  /// gradient; w itself is not stored.
  std::shared_ptr<const PartUpdate> update = nullptr;

  /// Fills a task; see ConvOperands::of.
  static std::optional<ConvTask> of(const opdef::KernelRequest& request);
};

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

/// Offers forward and backward data, float32 and float64.
KernelOffer offer_conv_result(const KernelRequest& request, const ConvTask& task);
/// Offers backward weight.
KernelOffer offer_conv_weight(const KernelRequest& request, const ConvTask& task);
/// Offers all three computations of depthwise convolutions, float32 and float64.
KernelOffer offer_depthwise(const KernelRequest& request, const ConvTask& task);
/// Offers forward and, without strides, backward data of 3 x 3 and 5 x 5 depthwise convolutions,
/// with vectors along rows.
KernelOffer offer_depth_rows(const KernelRequest& request, const ConvTask& task);

/// Offers the best of the kernels above and Winograd's, for float32.
KernelOffer offer_conv_float(const KernelRequest& request, const ConvTask& task);
/// Offers kernels for f16/bf16 images, which are converted to float32 a few at a time.
KernelOffer offer_conv_f16(const KernelRequest& request, const ConvTask& task);
/// Offers kernels that multiply two bfloat16 operands directly; needs AMX.
KernelOffer offer_conv_bf16(const KernelRequest& request, const ConvTask& task);
/// Offers Winograd's algorithm for float32 where it is estimated to be faster.
KernelOffer offer_winograd_result(const KernelRequest& request, const ConvTask& task);
KernelOffer offer_winograd_weight(const KernelRequest& request, const ConvTask& task);

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_NN_CONV_CONV_TASK_CPU_H_
