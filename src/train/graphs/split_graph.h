#ifndef ONNXGRAD_TRAIN_SPLIT_GRAPH_H_
#define ONNXGRAD_TRAIN_SPLIT_GRAPH_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "onnxgrad/precision.h"
#include "onnxgrad/training_mode.h"
#include "opdef/custom_gradients.h"
#include "opdef/registry.h"
#include "train/graphs/outputs.h"
#include "train/weights/weights.h"

// Splits a training step into two graphs: one that computes the outputs and saves the values that
// their gradients need, and one that computes the gradients from these. No function runs a graph.

namespace onnxgrad::train {

struct SplitOptions {
  std::vector<std::string> weights = {};  ///< patterns; empty: the trainable ones, if there are any
  std::vector<std::string> frozen = {};
  std::vector<std::string> inputs = {};  ///< names; empty: all floating-point inputs
  bool input_gradients = true;
  TrainingMode training_mode = TrainingMode::kAuto;
  const opdef::CustomGradients* custom_gradients = nullptr;  ///< rules that users registered
  MixedPrecision precision = {};
  /// Values that cheap nodes compute from inputs and saved values are not saved: the backward graph
  /// computes them again.
  bool repeat_cheap = false;
};

/// The source of an input of the backward graph.
struct BackwardInput {
  enum class Kind : std::uint8_t {
    kOutputGradient,  ///< gradient of output `index`
    kForwardInput,    ///< input `index` of the forward graph
    kSaved,           ///< output `index` of the forward graph
  };
  Kind kind = Kind::kSaved;
  std::size_t index = 0;
  bool gives_shape = false;  ///< a small integer tensor that plans are compiled for by value
};

struct SplitGraph {
  /// The graph of passes without training. Inputs: those of the model, then the weights, then
  /// running statistics. Outputs: those of the model that can be computed (see `outputs`).
  std::shared_ptr<ir::Model> inference = {};
  /// The inference graph in training mode, with further outputs: values that the backward graph
  /// needs, then the new running statistics.
  std::shared_ptr<ir::Model> forward = {};
  /// The graph of backward passes. Inputs: `backward_inputs`. Outputs: "<name>_grad" of each
  /// weight, then of each of `gradient_inputs`.
  std::shared_ptr<ir::Model> backward = {};
  std::size_t num_model_inputs = 0;
  std::vector<RunnableOutput> outputs = {};  ///< without `value`
  std::vector<WeightInfo> weights = {};
  std::vector<WeightInfo> statistics = {};
  std::vector<std::string> gradient_inputs = {};
  std::vector<BackwardInput> backward_inputs = {};
  std::vector<ir::Type> repeated = {};  ///< types of the values that are computed again
};

/// Builds the graphs. `working`: a working copy (internal opset, types inferred).
/// Throws: ModelError (pattern or input name without a match, nothing to differentiate),
/// GradientError naming every node without a gradient.
SplitGraph split_graph(const ir::Model& working, const opdef::OpRegistry& registry,
                       const SplitOptions& options);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_SPLIT_GRAPH_H_
