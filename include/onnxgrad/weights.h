#ifndef ONNXGRAD_WEIGHTS_H_
#define ONNXGRAD_WEIGHTS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "onnxgrad/model.h"

namespace [[gnu::visibility("default")]] onnxgrad {

/// Distributions from which initialize() draws weights. For a weight matrix with `fan_in` inputs
/// and `fan_out` outputs:
enum class InitScheme {
  /// Layers of MatMul and Gemm depend on what follows them, as in scikit-learn's MLP: uniform in
  /// ±sqrt(f / (fan_in + fan_out)), f = 2 before a Sigmoid, else 6 (the layer of the scores
  /// depends on
  /// what precedes it), biases from the same range. Convolutions: kHeNormal. Embeddings: normal(0,
  /// 1).
  /// Normalisations: scale 1, shift 0. Recurrent weights: uniform in ±1/sqrt(hidden). Tokens and
  /// position embeddings, which are concatenated or added to values: normal(0, 0.02). Other scales
  /// (layer scales, temperatures) are unchanged.
  kAuto,
  kGlorotUniform,  ///< uniform in ±sqrt(6 / (fan_in + fan_out)); biases 0
  kGlorotNormal,   ///< normal, variance 2 / (fan_in + fan_out); biases 0
  kHeUniform,      ///< uniform in ±sqrt(6 / fan_in); biases 0
  kHeNormal,       ///< normal, variance 2 / fan_in; biases 0
  kLecunUniform,   ///< uniform in ±sqrt(3 / fan_in); biases 0
  kLecunNormal,    ///< normal, variance 1 / fan_in; biases 0
  kUniform,        ///< uniform in ±1/sqrt(fan_in), also biases (torch.nn.Linear)
  kNormal,         ///< normal(0, 1), also biases
  kZeros,
};

/// Parses "auto", "glorot_uniform", ...; throws ModelError naming the nearest.
InitScheme init_scheme_from_name(std::string_view name);

struct InitializeOptions {
  InitScheme scheme = InitScheme::kAuto;
  std::uint64_t seed = 0;
  /// Glob patterns of the weights to draw; empty: the trainable ones.
  std::vector<std::string> weights = {};
  /// Weights that share a tensor of the file by accident become several, each with its own values.
  /// See SeparatedWeight.
  bool untie = true;
};

/// `model` with new weights, everything else byte for byte unchanged. Draws are Philox 4x32-10 with
/// one stream per weight (seed, index in the list of weights): the same on every machine, and
/// independent of which other weights are drawn.
/// Throws: ModelError (a pattern that matches nothing).
Model initialize(const Model& model, const InitializeOptions& options = {});

/// `model` with these weights; dtype and shape of each must be the weight's. Names may be those
/// of weights that training has split (SeparatedWeight): they are then separate in the result too.
/// Throws: ModelError (unknown weight, different dtype or shape).
Model set_weights(const Model& model, const NamedTensors& weights);

/// The weights that are trained by default and the running statistics, under the names and in the
/// form that they have in the program: WeightInfo::aliases where there are any, matrices of linear
/// layers as [out, in], and an LSTM, GRU or RNN as torch has them ("cell.weight_ih_l0",
/// "cell.bias_hh_l0_reverse", with torch's order of gates). Copies, in file order. Weights that
/// training separates are listed separately (SeparatedWeight).
NamedTensors state_dict(const Model& model);

/// The result of load_state_dict().
struct LoadedStateDict {
  Model model;
  std::vector<std::string> missing;     ///< names of state_dict() that were not given
  std::vector<std::string> unexpected;  ///< given ones that the model does not have
};

/// `model` with the weights of a state dictionary in the form of state_dict(), converted to the
/// dtypes of the model's. Other floating-point weights may be given by their names, and
/// "num_batches_tracked", which no ONNX model has, is ignored. A tensor that the file stores again,
/// or transposed, is set with the one that it is a copy of.
/// Throws: ModelError (another shape; with `strict`, missing or unexpected names).
LoadedStateDict load_state_dict(const Model& model, const NamedTensors& state, bool strict = true);

/// Loads the weights of a checkpoint (without optimizer state), or all tensors of any other
/// safetensors file. Throws: CheckpointError (a damaged file, an unsupported type).
NamedTensors load_weights(const std::string& path);

}  // namespace onnxgrad

#endif  // ONNXGRAD_WEIGHTS_H_
