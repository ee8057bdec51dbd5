#ifndef ONNXGRAD_TRAIN_GRAPHS_LOSS_PARTS_H_
#define ONNXGRAD_TRAIN_GRAPHS_LOSS_PARTS_H_

#include <memory>
#include <string>
#include <vector>

#include "ir/builder.h"
#include "onnxgrad/losses.h"
#include "train/weights/weights.h"

// Changes of a model that a loss needs before it is placed: weights of its own, several inputs in a
// row.

namespace onnxgrad::train {

/// Weights of the loss and its matches: Loss::own_weights, or those that its function has.
NamedTensors own_weights(const Loss& loss);

/// `model` with the weights of the loss as initializers; itself if there are none. Throws:
/// ModelError (a name in use).
std::shared_ptr<const ir::Model> with_own_weights(std::shared_ptr<const ir::Model> model,
                                                  const Loss& loss);

/// Adds the loss's own weights if the graph does not have them, and with Loss::views the siblings
/// of the inputs: the model is then computed on all of their rows. Throws: ModelError (a name in
/// use; an input that is not a tensor with rows).
void prepare_loss(ir::GraphBuilder& g, const Loss& loss);

/// Adds the loss's own weights, of `all`, to the trained ones.
void add_own_weights(const std::vector<Weight>& all, const Loss& loss,
                     std::vector<Weight>& trained);

/// The inputs that `loss` adds to a model with these: siblings, without targets.
std::vector<ValueInfo> sibling_inputs(const std::vector<ValueInfo>& inputs, const Loss& loss);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_GRAPHS_LOSS_PARTS_H_
