#ifndef ONNXGRAD_TRAIN_QUANTIZATION_INSERT_H_
#define ONNXGRAD_TRAIN_QUANTIZATION_INSERT_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "onnxgrad/quantization.h"
#include "train/quantization/observe.h"

namespace onnxgrad::train {

/// A layer of a file's graph that can be quantized.
struct QuantizableLayer {
  ir::Node* node = nullptr;       ///< Conv, ConvTranspose, Gemm or MatMul
  std::size_t input = 0;          ///< index of its input that is no weight
  ir::Value* weight = nullptr;    ///< an initializer, which it reads directly or transposed
  std::int64_t channel_axis = 0;  ///< axes of `weight`
  std::int64_t input_axis = 0;
};

/// Turns Constant nodes into initializers, and initializers of files before IR version 4, which are
/// listed as inputs, into constants.
void settle_constants(ir::Model& file);

/// Folds each BatchNormalization in inference form into the Conv or Gemm before it. The weights
/// keep their names.
void fold_norms(ir::Graph& graph);

/// The layers that the options choose, in graph order; those with integer weights are not among
/// them. `working` has further names of weights. Throws: ModelError (a pattern without a match; no
/// layer, unless the graph has quantized ones).
std::vector<QuantizableLayer> quantizable_layers(ir::Model& file, const ir::Model& working,
                                                 const QuantizationOptions& options);

/// The operator set that the options need.
std::int64_t opset_for(const QuantizationOptions& options);

/// Ranges of the inputs of layers, by the name of the value.
using Ranges = std::map<std::string, RangeObserver>;

/// Quantizes the layers: integer weights, QuantizeLinear and DequantizeLinear before each input,
/// int32 biases, and the record of learned scales. Returns the weights that it replaced.
NamedTensors insert_quantization(ir::Model& file, const std::vector<QuantizableLayer>& layers,
                                 const Ranges& ranges, const QuantizationOptions& options);

/// Lists the constant scales of all QuantizeLinear and DequantizeLinear nodes in the record. For a
/// model that was quantized elsewhere.
void learn_scales(ir::Model& file);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_QUANTIZATION_INSERT_H_
