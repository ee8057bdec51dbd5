#ifndef ONNXGRAD_TRAIN_LOSSES_TABLE_H_
#define ONNXGRAD_TRAIN_LOSSES_TABLE_H_

#include <span>
#include <string_view>
#include <vector>

#include "train/losses/rules.h"

namespace onnxgrad::train {

/// What a loss reads as targets.
enum class TargetKind {
  kNumbers,    ///< numbers of the scores' type and shape
  kClasses,    ///< class numbers int64 [N]
  kByColumns,  ///< class numbers where there is one score per row, else numbers
  kByOptions,  ///< the options of the loss say
};

/// What the shapes of scores may be.
enum class ScoreShape {
  kAny,
  kMatrix,         ///< [N, K]
  kClassesPlaces,  ///< [N, C], or more axes with one for the classes
  kBinaryOrKnown,  ///< [N], [N, 1], or [N, C] with a known C
};

/// A row of the table of losses: one for each alternative of LossFunction, in its order.
struct LossKind {
  std::string_view description;  ///< for messages
  TargetKind target = TargetKind::kNumbers;
  ScoreShape scores = ScoreShape::kAny;
  bool takes_scores = false;  ///< and not what is behind Softmax or Sigmoid
  LossRule rule = nullptr;
};

const LossKind& kind_of(const LossFunction& function);

/// A name by which users know a loss.
struct LossName {
  std::string_view name;
  LossFunction function = AutoLoss{};
  std::vector<std::string_view> aliases = {};
};

/// All names, sorted.
std::span<const LossName> known_losses();

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_LOSSES_TABLE_H_
