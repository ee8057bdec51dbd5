#ifndef ONNXGRAD_TRAIN_LOSSES_H_
#define ONNXGRAD_TRAIN_LOSSES_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "ir/builder.h"
#include "onnxgrad/losses.h"

namespace onnxgrad::train {

/// A loss written into a graph. The loss is numerator / denominator (Reduction::kMean) or the
/// numerator (else); batches are combined by adding both. All are rank 0, in the scores' type.
struct WrittenLoss {
  ir::Value* numerator = nullptr;
  ir::Value* denominator = nullptr;
  ir::Value* loss = nullptr;
  ir::Value* rows = nullptr;  ///< for Reduction::kNone: the weighted loss of each row [N]
  /// True if the denominator is not the number of rows: with weights or ignored classes, it depends
  /// on the batch.
  bool has_counts = false;
};

/// Checks parameters. Throws: ModelError for one out of range (onnxgrad/losses.h), naming it.
void check_loss_options(const LossFunction& function);

/// The type of the graph input that `function` takes its targets from, for these scores: class
/// indices int64 of the scores' shape without the class axis, or values of the scores' type and
/// shape. Throws: ModelError (scores of a type or rank that the function does not take).
ir::Type target_type(const LossFunction& function, const ir::Value& scores,
                     std::int64_t class_axis = 1);

/// Values of the graph that a loss reads. `target` has target_type(); `sample_weight` is nullptr
/// or [N] in the scores' type.
struct LossPlace {
  ir::Value* scores = nullptr;
  ir::Value* target = nullptr;
  ir::Value* sample_weight = nullptr;
  std::int64_t class_axis = 1;  ///< class axis of the scores
  /// WorkerInputs::weight, if there are several workers. The denominator is then that of all
  /// workers, and the loss the contribution of this one's rows.
  ir::Value* worker_weight = nullptr;
  /// The worker averages over its own rows, for an update of its own weights (sync_every).
  bool updates_alone = false;
  std::vector<ir::Value*> partners = {};  ///< see LossInputs
  std::vector<ir::Value*> own = {};
};

/// Appends the nodes of `function` (formulas: onnxgrad/losses.h).
/// Throws: InternalError for AutoLoss; ModelError for a user loss that does not match.
WrittenLoss write_loss(ir::GraphBuilder& g, const LossFunction& function, Reduction reduction,
                       const LossPlace& place);

/// The number of rows (or positions) whose class the scores get right, and the total: both
/// weighted, rank 0, in the scores' type. Rows of the ignored class do not count.
struct CorrectRows {
  ir::Value* correct = nullptr;  ///< nullptr if the target is not a class
  ir::Value* rows = nullptr;
};
CorrectRows write_correct_rows(ir::GraphBuilder& g, const LossFunction& function,
                               const LossPlace& place);

/// Name of a loss in messages: "softmax cross-entropy".
std::string describe(const LossFunction& function);

/// True for scores [N] or [N, 1].
bool is_single_column(const ir::Value& scores);

/// True if the target is a class index and not a quantity.
bool is_classification(const LossFunction& function, const ir::Value& scores);

/// True if the function reads scores, and not the output of Softmax or Sigmoid.
bool takes_scores(const LossFunction& function);

/// Consecutive rows that the function compares, which no division of a batch separates: 2 for
/// pairs.
std::int64_t rows_of_unit(const LossFunction& function);

/// True if targets are values from 0 to 1 where one column of scores would take class indices.
bool has_soft_targets(const LossFunction& function);

/// Whether the mean loss is the mean of -log p of the right class, for any weights of rows.
bool is_log_likelihood(const LossFunction& function);

/// The classes of a target that the scores of each position are compared with.
std::vector<std::int64_t> compared_classes(const LossFunction& function, const Tensor& target);
/// True for losses of embeddings, which read Loss::partners.
bool compares_embeddings(const LossFunction& function);
/// Throws ModelError if a loss of embeddings cannot have so many partners.
void check_partners(const LossFunction& function, std::size_t count);
/// True if there is a target; if it is always numbers of the scores' shape.
bool has_target(const LossFunction& function);
bool has_number_targets(const LossFunction& function);

/// The class index of ignored rows.
std::optional<std::int64_t> ignored_class(const LossFunction& function);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_LOSSES_H_
