#ifndef ONNXGRAD_WEIGHTS_H_
#define ONNXGRAD_WEIGHTS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "onnxgrad/model.h"

namespace [[gnu::visibility("default")]] onnxgrad {

/// How initialize() draws weights. For a weight matrix with `fan_in` inputs and `fan_out` outputs:
enum class InitScheme {
  /// Layers of MatMul and Gemm by what follows them, as scikit-learn's MLP: uniform in
  /// ±sqrt(f / (fan_in + fan_out)), f = 2 before a Sigmoid, else 6 (the layer of the scores: by
  /// what
  /// comes before it), biases from the same range. Convolutions: kHeNormal. Embeddings: normal(0,
  /// 1).
  /// Normalisations: scale 1, shift 0. Recurrent weights: uniform in ±1/sqrt(hidden). Tokens and
  /// tables of positions, which are joined or added to values: normal(0, 0.02). What scales values
  /// otherwise (layer scales, temperatures) stays as it is.
  kAuto,
  kGlorotUniform,  ///< uniform in ±sqrt(6 / (fan_in + fan_out)); biases 0
  kGlorotNormal,   ///< normal, variance 2 / (fan_in + fan_out); biases 0
  kHeUniform,      ///< uniform in ±sqrt(6 / fan_in); biases 0
  kHeNormal,       ///< normal, variance 2 / fan_in; biases 0
  kLecunUniform,   ///< uniform in ±sqrt(3 / fan_in); biases 0
  kLecunNormal,    ///< normal, variance 1 / fan_in; biases 0
  kUniform,        ///< uniform in ±1/sqrt(fan_in), biases too (torch.nn.Linear)
  kNormal,         ///< normal(0, 1), biases too
  kZeros,
};

/// "auto", "glorot_uniform", ...; throws ModelError naming the nearest.
InitScheme init_scheme_from_name(std::string_view name);

struct InitializeOptions {
  InitScheme scheme = InitScheme::kAuto;
  std::uint64_t seed = 0;
  /// Glob patterns of the weights to draw; empty: the trainable ones.
  std::vector<std::string> weights = {};
  /// Weights that are one in the file by accident become several, each with numbers of its own. See
  /// SeparatedWeight.
  bool untie = true;
};

/// `model` with new weights, everything else byte for byte as it was. Draws are Philox 4x32-10 with
/// one stream per weight (seed, place in the list of weights): the same on every machine, and
/// independent of which other weights are drawn.
/// Throws: ModelError (a pattern that matches nothing).
Model initialize(const Model& model, const InitializeOptions& options = {});

/// `model` with these weights; dtype and shape of each must be the weight's. Names may be those
/// that weights have where training takes them apart (SeparatedWeight): the result has them apart.
/// Throws: ModelError (unknown weight, other dtype or shape).
Model set_weights(const Model& model, const NamedTensors& weights);

/// The weights of a checkpoint (without optimizer state), or all tensors of any other safetensors
/// file. Throws: CheckpointError (a damaged file, a type that tensors do not have).
NamedTensors load_weights(const std::string& path);

}  // namespace onnxgrad

#endif  // ONNXGRAD_WEIGHTS_H_
