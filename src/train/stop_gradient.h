#ifndef ONNXGRAD_TRAIN_STOP_GRADIENT_H_
#define ONNXGRAD_TRAIN_STOP_GRADIENT_H_

#include <memory>
#include <span>
#include <string>

#include "ir/graph.h"
#include "opdef/registry.h"

namespace onnxgrad::train {

/// No gradient flows past the values of `model`, a working copy, that these names are of, or past
/// the outputs of nodes of these names, in subgraphs too: a call of the function `StopGradient`
/// takes the place of each, so that copies of a body and gradients of gradients end there as well.
/// Throws: ModelError (no value and no node of that name).
void stop_gradients(ir::Model& model, const opdef::OpRegistry& registry,
                    std::span<const std::string> names);

/// A copy with these stops, for training; `working` itself without names. Throws: ModelError, also
/// for a weight, which the optimizer would still change.
std::shared_ptr<const ir::Model> with_stops(std::shared_ptr<const ir::Model> working,
                                            const opdef::OpRegistry& registry,
                                            std::span<const std::string> names);

/// Removes the calls again, after differentiation.
void remove_stops(ir::Model& model);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_STOP_GRADIENT_H_
