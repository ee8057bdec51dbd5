#ifndef ONNXGRAD_TRAIN_STOP_GRADIENT_H_
#define ONNXGRAD_TRAIN_STOP_GRADIENT_H_

#include <memory>
#include <span>
#include <string>

#include "ir/graph.h"
#include "opdef/registry.h"

namespace onnxgrad::train {

/// Stops gradients at the values of `model`, a working copy, with these names, and at the outputs
/// of nodes with these names, in subgraphs too, and where its adapters stop them. A call of the
/// function `StopGradient` replaces each, so that copies of a body and gradients of gradients stop
/// there as well. Throws: ModelError (no value and no node of that name).
void stop_gradients(ir::Model& model, const opdef::OpRegistry& registry,
                    std::span<const std::string> names);

/// A copy with these stops, for training; `working` itself without any. Throws: ModelError, also
/// for a weight, which the optimizer would still change.
std::shared_ptr<const ir::Model> with_stops(std::shared_ptr<const ir::Model> working,
                                            const opdef::OpRegistry& registry,
                                            std::span<const std::string> names);

/// Removes the calls again, after differentiation.
void remove_stops(ir::Model& model);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_STOP_GRADIENT_H_
