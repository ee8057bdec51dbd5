#ifndef ONNXGRAD_TRAIN_DATA_TARGETS_H_
#define ONNXGRAD_TRAIN_DATA_TARGETS_H_

#include <cstdint>
#include <optional>

#include "onnxgrad/losses.h"
#include "onnxgrad/tensor.h"
#include "train/data/array_place.h"

namespace onnxgrad::train {

// `place` names the array in messages.

/// Converts labels in the user's form to the targets that the loss reads; see
/// TrainingSession::encode_target. Classes: labels [N] or [N, 1] (integers, bool, strings, integral
/// floating numbers) become class numbers int64 [N], by the model's list or, without one,
/// unchanged. Numbers: converted to the dtype of `loss.target` and reshaped to [N, columns] if only
/// the form of the shape differs; what a loss does not allow (a negative count, a probability above
/// 1) is refused. Throws: DataError naming label or value, row and column, and what was expected.
Tensor encode_target(const LossInfo& loss, const Tensor& given,
                     const ArrayPlace& place = target_place());

/// Class numbers in any numeric type, also [N, 1], as int64 of the declared rank, without using
/// the model's list of classes. Throws: DataError (see encode_target).
Tensor class_numbers(const LossInfo& loss, const Tensor& given);

/// The loss whose targets the input `port` takes; nullptr if there is none.
const LossInfo* find_target(const LossInfo& loss, const std::string& port);

/// The loss on that output (or value) of the model, among `loss` and its others.
/// Throws: DataError naming the outputs that have losses.
const LossInfo& find_loss_on(const LossInfo& loss, const std::string& output);

/// True for a classification loss that could take fractions instead.
bool can_take_fractions(const LossInfo& loss);

/// True for floating-point labels that are not all integers.
bool has_fractions(const Tensor& labels);

/// Labels of a step in the type and rank that the loss reads, if they are class numbers in
/// another type or in a column, or numbers from 0 to 1; others unchanged.
/// Throws: DataError (see encode_target).
Tensor fit_labels(const LossInfo& loss, const Tensor& labels);

/// True if fit_labels would change something.
bool needs_fitting(const LossInfo& loss, const Tensor& labels);

/// True for a squared error on several columns; if it was chosen automatically, targets may turn
/// out to be classes.
bool has_plain_columns(const LossInfo& loss);

/// True if an automatic squared error on several plain columns is given a target of one class
/// label per row, or per position of scores with more axes: then the columns are scores, and the
/// loss is a softmax cross-entropy.
bool target_asks_for_classes(const LossInfo& loss, const Tensor& target);

/// The axis of the classes if an automatic squared error on several plain columns is given numbers
/// in the shape of the scores that are one-hot: a single 1 along that axis, of two or more, and 0
/// elsewhere; nullopt: they are not, or along several axes.
std::optional<std::int64_t> one_hot_axis(const LossInfo& loss, const Tensor& target);

/// Checks class numbers: those in [0, num_classes) and the class that a loss ignores are allowed.
/// Throws: DataError for the first other one, with its row.
void check_class_numbers(const LossInfo& loss, const Tensor& target, const ArrayPlace& place);

/// Checks targets. Throws: DataError for the first number that the loss does not allow, with row
/// and column.
void check_range(const LossInfo& loss, const Tensor& target, const ArrayPlace& place);

/// Converts `value` for an input of type `dtype`: returns `value` itself or a converted copy.
/// Conversions that lose more than digits are refused: strings, fractions to integers, values out
/// of range. Throws: DataError naming the array, row and column.
Tensor convert_numbers(const ArrayPlace& place, const Tensor& value, DataType dtype);

/// Checks for finite elements. Throws: DataError for the first NaN or infinite one, with row and
/// column. Non-floating tensors pass. `can_be_allowed`: FitOptions::allow_nan would allow such
/// elements. `threads`: at most, for large tensors.
void check_finite(const ArrayPlace& place, const Tensor& value, bool can_be_allowed = false,
                  int threads = 1);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_DATA_TARGETS_H_
