#ifndef ONNXGRAD_TRAIN_OPTIMIZERS_H_
#define ONNXGRAD_TRAIN_OPTIMIZERS_H_

#include <span>
#include <vector>

#include "ir/builder.h"
#include "onnxgrad/optimizers.h"

namespace onnxgrad::train {

/// Name of the state that counts steps: the number done so far, int64, rank 0.
inline constexpr const char* kStepCount = "step_count";

/// Appends the update of each weight by its gradient (formulas: onnxgrad/optimizers.h).
/// weights: inputs of g.graph() with an initializer; gradients: of the same shapes and dtypes.
/// learning_rate: rank 0, floating. Slots become further graph inputs "momentum/<weight>",
/// "adam_m/<weight>", "adam_v/<weight>" that start as zeros, and "step_count" where the formula
/// needs it. Returns the bindings of the weights in their order, then those of the slots.
std::vector<ir::StateBinding> write_optimizer(ir::GraphBuilder& g, const Optimizer& optimizer,
                                              std::span<ir::Value* const> weights,
                                              std::span<ir::Value* const> gradients,
                                              ir::Value* learning_rate);

/// Throws: ModelError for a parameter out of its range, naming it.
void check_optimizer(const Optimizer& optimizer);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_OPTIMIZERS_H_
