#ifndef ONNXGRAD_TRAIN_LOSSES_TABLE_H_
#define ONNXGRAD_TRAIN_LOSSES_TABLE_H_

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "ir/builder.h"
#include "onnxgrad/losses.h"
#include "train/tools/descriptions.h"

// The tables of losses and penalties. A file of formulas has `void register_<stem>(LossTable&)`,
// which adds the rows of its losses.

namespace onnxgrad::train {

// The formulas of losses. Each function appends the nodes for the elements of one loss;
// train/losses/losses.cpp combines elements by reduction and sample weights.

/// Operands of a loss rule. `weight` is nullptr without sample weights, else [N] in the scores'
/// type. A loss with a class axis reads scores [M, C] or [N, C, d1, ...]: see losses/class_axis.h.
struct LossInputs {
  ir::Value* scores = nullptr;
  ir::Value* target = nullptr;
  ir::Value* weight = nullptr;
  std::vector<ir::Value*> partners = {};  ///< embeddings [N, D] beside the scores
  std::vector<ir::Value*> own = {};       ///< Loss::own_weights
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

/// The tokens [N, T] that each place is compared with: those after it, the ignored class at the
/// end of a row and where `pad` is.
ir::Value* next_tokens(ir::GraphBuilder& g, const CausalLm& spec, ir::Value* tokens);

using LossRule = Elements (*)(ir::GraphBuilder&, const LossFunction&, const LossInputs&);

/// Whether `loss` is that of a batch, one number, and not one for each of `rows`. `subject` is for
/// messages. Throws: ModelError (unknown rank).
bool is_batch_loss(const ir::Value& loss, const ir::Dim& rows, const std::string& subject);
/// Type of the targets that the model of `spec` reads. Throws: ModelError (no such model, wrong
/// inputs or outputs, scores of another type).
ir::Type user_target_type(const UserLoss& spec, const ir::Value& scores);

/// Kinds of targets that a loss reads.
enum class TargetKind {
  kNumbers,     ///< numbers of the scores' type and shape
  kClasses,     ///< class numbers int64 [N]
  kByColumns,   ///< class numbers where there is one score per row, else numbers
  kByOptions,   ///< depends on the options of the loss
  kRowNumbers,  ///< a number of the scores' type for each row [N]
  kNone,        ///< no target
};

/// The allowed shapes of scores.
enum class ScoreShape {
  kAny,
  kMatrix,         ///< [N, K]
  kVectors,        ///< [N, K], or more axes
  kClassesPlaces,  ///< [N, C], or more axes with one for the classes
  kTokens,         ///< [N, T, V]
  kBinaryOrKnown,  ///< [N], [N, 1], or [N, C] with a known C
};

/// Requirements of a loss on scores and targets.
struct LossKind {
  TargetKind target = TargetKind::kNumbers;
  ScoreShape scores = ScoreShape::kAny;
  bool takes_scores = false;  ///< instead of the output of Softmax or Sigmoid
  std::int64_t rows = 1;      ///< consecutive rows that it compares
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
