#ifndef ONNXGRAD_TRAIN_LOSSES_CLASS_AXIS_H_
#define ONNXGRAD_TRAIN_LOSSES_CLASS_AXIS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ir/builder.h"
#include "onnxgrad/losses.h"
#include "train/losses/table.h"

// Finds the class axis of the scores by the rule of onnxgrad/losses.h, `Loss::class_axis`. Rows are
// axis 0. Rules of losses read classes on axis 1; with_classes_second() moves other axes there.

namespace onnxgrad::train {

/// True for losses that compare the scores of classes along an axis.
bool has_class_axis(const LossFunction& function);

/// The class axis of a loss applied to its scores.
struct ClassAxis {
  std::int64_t axis = 1;
  bool is_known = true;    ///< false: only the convention of ONNX and PyTorch
  bool is_settled = true;  ///< labels cannot change it
};

/// `asked`: Loss::class_axis; `of_model`: the axis of the model's own Softmax or ArgMax.
/// Throws: ModelError (no such axis, or that of the rows; a loss without classes).
ClassAxis choose_class_axis(const LossFunction& function, const ir::Value& scores,
                            std::optional<std::int64_t> asked,
                            std::optional<std::int64_t> of_model);

/// The axes from 1 on without which scores of this shape have the shape of `labels`; a trailing 1
/// of the labels is ignored, and rows are not compared. Unknown dimensions match any.
std::vector<std::int64_t> axes_left_out(const ir::SymbolicShape& scores, const Dims& labels);

/// The only axis of fixed size after the first; nullopt if there is none or there are several.
std::optional<std::int64_t> only_fixed_axis(const ir::SymbolicShape& scores);

/// Throws DataError for labels that match several axes, or none, of scores of this shape.
[[noreturn]] void refuse_labels(const LossInfo& loss, const std::string& scores_shape,
                                const Dims& labels, const std::vector<std::int64_t>& fitting);

/// Scores and target as the rules read them: classes on axis 1. The last axis is moved without
/// copying, as [M, C]; others are transposed.
LossInputs with_classes_second(ir::GraphBuilder& g, const LossInputs& in, std::int64_t class_axis);

/// x, one number for each position of the result of with_classes_second, as [N, ...].
ir::Value* with_rows_first(ir::GraphBuilder& g, ir::Value* x, const LossInputs& in,
                           std::int64_t class_axis);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_LOSSES_CLASS_AXIS_H_
