#ifndef ONNXGRAD_TRAIN_ALIASES_H_
#define ONNXGRAD_TRAIN_ALIASES_H_

#include <span>
#include <string>

#include "ir/graph.h"
#include "onnxgrad/model.h"
#include "opdef/registry.h"
#include "train/weights/weights.h"

// Names for weights that exporters renamed: they fold the transposition of a linear layer's matrix,
// the gates of a cell, a normalisation after a convolution into new tensors with new names
// ("val_92", "onnx::MatMul_356"). The graph still shows where each comes from.

namespace onnxgrad::train {

/// Gives such weights of a working copy, found by find_weights(), and the later parts of
/// `separated` ones their ir::WeightAlias. The evidence, in this order:
/// - metadata of torch's exporter: the call that a node was written for, with the parameters it
///   takes ("%p_enc_layers_0_linear1_weight"), and the modules around it ("enc.layers.0");
/// - the bias (or the matrix) of the layer, if that has its name in the program: "fc.bias";
/// - the modules around the node, from its metadata, or from its name: "/encoder/layer.0/MatMul";
/// - the name of the node.
/// Only weights that are trained by default and running statistics have one. An alias is never the
/// name of a value or node, and no two are equal: further ones end in "_1", "_2".
void give_aliases(ir::Model& working, std::span<const Weight> weights,
                  const opdef::OpRegistry& registry, std::span<const SeparatedWeight> separated);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_ALIASES_H_
