#ifndef ONNXGRAD_DEVICE_CPU_F16_GEMM_END_INL_H_
#define ONNXGRAD_DEVICE_CPU_F16_GEMM_END_INL_H_

#include <cstdint>

#include "device/cpu/f16_gemm_vnni.h"

// Epilogue of sums in AVX-512 vectors, for f16_gemm_vnni.cpp and f16_gemm_amx.cpp. Functions have a
// target attribute: Highway's targets do not have these instructions yet.

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define ONNXGRAD_HAS_VNNI 1
#define ONNXGRAD_VNNI_FEATURES "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma"
#define ONNXGRAD_VNNI_TARGET __attribute__((target(ONNXGRAD_VNNI_FEATURES)))

namespace onnxgrad::device::vnni {

ONNXGRAD_VNNI_TARGET inline __m512 load_start(const F16End& end, std::ptrdiff_t at,
                                              __mmask16 mask) {
  if (end.f16_start != nullptr) {
    const __m256i bits = _mm256_maskz_loadu_epi16(mask, end.f16_start + at);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }
  return _mm512_maskz_loadu_ps(mask, end.start + at);
}

/// Applies the epilogue to a vector of sums and stores it at row `row`, column `column`.
ONNXGRAD_VNNI_TARGET inline void finish(const F16End& end, __m512 sum, std::int64_t row,
                                        std::int64_t column, __mmask16 mask) {
  if (end.scale != 1) sum = _mm512_mul_ps(sum, _mm512_set1_ps(end.scale));
  if (end.start != nullptr || end.f16_start != nullptr) {
    sum = _mm512_add_ps(sum, load_start(end, row * end.start_row + column, mask));
  }
  if (end.relu) sum = _mm512_max_ps(_mm512_setzero_ps(), sum);  // NaN stays: second operand
  const std::ptrdiff_t at = row * end.c_row + column;
  if (end.f16_c != nullptr) {
    const auto bits = _mm512_cvtneps_pbh(sum);
    _mm256_mask_storeu_epi16(end.f16_c + at, mask, reinterpret_cast<const __m256i&>(bits));
  } else {
    _mm512_mask_storeu_ps(end.c + at, mask, sum);
  }
}

/// Returns the mask of the columns in the last vector, of `columns` columns in all.
inline __mmask16 last_mask(std::int64_t columns) {
  const auto left = static_cast<unsigned>((columns - 1) % kVnniLanes + 1);
  return static_cast<__mmask16>((1U << left) - 1);
}

}  // namespace onnxgrad::device::vnni

#else
#define ONNXGRAD_HAS_VNNI 0
#endif

#endif  // ONNXGRAD_DEVICE_CPU_F16_GEMM_END_INL_H_
