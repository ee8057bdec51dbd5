#ifndef ONNXGRAD_TRAIN_ADAPTERS_LAYER_ROLES_H_
#define ONNXGRAD_TRAIN_ADAPTERS_LAYER_ROLES_H_

#include <span>

#include "train/adapters/layers.h"

namespace onnxgrad::train {

/// Sets AdaptableLayer::role:
/// - "query", "key", "value": linear layers whose results, scaled, rotated or split into heads, are
///   the operands of an attention (a Softmax between two MatMul, or an operator for it); "qkv" if
///   one layer computes several of them;
/// - "attention_output": reads the attention's result, reshaped;
/// - "mlp_down": reads an activation of the results of other layers, which are "mlp_up";
/// - "head": its results are outputs of the model, up to a bias, an activation of scores, labels;
/// - otherwise "linear", "conv", "embedding".
void give_roles(const ir::Graph& graph, std::span<AdaptableLayer> layers);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_ADAPTERS_LAYER_ROLES_H_
