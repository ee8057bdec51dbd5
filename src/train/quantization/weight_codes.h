#ifndef ONNXGRAD_TRAIN_QUANTIZATION_WEIGHT_CODES_H_
#define ONNXGRAD_TRAIN_QUANTIZATION_WEIGHT_CODES_H_

#include <cstdint>

#include "onnxgrad/quantization.h"

namespace onnxgrad::train {

/// The elements of a weight that share a scale.
struct ScaleLayout {
  ScaleGroups groups = ScaleGroups::kTensor;
  std::int64_t axis = 0;        ///< channels, or the axis of the blocks
  std::int64_t block_size = 0;  ///< of kBlock
};

/// A weight in integers, symmetric: weight = codes * scale.
struct WeightCodes {
  Tensor codes;
  Tensor scale;  ///< [], [channels], or the shape of the weight with blocks for its axis
  Tensor zero;   ///< zeros in the shape of the scale, of the type of the codes
};

/// `weight`, float32 or float64, in int8 or int4.
WeightCodes weight_codes(const Tensor& weight, DataType dtype, const ScaleLayout& layout);

/// Biases of larger codes lose digits in float32.
inline constexpr double kLargestBias = 1 << 24;

/// Largest code of int8 or int4: 127, 7.
std::int64_t largest_code(DataType dtype);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_QUANTIZATION_WEIGHT_CODES_H_
