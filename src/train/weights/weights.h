#ifndef ONNXGRAD_TRAIN_WEIGHTS_H_
#define ONNXGRAD_TRAIN_WEIGHTS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ir/builder.h"
#include "ir/graph.h"
#include "onnxgrad/model.h"
#include "opdef/registry.h"

namespace onnxgrad::train {

/// A weight of a working copy and the node that it is a parameter of.
struct Weight {
  ir::Value* value = nullptr;
  /// See WeightInfo::trainable. Trained by default are
  /// - parameters of layers (OpDef::weight_inputs, a bias added by an Add, scale
  ///   and shift of a written-out normalisation), also through operators that move numbers;
  /// - matrices read by an unknown operator;
  /// - any other operand that a gradient flows to, if neither its name nor
  ///   its elements nor its position are those of a constant (train/weights/constant_evidence.h;
  ///   scalers of the model's inputs).
  /// Those of transformers before the estimator of a scikit-learn pipeline are not.
  bool trainable = false;
  std::string reason = {};  ///< reason for which it is not trainable
  const ir::Node* reader =
      nullptr;    ///< the layer if trainable (the Add for its bias), else a reader
  int input = 0;  ///< index of the input of `reader` that it reaches
  const ir::Node* layer = nullptr;  ///< for a bias added by an Add: the node before the Add
  bool is_of_layer = false;         ///< trainable, and a layer reads it as its parameter
  bool is_statistic = false;        ///< not trainable: running statistics
  bool is_under_adapter = false;    ///< not trained by default because the model has adapters
  /// Not trained by default, but learned when the file was made: the leaves of trees, the offsets
  /// of a scaler, and other arrays in attributes of ai.onnx.ml.
  bool is_learned_array = false;
  std::int64_t level = -1;  ///< see layer_levels()
};

/// All initializers of the top graph in file order, of any type.
std::vector<Weight> find_weights(const ir::Model& model, const opdef::OpRegistry& registry);

/// True for a matrix of integers of 8 bits or fewer, which carry no gradient, instead of a weight.
bool is_quantized(const WeightInfo& weight);

/// Bytes of the file that nothing reads, and the constant with the same bytes that a layer reads in
/// their place as integers: places among the weights. MatMulNBits is defined so.
struct PackedIntegers {
  std::size_t bytes = 0;
  std::size_t integers = 0;
};
std::vector<PackedIntegers> find_packed_integers(std::span<const Weight> weights);

/// Describes all weights for users; such integers have the name of their bytes.
std::vector<WeightInfo> weight_infos(std::span<const Weight> weights);

/// Describes such a matrix as trained: see train/quantization/float_weights.h.
void mark_as_rounded(WeightInfo& weight);

/// True for a single number that is not trained: a constant of a formula, which is not counted as
/// a weight.
bool is_plain_number(const WeightInfo& weight);

/// True for weights without numbers in the file: they come from the definition of an operator.
bool is_of_definition(const Weight& weight);

/// Selects weights by names and patterns. A full name selects any of them; a pattern the
/// parameters among those it matches, or if there are none the learned arrays: "p_*" selects no
/// ratio of a Dropout. `what`: the weights, in messages.
/// Throws: ModelError (a pattern that selects nothing).
std::vector<bool> match_weights(std::span<const std::string> patterns,
                                std::span<const Weight> weights, std::string_view what,
                                const std::function<bool(const Weight&)>& is_parameter);

/// Describes a weight for users. The name is that of the initializer, or the one that the import
/// gave to numbers from elsewhere.
WeightInfo weight_info(const Weight& weight);

/// The weights to train: `trainable` patterns (empty: the trainable ones) without `frozen` ones;
/// both may have "head" and "last:<n>" (train/weights/layer_levels.h).
/// Throws: ModelError (pattern without a match, named weight that is not floating, nothing left).
std::vector<Weight> select_weights(const std::vector<Weight>& weights,
                                   const std::vector<std::string>& trainable,
                                   const std::vector<std::string>& frozen);

// Float32 copies of weights that the file stores as float16 or bfloat16: small updates would be
// lost in the rounding. The model reads them through a Cast, which rounds as the file will.

/// Makes an initializer or input of float16 or bfloat16 float32, with a Cast for its readers;
/// others are unchanged.
void widen_weight(ir::Graph& graph, ir::Value* weight);

/// Makes running statistics float32: the operators that keep them compute them so, where their
/// definition allows that.
void widen_statistics(ir::GraphBuilder& g, std::vector<ir::StateBinding>& statistics);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_WEIGHTS_H_
