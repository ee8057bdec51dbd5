#ifndef ONNXGRAD_TRAIN_TRANSFER_SCORE_LAYERS_H_
#define ONNXGRAD_TRAIN_TRANSFER_SCORE_LAYERS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "ir/graph.h"

namespace onnxgrad::train {

/// A layer whose results may be the scores of a model: it has one element for each class along one
/// axis of its results.
struct ScoreLayer {
  enum class Kind : std::uint8_t {
    kLinear,
    kStacked,  ///< a MatMul with a weight [1, ..., inputs, outputs]
    kConvolution,
    kTransposed,
    kClassifier,
    kRegressor
  };
  Kind kind = Kind::kLinear;
  std::vector<ir::Node*> nodes = {};  ///< several if they read one weight
  const ir::Value* weight = nullptr;  ///< an initializer or output of a Constant, if there is one
  std::int64_t inputs = 0;
  std::int64_t outputs = 0;
  bool is_transposed = false;  ///< the matrix is stored as [outputs, inputs]
  bool is_computed = false;    ///< the weight is converted or dequantized where it is read
  DataType dtype = DataType::kFloat32;
  std::string name = {};                ///< of the module, or the node
  std::vector<std::string> names = {};  ///< further ones: of weight, module and nodes
};

/// The layers of the main graph of `file`, in graph order: MatMul, Gemm, Conv and ConvTranspose
/// with a constant weight, LinearClassifier and LinearRegressor. `working` has the names that the
/// exporting program used.
std::vector<ScoreLayer> find_score_layers(ir::Model& file, const ir::Model& working);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_TRANSFER_SCORE_LAYERS_H_
