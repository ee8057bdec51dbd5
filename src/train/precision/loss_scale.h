#ifndef ONNXGRAD_TRAIN_LOSS_SCALE_H_
#define ONNXGRAD_TRAIN_LOSS_SCALE_H_

#include <span>
#include <vector>

#include "ir/builder.h"
#include "ir/graph.h"
#include "onnxgrad/precision.h"

// The scale of the loss for gradients in float16: Micikevicius et al., Mixed Precision Training,
// 2018. All of it is in the graph.

namespace onnxgrad::train {

inline constexpr double kMaxLossScale = 16777216;  // 2^24

/// The loss scale as state of a step.
class LossScaler {
 public:
  /// Adds its inputs "loss_scale" (float32) and "steps_since_overflow" (int64).
  LossScaler(ir::GraphBuilder& g, const MixedPrecision& precision);

  /// `seed` times the scale, in the type of `seed`.
  ir::Value* scaled(ir::Value* seed);
  /// Divides the gradients by the scale and checks that they are finite, on all of several workers.
  void unscale(std::span<ir::Value*> gradients, ir::Value* loss, bool has_workers = false);
  /// Guards each new state; appends the bindings of the scale itself.
  void guard(std::vector<ir::StateBinding>& state);

 private:
  ir::GraphBuilder& g_;
  MixedPrecision precision_;
  ir::Value* scale_ = nullptr;
  ir::Value* steps_ = nullptr;
  ir::Value* is_finite_ = nullptr;
  ir::Value* has_overflow_ = nullptr;  ///< not finite, although the loss is
};

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_LOSS_SCALE_H_
