#ifndef ONNXGRAD_QUANTIZATION_H_
#define ONNXGRAD_QUANTIZATION_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "onnxgrad/dtype.h"
#include "onnxgrad/model.h"

// Quantization of a model's layers to integers, and training of what is quantized.
//
// A quantized file is an ordinary ONNX file: its weights are integers that a DequantizeLinear
// reads, and the inputs of its layers go through QuantizeLinear and DequantizeLinear. Training such
// a file, whoever wrote it, keeps a floating-point number w beside each integer q = round(w / s) +
// z that a DequantizeLinear alone reads. Steps compute with the rounded numbers; the gradient
// passes straight through the rounding where nothing is clipped. The trained model has the integers
// of the new w. The weights of a model with adapters stay integers.

namespace [[gnu::visibility("default")]] onnxgrad {

/// Choice of the range that an activation's 256 integers represent, from what calibration sees.
enum class Calibration : std::uint8_t {
  kMinMax,      ///< all values
  kPercentile,  ///< all but the outermost values
  kMse,         ///< the least squared error
  kEntropy,     ///< the least Kullback-Leibler divergence from the values to the rounded ones
};

/// The numbers of a weight that share a scale.
enum class ScaleGroups : std::uint8_t { kTensor, kChannel, kBlock };

/// Parse "minmax", "percentile", "mse", "entropy"; "tensor", "channel", "block". Throw OptionError
/// naming the nearest.
Calibration calibration_from_name(std::string_view name);
ScaleGroups scale_groups_from_name(std::string_view name);

struct QuantizationOptions {
  /// Type of weights, kInt8 or kInt4, symmetric. Ranges of 8 bits are those of the largest number,
  /// those of 4 bits have the least squared error.
  DataType weights = DataType::kInt8;
  ScaleGroups groups = ScaleGroups::kChannel;
  /// Elements along the input axis of a matrix that share a scale, of kBlock. Convolutions, and
  /// matrices with no more inputs, have a scale per channel then.
  std::int64_t block_size = 32;
  /// Whether the inputs of layers are quantized to int8 per tensor. Biases are then
  /// int32, with the scale of the input times that of the weight.
  bool activations = true;
  Calibration calibration = Calibration::kMse;
  double percentile = 99.99;  ///< of kPercentile; in (50, 100]
  /// Whether training learns the scales (LSQ: Esser et al., arXiv:1902.08153).
  bool learn_ranges = true;
  /// Layers to quantize: glob patterns of names of their weights or nodes. Empty: all Conv,
  /// ConvTranspose, Gemm and MatMul of the main graph with a constant weight.
  std::vector<std::string> layers = {};
  std::vector<std::string> exclude = {};  ///< layers to leave out, in the same forms
  bool skip_first = false;
  bool skip_last = false;
  bool fold_batch_norms = true;  ///< into the convolutions before them, first
};

/// `model` with its layers quantized, as post-training quantization leaves it; a session trains it
/// as described above, from the weights of `model` before they were rounded. `batches` (all inputs
/// of the model each) are run to find the ranges of activations; without activations there may be
/// none. Layers that are quantized already stay as they are; of a model that has no others,
/// `learn_ranges` alone counts. A file of an operator set before 13 (21 with int4 or blocks)
/// becomes one of that set. Throws: ModelError (no layer, a pattern without a match), OptionError,
/// DataError.
Model quantize(const Model& model, std::span<const NamedTensors> batches,
               const QuantizationOptions& options = {});

/// The weights that quantize() rounded, as they were; empty for a model of a file.
NamedTensors float_weights(const Model& model);

/// `model`, which is quantized, with these weights to start its training from. Those of other names
/// or shapes are ignored.
Model with_float_weights(const Model& model, const NamedTensors& weights);

}  // namespace onnxgrad

#endif  // ONNXGRAD_QUANTIZATION_H_
