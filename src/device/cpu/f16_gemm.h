#ifndef ONNXGRAD_DEVICE_CPU_F16_GEMM_H_
#define ONNXGRAD_DEVICE_CPU_F16_GEMM_H_

#include <cstdint>

#include "device/cpu/gemm.h"
#include "onnxgrad/dtype.h"

// Products of matrices of bfloat16 or float16 with sums in float32; f16_gemm_plan.cpp chooses:
//
//   pairs    bfloat16, AVX512-BF16: two numbers of k next to each other in 32 bits
//   tiles    bfloat16, AMX: the same layout, 16 x 16 results at a time
//   widened  any processor and type: products of float32 (f16_gemm_widened.cpp)
//
// f16_gemm.cpp has the blocks of the first two, f16_gemm_vnni.h what they share.

namespace onnxgrad::device {

enum class F16GemmChoice : std::uint8_t { kBest, kVnni, kAmx, kWidened };

/// C = max(floor, alpha * op(A) * op(B) + start), shapes as in GemmSpec. A has `dtype`, B too, or
/// is float32 and rounded to it as it is packed. C and what is added are float32 or `dtype`, C
/// rounded once at the end. Roundings are to nearest, ties to even. Subnormal bfloat16 numbers may
/// be treated as zero.
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
  /// From one row of A in memory to the next, if A is part of a larger matrix; 0: dense.
  std::int64_t a_row_length = 0;
  GemmStart start = GemmStart::kZero;
  double alpha = 1;  ///< multiplied by GemmOperands::factor
  bool relu = false;
  int threads = 1;
  /// C, float32, is not stored: each part goes to GemmOperands::finished while it is in the cache.
  /// Nothing is added. Only where can_have_consumer().
  bool has_consumer = false;
  F16GemmChoice choice = F16GemmChoice::kBest;  ///< for tests and benchmarks
  CpuOptions cpu = {};
};

/// Returns the spec of a bfloat16 GEMM with float32 results that has the sizes, transposes, start,
/// factor, threads and options of `gemm`.
F16GemmSpec f16_gemm_spec(const GemmSpec& gemm);

/// Sums run over k in an order that depends only on sizes and implementation. Thread-safe.
/// GemmOperands::c overlaps nothing but, if both have one type, `start`.
PreparedGemm prepare_f16_gemm(const F16GemmSpec& given);

/// Whether a block of sums can be completed at once, and that is worth while.
bool can_have_consumer(const F16GemmSpec& spec);

/// Whether the processor supports an implementation.
bool has_f16_gemm(F16GemmChoice choice, const CpuOptions& cpu = {});

}  // namespace onnxgrad::device

#endif  // ONNXGRAD_DEVICE_CPU_F16_GEMM_H_
