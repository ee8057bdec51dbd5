#ifndef ONNXGRAD_TRAIN_LOSSES_TABLE_H_
#define ONNXGRAD_TRAIN_LOSSES_TABLE_H_

#include <array>
#include <utility>
#include <variant>

#include "train/losses/rules.h"
#include "train/tools/descriptions.h"

// The tables of losses and penalties. A file of formulas has `void register_<stem>(LossTable&)`,
// which adds the rows of its losses.

namespace onnxgrad::train {

/// Kinds of targets that a loss reads.
enum class TargetKind {
  kNumbers,    ///< numbers of the scores' type and shape
  kClasses,    ///< class numbers int64 [N]
  kByColumns,  ///< class numbers where there is one score per row, else numbers
  kByOptions,  ///< depends on the options of the loss
};

/// The allowed shapes of scores.
enum class ScoreShape {
  kAny,
  kMatrix,         ///< [N, K]
  kClassesPlaces,  ///< [N, C], or more axes with one for the classes
  kBinaryOrKnown,  ///< [N], [N, 1], or [N, C] with a known C
};

/// Requirements of a loss on scores and targets.
struct LossKind {
  TargetKind target = TargetKind::kNumbers;
  ScoreShape scores = ScoreShape::kAny;
  bool takes_scores = false;  ///< instead of the output of Softmax or Sigmoid
  LossRule rule = nullptr;
};

/// The table of losses. Summaries name a loss in messages: "softmax cross-entropy".
class LossTable : public DescriptionTable<LossFunction> {
 public:
  LossTable() : DescriptionTable("loss") {}

  /// A loss with the formula `kWrite`.
  template <auto kWrite, class Spec>
  void add(LossKind kind, Described<Spec> described) {
    kind.rule = [](ir::GraphBuilder& g, const LossFunction& function, const LossInputs& in) {
      return kWrite(g, std::get<Spec>(function), in);
    };
    kinds_.at(LossFunction(Spec{}).index()) = kind;
    DescriptionTable::add(std::move(described));
  }

  const LossKind& kind(const LossFunction& function) const { return kinds_.at(function.index()); }

 private:
  std::array<LossKind, std::variant_size_v<LossFunction>> kinds_;
};

const LossTable& loss_rows();
inline const LossKind& kind_of(const LossFunction& function) { return loss_rows().kind(function); }

/// The table of penalties on weights.
using PenaltyTable = DescriptionTable<std::variant<Penalty>>;
const PenaltyTable& penalty_rows();

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_LOSSES_TABLE_H_
