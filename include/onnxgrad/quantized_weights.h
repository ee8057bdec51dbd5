#ifndef ONNXGRAD_QUANTIZED_WEIGHTS_H_
#define ONNXGRAD_QUANTIZED_WEIGHTS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "onnxgrad/model.h"

// Models whose large matrices are integers of 4 or 8 bits. They stay so in memory: products compute
// the numbers where they read them, forwards and backwards. An adapter on such a base is QLoRA
// (Dettmers et al., arXiv:2305.14314). Matrices that other programs wrote as MatMulNBits,
// DequantizeLinear, or entries of a table times scales are read alike.

namespace [[gnu::visibility("default")]] onnxgrad {

enum class WeightFormat : std::uint8_t {
  kInt4,  ///< (code - zero) * scale, one scale for each block
  kInt8,
  kNf4,  ///< NormalFloat: an entry of a table of 16 quantiles times the largest of the block
};

/// Parses "int4", "int8", "nf4"; throws OptionError naming the nearest.
WeightFormat weight_format_from_name(std::string_view name);

struct WeightQuantization {
  WeightFormat format = WeightFormat::kInt4;
  /// Inputs of a layer that share a scale: a power of two from 16 on, as MatMulNBits has it.
  std::int64_t block_size = 32;
  /// False: blocks have zero points, which take half a byte more for int4 and follow weights that
  /// are not spread around 0.
  bool is_symmetric = true;
  /// Writes int4 and int8 as DequantizeLinear and MatMul of ai.onnx (opset 21 and later) instead of
  /// com.microsoft's MatMulNBits. NF4 is always written in ai.onnx: Gather, Mul, Reshape.
  bool uses_dequantize_linear = false;
  /// Layers, as AdapterOptions::targets. Empty: linear layers without the head.
  std::vector<std::string> targets = {};
  std::vector<std::string> exclude = {};
};

/// `model` with the weights of linear layers quantized to the nearest code; all else is shared, not
/// copied. A weight that something else reads too is left alone, unless it is named. Throws:
/// ModelError (no layer to quantize; adapters, which come after; an opset below 21), OptionError.
Model quantize_weights(const Model& model, const WeightQuantization& options = {});

/// `model` with float weights in its linear layers instead of packed ones: it computes the same, in
/// two to eight times the memory, and adapters can be merged into it. Throws: ModelError (no such
/// layer).
Model dequantize_weights(const Model& model);

}  // namespace onnxgrad

#endif  // ONNXGRAD_QUANTIZED_WEIGHTS_H_
