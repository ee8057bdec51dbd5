#ifndef ONNXGRAD_TRAIN_ADAPTERS_PACKED_MATRIX_H_
#define ONNXGRAD_TRAIN_ADAPTERS_PACKED_MATRIX_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "opdef/quantized_weight.h"

namespace onnxgrad::train {

/// The matrix of a linear layer in a file, of integers of 2, 4 or 8 bits: MatMulNBits, or MatMul
/// and Gemm of what opdef/quantized_weight.h recognises.
struct PackedMatrix {
  const ir::Value* codes = nullptr;
  DataType dtype = DataType::kFloat32;  ///< of the layer's results
  bool is_transposed = false;           ///< the layer computes x W' with W [outputs, inputs]
  opdef::QuantizedForm form = {};
  opdef::QuantizedTensors tensors = {};

  std::int64_t inputs() const { return is_transposed ? form.columns : form.rows; }
  std::int64_t outputs() const { return is_transposed ? form.rows : form.columns; }
  /// Its elements [inputs, outputs].
  std::vector<float> numbers() const;
  /// The sum of squares of each output's weights, in float64; no matrix of floats is made.
  std::vector<double> squares() const;
};

/// nullptr: `node` is no such layer.
std::shared_ptr<const PackedMatrix> find_packed(const ir::Node& node);

/// True for com.microsoft's MatMulNBits.
bool is_matmul_n_bits(const ir::Node& node);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_ADAPTERS_PACKED_MATRIX_H_
