#ifndef ONNXGRAD_TRAIN_QUANTIZATION_FLOAT_WEIGHTS_H_
#define ONNXGRAD_TRAIN_QUANTIZATION_FLOAT_WEIGHTS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "onnxgrad/model.h"

// Floating-point weights beside the integers of a quantized model, for its training. In the working
// copy, q -> DequantizeLinear(q, s, z) becomes w -> FakeQuantize(w, s, z), w = (q - z) s; a bias,
// int32 -> DequantizeLinear, becomes a floating-point bias. Both keep the name of the integers,
// which are computed again when the trained model is written.

namespace onnxgrad::train {

/// A weight whose integers are in the file.
struct FloatWeight {
  std::string name;
  DataType dtype = DataType::kUndefined;  ///< of the integers; kInt32: a bias
  /// Names of the initializers of its scale and zero point; the latter may be empty.
  std::string scale = {};
  std::string zero_point = {};
  std::int64_t axis = 1;
  std::int64_t block_size = 0;
  Dims dims = {};  ///< of the integers
  /// Scales of the input and the weight of a bias's layer, if its own is their product. `scale`
  /// may be empty then: the operator has none.
  std::string input_scale = {};
  std::string weight_scale = {};
};

struct FloatForm {
  std::shared_ptr<const ir::Model> model;
  std::vector<FloatWeight> weights = {};  ///< in the order of the file
};

/// `working` with floating-point weights; `working` itself if there is nothing to replace, or if
/// the model has adapters, which are trained instead. Replaced are integers of at most 8 bits, and
/// int32 biases, of the file that DequantizeLinear nodes with one constant scale, and nothing else,
/// read. The values are those of `given`, by name, where it has them in the right shape.
FloatForm with_float_weights(std::shared_ptr<const ir::Model> working, const NamedTensors& given);

/// Replaces the floating-point weights of `form` among `weights` by integers, and adds the integers
/// and scales that change with learned scales among `weights`.
void to_integers(const FloatForm& form, NamedTensors& weights);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_QUANTIZATION_FLOAT_WEIGHTS_H_
