#ifndef ONNXGRAD_TRAIN_LOSSES_RULES_H_
#define ONNXGRAD_TRAIN_LOSSES_RULES_H_

#include <string>

#include "ir/builder.h"
#include "onnxgrad/losses.h"

// The formulas of losses. Each function appends the nodes for the elements of one loss;
// train/losses/losses.cpp combines elements by reduction and sample weights.

namespace onnxgrad::train {

/// Operands of a loss rule. `weight` is nullptr without sample weights, else [N] in the scores'
/// type. A loss with a class axis reads scores [M, C] or [N, C, d1, ...]: see losses/class_axis.h.
struct LossInputs {
  ir::Value* scores = nullptr;
  ir::Value* target = nullptr;
  ir::Value* weight = nullptr;
};

/// The loss of each element [N, ...], before any reduction.
struct Elements {
  ir::Value* values = nullptr;
  /// True: the columns of a row are averaged, not summed.
  bool mean_of_columns = false;
  /// Weight of each element in a mean, in the shape of `values`; nullptr: all 1. The values
  /// are already multiplied by it.
  ir::Value* counts = nullptr;
  bool is_weighted = false;  ///< the values already include the sample weights
  bool is_total = false;     ///< `values` is rank 0, the loss of the batch
};

using LossRule = Elements (*)(ir::GraphBuilder&, const LossFunction&, const LossInputs&);

/// Whether `loss` is that of a batch, one number, and not one for each of `rows`. `subject` is for
/// messages. Throws: ModelError (unknown rank).
bool is_batch_loss(const ir::Value& loss, const ir::Dim& rows, const std::string& subject);
/// Type of the targets that the model of `spec` reads. Throws: ModelError (no such model, wrong
/// inputs or outputs, scores of another type).
ir::Type user_target_type(const UserLoss& spec, const ir::Value& scores);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_LOSSES_RULES_H_
