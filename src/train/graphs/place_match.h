#ifndef ONNXGRAD_TRAIN_GRAPHS_PLACE_MATCH_H_
#define ONNXGRAD_TRAIN_GRAPHS_PLACE_MATCH_H_

#include <string>

#include "train/graphs/place_loss.h"
#include "train/graphs/teacher.h"

namespace onnxgrad::train {

/// Places a loss that has a value as its target (Loss::target_value); its own weights are in the
/// graph. `sample_weight`: that of the whole loss, or nullptr. Throws: ModelError (no such value,
/// values of different shapes, a loss without targets that are numbers).
PlacedLoss place_match(ir::GraphBuilder& g, const Loss& loss, Reduction reduction,
                       const PlacedTeachers& teachers, ir::Value* sample_weight,
                       const LossOfWorker& worker);

/// Checks what can be checked of the matches of a loss. Throws: ModelError.
void check_matches(const Loss& loss);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_GRAPHS_PLACE_MATCH_H_
