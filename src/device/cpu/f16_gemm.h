#ifndef ONNXGRAD_DEVICE_CPU_F16_GEMM_H_
#define ONNXGRAD_DEVICE_CPU_F16_GEMM_H_

#include <cstdint>

#include "device/cpu/gemm.h"
#include "onnxgrad/dtype.h"

// GEMM of bfloat16 or float16 matrices with sums in float32; f16_gemm.cpp chooses among:
//
//   kVnni     bfloat16, AVX512-BF16: B packed in VNNI layout, two elements of k in 32 bits
//   kAmx      bfloat16, AMX: VNNI layout, tiles of 16 x 16 sums
//   kWidened  any processor and type: a float32 GEMM of converted operands
//
// f16_gemm_kernel.cpp has the blocks of kVnni and kAmx, f16_gemm_vnni.h their innermost loops.

namespace onnxgrad::device {

enum class F16GemmChoice : std::uint8_t { kBest, kVnni, kAmx, kWidened };

/// C = max(floor, alpha * op(A) * op(B) + start), shapes as in GemmSpec. A has `dtype`; B has
/// `dtype`, or is float32 and rounded to it as it is packed. C and `start` are float32 or `dtype`;
/// C is rounded once, at the end. Rounding is to nearest, ties to even. Subnormal bfloat16 elements
/// may be treated as zero.
struct F16GemmSpec {
  DataType dtype = DataType::kBfloat16;  ///< or float16
  bool rounds_b = false;                 ///< B is float32, rounded
  DataType c_dtype = DataType::kFloat32;
  DataType start_dtype = DataType::kFloat32;
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  bool transpose_a = false;
  bool transpose_b = false;
  /// Row stride of A in elements, if A is part of a larger matrix; 0: A is dense.
  std::int64_t a_row_length = 0;
  GemmStart start = GemmStart::kZero;
  double alpha = 1;  ///< multiplied by GemmOperands::factor
  bool relu = false;
  int threads = 1;
  /// C, in float32, is not stored: each part goes to GemmOperands::finished while it is in the
  /// cache. Without `start`. Only where can_have_consumer().
  bool has_consumer = false;
  F16GemmChoice choice = F16GemmChoice::kBest;  ///< for tests and benchmarks
  CpuOptions cpu = {};
};

/// Returns the spec of a GEMM of gemm.dtype, float16 or bfloat16, with float32 results that has the
/// sizes, transposes, start, factor, threads and options of `gemm`.
F16GemmSpec f16_gemm_spec(const GemmSpec& gemm);

/// Plans a GEMM. Sums run over k in an order that depends only on sizes and implementation.
/// Thread-safe. GemmOperands::c may be `start` if both have one type; it overlaps nothing else.
PreparedGemm prepare_f16_gemm(const F16GemmSpec& given);

/// Whether the GEMM supports has_consumer and gains by it: each block of C is completed at once.
bool can_have_consumer(const F16GemmSpec& spec);

/// Whether the processor supports the implementation `choice`.
bool has_f16_gemm(F16GemmChoice choice, const CpuOptions& cpu = {});

}  // namespace onnxgrad::device

#endif  // ONNXGRAD_DEVICE_CPU_F16_GEMM_H_
