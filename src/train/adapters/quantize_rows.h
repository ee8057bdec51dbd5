#ifndef ONNXGRAD_TRAIN_ADAPTERS_QUANTIZE_ROWS_H_
#define ONNXGRAD_TRAIN_ADAPTERS_QUANTIZE_ROWS_H_

#include <array>
#include <cstdint>
#include <vector>

#include "onnxgrad/quantized_weights.h"

namespace onnxgrad::train {

/// Entries of NF4: quantiles of a normal distribution, scaled to [-1, 1], with an exact 0.
inline constexpr std::array<float, 16> kNf4Entries{
    -1.0F,          -0.6961928010F, -0.5250730515F, -0.3949174881F,
    -0.2844413817F, -0.1847734302F, -0.0910500363F, 0.0F,
    0.0795802996F,  0.1609302014F,  0.2461123019F,  0.3379152417F,
    0.4407098293F,  0.5626170039F,  0.7229568362F,  1.0F};

/// A matrix [rows, columns] in blocks along its rows, the last one with zeros after the end.
struct QuantizedRows {
  std::int64_t rows = 0, columns = 0, block = 0;
  std::vector<std::uint8_t> codes = {};  ///< [rows, blocks * block], one code each, unsigned
  std::vector<float> scales = {};        ///< [rows, blocks]
  std::vector<std::uint8_t> zeros = {};  ///< [rows, blocks]; NF4: empty

  std::int64_t blocks() const { return (columns + block - 1) / block; }
};

/// Quantizes `numbers` [rows, columns]. Symmetric blocks map the number of the largest magnitude to
/// the lowest code of int4, exactly, or to ±127 of int8; others map the range that 0 completes.
QuantizedRows quantize_rows(const std::vector<float>& numbers, std::int64_t rows,
                            const WeightQuantization& options);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_ADAPTERS_QUANTIZE_ROWS_H_
