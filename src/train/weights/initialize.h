#ifndef ONNXGRAD_TRAIN_INITIALIZE_H_
#define ONNXGRAD_TRAIN_INITIALIZE_H_

#include <cstdint>

#include "ir/graph.h"
#include "onnxgrad/weights.h"
#include "opdef/registry.h"

namespace onnxgrad::train {

/// How the first elements of a weight are drawn.
struct Distribution {
  enum class Kind { kUniform, kNormal, kConstant };
  Kind kind = Kind::kConstant;
  double width = 0;  ///< half the interval around 0, the deviation, or the constant
};

/// A tensor of elements drawn in float64, then cast: a function of seed and stream.
Tensor draw(const Distribution& distribution, DataType dtype, const Dims& dims, std::uint64_t seed,
            std::uint32_t stream);

/// New values for the chosen weights of a working copy, as initialize() of onnxgrad/weights.h
/// describes. Throws: ModelError (a pattern that matches nothing).
NamedTensors draw_weights(const ir::Model& working, const opdef::OpRegistry& registry,
                          const InitializeOptions& options);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_INITIALIZE_H_
