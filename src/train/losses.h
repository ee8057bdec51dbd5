#ifndef ONNXGRAD_TRAIN_LOSSES_H_
#define ONNXGRAD_TRAIN_LOSSES_H_

#include "ir/builder.h"
#include "onnxgrad/losses.h"

namespace onnxgrad::train {

/// A loss written into a graph. The loss is numerator / denominator (Reduction::kMean) or the
/// numerator (kSum); batches are put together by adding both. All are rank 0, in the scores' type.
struct WrittenLoss {
  ir::Value* numerator = nullptr;
  ir::Value* denominator = nullptr;
  ir::Value* loss = nullptr;
};

/// The type of the graph input that `function` takes its targets from, for these scores: class
/// numbers int64 [N] or numbers of the scores' type and shape.
/// Throws: ModelError (scores of a type or rank that the function does not take).
ir::Type target_type(const LossFunction& function, const ir::Value& scores);

/// Appends the nodes of `function` (formulas: onnxgrad/losses.h). `target` has target_type();
/// `sample_weight` is nullptr or [N] in the scores' type.
/// Throws: InternalError for AutoLoss.
WrittenLoss write_loss(ir::GraphBuilder& g, const LossFunction& function, Reduction reduction,
                       ir::Value* scores, ir::Value* target, ir::Value* sample_weight);

/// The (weighted) number of rows whose class the scores get right, rank 0, in the scores' type;
/// nullptr where the target is no class number.
ir::Value* write_correct_rows(ir::GraphBuilder& g, const LossFunction& function, ir::Value* scores,
                              ir::Value* target, ir::Value* sample_weight);

/// "softmax cross-entropy", for messages.
std::string describe(const LossFunction& function);

/// True if the target is a class number and not a quantity.
bool is_classification(const LossFunction& function, const ir::Value& scores);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_LOSSES_H_
