#ifndef ONNXGRAD_TRAIN_TARGETS_H_
#define ONNXGRAD_TRAIN_TARGETS_H_

#include <cstdint>

#include "onnxgrad/losses.h"
#include "onnxgrad/tensor.h"

namespace onnxgrad::train {

// Rows in messages are counted from `first_row`, the place of the first one in the whole.

/// Labels as the user has them as the loss reads them; see TrainingSession::encode_target.
/// Classes: labels [N] or [N, 1] (integers, bool, strings, whole floating numbers) give class
/// numbers int64 [N], by the model's list or, without one, as they are. Numbers: converted to the
/// dtype of `loss.target` and reshaped to [N, columns] where only the shape's form differs; what a
/// loss cannot have (a negative count, a probability above 1) is refused. Throws: DataError naming
/// label or value, row and column, and what was expected.
Tensor encode_target(const LossInfo& loss, const Tensor& labels, std::int64_t first_row = 0);

/// The loss whose targets the input `port` takes; nullptr if there is none.
const LossInfo* find_target(const LossInfo& loss, const std::string& port);

/// The loss on that output (or value) of the model, among `loss` and its others.
/// Throws: DataError naming the outputs that have losses.
const LossInfo& find_loss_on(const LossInfo& loss, const std::string& output);

/// True where an automatic squared error on several bare columns meets a target of one class label
/// per row: then the columns are scores, and the loss is a softmax cross-entropy.
bool target_asks_for_classes(const LossInfo& loss, const Tensor& target);

/// Throws: DataError for the first class number outside [0, num_classes), with its row; the class
/// that a loss ignores passes.
void check_class_numbers(const LossInfo& loss, const Tensor& target, std::int64_t first_row = 0);

/// `value` for an input of type `dtype`: itself, or a converted copy. Conversions that lose more
/// than digits are refused: strings, fractions to integers, what the type cannot hold. Throws:
/// DataError naming `name`, row and column.
Tensor convert_numbers(const std::string& name, const Tensor& value, DataType dtype,
                       std::int64_t first_row = 0);

/// Throws: DataError for the first NaN or infinite element, with row and column. Non-floating
/// tensors pass.
void check_finite(const std::string& name, const Tensor& value, std::int64_t first_row = 0);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_TARGETS_H_
