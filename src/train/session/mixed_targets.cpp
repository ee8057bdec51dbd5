#include "train/session/mixed_targets.h"

#include <string>
#include <variant>

#include "onnxgrad/option_error.h"
#include "train/losses/losses.h"

namespace onnxgrad::train {
namespace {

[[noreturn]] void refuse(const std::string& why) {
  throw OptionError({.what = "augment: mixup and cutmix mix targets, but " + why,
                     .hint = "Leave them out, or use softmax or binary cross-entropy with one "
                             "class for each row, or a loss of numbers."});
}

}  // namespace

bool needs_mixed_form(const LossInfo& loss) {
  if (!loss.others.empty()) refuse("there are several");
  if (loss.target.name.empty()) refuse("the loss has none");
  if (!loss.is_classifier || is_floating(loss.target.dtype)) return false;
  if (loss.target.shape && loss.target.shape->size() > 1) refuse("a row has several classes");
  if (const auto* softmax = std::get_if<SoftmaxCrossEntropy>(&loss.function)) {
    if (softmax->ignore_index) refuse("the loss ignores a class");
    if (loss.num_classes < 2) refuse("the number of classes is not known");
    return true;
  }
  if (std::holds_alternative<BinaryCrossEntropy>(loss.function) ||
      std::holds_alternative<LogLoss>(loss.function)) {
    return true;
  }
  refuse("this loss reads class numbers");
}

Loss mixed_form(const Loss& loss, const LossInfo& found) {
  Loss mixed = loss;
  mixed.function = found.function;
  mixed.class_axis = found.class_axis;
  mixed.one_hot_targets = false;
  if (auto* softmax = std::get_if<SoftmaxCrossEntropy>(&mixed.function)) softmax->one_hot = true;
  if (auto* binary = std::get_if<BinaryCrossEntropy>(&mixed.function)) binary->soft_targets = true;
  if (auto* log = std::get_if<LogLoss>(&mixed.function)) log->soft_targets = true;
  return mixed;
}

}  // namespace onnxgrad::train
