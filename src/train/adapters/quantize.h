#ifndef ONNXGRAD_TRAIN_ADAPTERS_QUANTIZE_H_
#define ONNXGRAD_TRAIN_ADAPTERS_QUANTIZE_H_

#include "ir/graph.h"
#include "onnxgrad/quantized_weights.h"

namespace onnxgrad::train {

/// Quantizes weights of `file`, as quantize_weights() of onnxgrad/quantized_weights.h describes.
/// Throws: ModelError, OptionError.
void quantize_layers(ir::Model& file, const ir::Model& working, const WeightQuantization& options);

/// Gives the packed linear layers of `file` float weights, also in the record of its adapters.
/// Throws: ModelError (there are none).
void dequantize_layers(ir::Model& file, const ir::Model& working);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_ADAPTERS_QUANTIZE_H_
