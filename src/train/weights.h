#ifndef ONNXGRAD_TRAIN_WEIGHTS_H_
#define ONNXGRAD_TRAIN_WEIGHTS_H_

#include <string>
#include <vector>

#include "ir/graph.h"
#include "onnxgrad/model.h"
#include "opdef/registry.h"

namespace onnxgrad::train {

/// A weight of a working copy and the node that it is a parameter of.
struct Weight {
  ir::Value* value = nullptr;
  /// See WeightInfo::trainable: OpDef::weight_inputs of a reader, seen through Identity, Transpose,
  /// Reshape, Cast, Squeeze, Unsqueeze; or the Mul of a normalisation that is written out; or an
  /// Add behind such a reader; or rank 2 and more at an operator that is not known.
  bool trainable = false;
  const ir::Node* reader =
      nullptr;    ///< the layer if trainable (the Add for its bias), else a reader
  int input = 0;  ///< which input of `reader` it reaches
  const ir::Node* layer = nullptr;  ///< of a bias that an Add brings: the node before the Add
};

/// All initializers of the top graph in file order, of any type.
std::vector<Weight> find_weights(const ir::Model& model, const opdef::OpRegistry& registry);

/// For users. The name is that of the initializer, or the one that the import gave to numbers from
/// elsewhere.
WeightInfo weight_info(const Weight& weight);

/// The weights to train: `trainable` patterns (empty: the trainable ones) without `frozen` ones.
/// Throws: ModelError (pattern without match, named weight that is not floating, nothing left).
std::vector<Weight> select_weights(const std::vector<Weight>& weights,
                                   const std::vector<std::string>& trainable,
                                   const std::vector<std::string>& frozen);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_WEIGHTS_H_
