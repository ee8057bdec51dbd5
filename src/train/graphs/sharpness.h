#ifndef ONNXGRAD_TRAIN_GRAPHS_SHARPNESS_H_
#define ONNXGRAD_TRAIN_GRAPHS_SHARPNESS_H_

#include <span>
#include <vector>

#include "ir/builder.h"
#include "onnxgrad/optimizers.h"

namespace onnxgrad::train {

/// The nodes that compute `gradients` from `weights`, appended once more for the weights
/// w + rho g / |g|: returns the gradients there. `directions`: g, the gradients of all workers.
std::vector<ir::Value*> sharpness_aware(ir::GraphBuilder& g, const SharpnessAware& options,
                                        std::span<ir::Value* const> weights,
                                        std::span<ir::Value* const> gradients,
                                        std::span<ir::Value* const> directions);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_GRAPHS_SHARPNESS_H_
