#ifndef ONNXGRAD_OPS_QUANTIZE_QUANTIZE_RUNS_SIMD_H_
#define ONNXGRAD_OPS_QUANTIZE_QUANTIZE_RUNS_SIMD_H_

#include <cstdint>
#include <tuple>

#include "device/isa.h"

// Inner loops of QuantizeLinear and DequantizeLinear, with SIMD: `count` elements that share one
// scale or, in the functions named `each`, have one scale each.

namespace onnxgrad::ops::quantize {

/// Quantization to T = int8, uint8, int16, uint16. Quotients are rounded to the nearest integer,
/// ties to even; NaN becomes the lowest integer.
template <class T>
struct QuantizeTable {
  /// y[i] = clip(round(x[i] / scale) + zero)
  void (*run)(const float* x, float scale, float zero, T* y, std::int64_t count) = nullptr;
  void (*each)(const float* x, const float* scale, const float* zero, T* y,
               std::int64_t count) = nullptr;
};

/// Dequantization from T = int8, uint8, int16, uint16 or int32.
template <class T>
struct DequantizeTable {
  /// y[i] = (x[i] - zero) scale
  void (*run)(const T* x, float scale, float zero, float* y, std::int64_t count) = nullptr;
  void (*each)(const T* x, const float* scale, const float* zero, float* y,
               std::int64_t count) = nullptr;
};

using RunTables =
    std::tuple<QuantizeTable<std::int8_t>, QuantizeTable<std::uint8_t>, QuantizeTable<std::int16_t>,
               QuantizeTable<std::uint16_t>, DequantizeTable<std::int8_t>,
               DequantizeTable<std::uint8_t>, DequantizeTable<std::int16_t>,
               DequantizeTable<std::uint16_t>, DequantizeTable<std::int32_t>>;

/// Returns the functions of an instruction set.
const RunTables& run_tables(device::Isa isa);

}  // namespace onnxgrad::ops::quantize

#endif  // ONNXGRAD_OPS_QUANTIZE_QUANTIZE_RUNS_SIMD_H_
