#include "device/cpu/half_gemm_pairs.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/half.h"

// AVX512-BF16 (vdpbf16ps) through functions with a target attribute: Highway's targets do not have
// the instruction yet.

#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>
#include <immintrin.h>
#define ONNXGRAD_HAS_PAIRS 1
#define ONNXGRAD_PAIRS_TARGET \
  __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma")))
#else
#define ONNXGRAD_HAS_PAIRS 0
#endif

namespace onnxgrad::device {

#if ONNXGRAD_HAS_PAIRS

namespace {

// State that the system saves: SSE, AVX, and the registers and masks of AVX-512.
bool saves_avx512() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0 || (ecx & bit_OSXSAVE) == 0) return false;
  unsigned low = 0;
  unsigned high = 0;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  constexpr unsigned kAvx512 = 0xE6;
  return (low & kAvx512) == kAvx512;
}

ONNXGRAD_PAIRS_TARGET inline __m512 load_start(const HalfEnd& end, std::ptrdiff_t at,
                                               __mmask16 mask) {
  if (end.half_start != nullptr) {
    const __m256i bits = _mm256_maskz_loadu_epi16(mask, end.half_start + at);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }
  return _mm512_maskz_loadu_ps(mask, end.start + at);
}

/// Stores one vector of row i of the strip, columns from `column` on.
ONNXGRAD_PAIRS_TARGET inline void finish(const HalfEnd& end, __m512 sum, std::int64_t row,
                                         std::int64_t column, __mmask16 mask) {
  if (end.scale != 1) sum = _mm512_mul_ps(sum, _mm512_set1_ps(end.scale));
  if (end.start != nullptr || end.half_start != nullptr) {
    sum = _mm512_add_ps(sum, load_start(end, row * end.start_row + column, mask));
  }
  if (end.relu) sum = _mm512_max_ps(_mm512_setzero_ps(), sum);  // NaN stays: second operand
  const std::ptrdiff_t at = row * end.c_row + column;
  if (end.half != nullptr) {
    const auto bits = _mm512_cvtneps_pbh(sum);
    _mm256_mask_storeu_epi16(end.half + at, mask, reinterpret_cast<const __m256i&>(bits));
  } else {
    _mm512_mask_storeu_ps(end.c + at, mask, sum);
  }
}

template <int kRows, int kVectors>
ONNXGRAD_PAIRS_TARGET void strip(const PairPanel& panel, std::int64_t row, const std::byte* a) {
  constexpr std::ptrdiff_t kAhead = 8;
  const std::ptrdiff_t a_row = panel.a_row;
  const std::ptrdiff_t a_step = panel.a_step;
  __m512 sum[kRows][kVectors];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sum[i][v] = _mm512_setzero_ps();
  }
  const std::uint32_t* b = panel.b;
  for (std::int64_t p = panel.pairs; p > 0; --p) {
    __m512bh line[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const __m512i bits = _mm512_loadu_si512(b + v * kPairLanes);
      line[v] = reinterpret_cast<const __m512bh&>(bits);
      __builtin_prefetch(b + (kAhead * kVectors + v) * kPairLanes);
    }
    b += kVectors * kPairLanes;
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      std::int32_t pair = 0;
      std::memcpy(&pair, a + i * a_row, sizeof(pair));
      const __m512i bits = _mm512_set1_epi32(pair);
      const __m512bh factor = reinterpret_cast<const __m512bh&>(bits);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[i][v] = _mm512_dpbf16_ps(sum[i][v], factor, line[v]);
    }
    a += a_step;
  }
  const auto tail = static_cast<unsigned>(panel.columns - (kVectors - 1) * kPairLanes);
  const auto last = static_cast<__mmask16>((1U << tail) - 1);
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      finish(panel.end, sum[i][v], row + i, v * kPairLanes,
             v + 1 < kVectors ? static_cast<__mmask16>(0xFFFF) : last);
    }
  }
}

using StripFn = void (*)(const PairPanel& panel, std::int64_t row, const std::byte* a);

template <int kVectors, int... kRow>
constexpr std::array<StripFn, 8> strips(std::integer_sequence<int, kRow...> /*rows*/) {
  return {strip<kRow + 1, kVectors>...};
}

constexpr std::array<std::array<StripFn, 8>, kPairMaxVectors> kStrips = {
    strips<1>(std::make_integer_sequence<int, kPairRows[0]>()),
    strips<2>(std::make_integer_sequence<int, kPairRows[1]>()),
    strips<3>(std::make_integer_sequence<int, kPairRows[2]>()),
    strips<4>(std::make_integer_sequence<int, kPairRows[3]>())};

}  // namespace

bool cpu_has_pairs() {
  static const bool has = [] {
    unsigned eax = 0;
    unsigned ebx = 0;
    unsigned ecx = 0;
    unsigned edx = 0;
    constexpr unsigned kBf16 = 1U << 5;
    constexpr unsigned kBase = bit_AVX512F | bit_AVX512BW | bit_AVX512VL | bit_AVX512DQ;
    return saves_avx512() && __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 &&
           (ebx & kBase) == kBase && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 &&
           (eax & kBf16) != 0;
  }();
  return has;
}

void run_pairs(const PairPanel& panel) {
  const auto v = static_cast<std::size_t>(panel.vectors - 1);
  const std::int64_t height = kPairRows[v];
  const bool is_packed = panel.a_row == 4 && panel.a_step != 4;
  const std::byte* a = panel.a;
  for (std::int64_t row = 0; row < panel.rows; row += height) {
    const auto rows = static_cast<std::size_t>(std::min<std::int64_t>(height, panel.rows - row));
    kStrips[v][rows - 1](panel, row, a);
    a += is_packed ? height * 4 * panel.pairs : height * panel.a_row;
  }
}

ONNXGRAD_PAIRS_TARGET void pack_pairs(const std::uint16_t* from, std::ptrdiff_t from_row,
                                      std::int64_t steps, std::int64_t count, std::uint32_t* to,
                                      std::ptrdiff_t to_row) {
  constexpr std::ptrdiff_t kAhead = 6;
  for (std::int64_t k = 0; k < steps; k += 2) {
    const std::uint16_t* first = from + k * from_row;
    const bool is_pair = k + 1 < steps;
    for (std::int64_t j = 0; j < count; j += kPairLanes) {
      const auto left = static_cast<unsigned>(std::min<std::int64_t>(count - j, kPairLanes));
      const auto mask = static_cast<__mmask16>((1U << left) - 1);
      __builtin_prefetch(first + kAhead * from_row + j);
      __m512i bits = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, first + j));
      if (is_pair) {
        __builtin_prefetch(first + (kAhead + 1) * from_row + j);
        const __m256i second = _mm256_maskz_loadu_epi16(mask, first + from_row + j);
        bits = _mm512_or_si512(bits, _mm512_slli_epi32(_mm512_cvtepu16_epi32(second), 16));
      }
      _mm512_storeu_si512(to + j, bits);
    }
    to += to_row;
  }
}

ONNXGRAD_PAIRS_TARGET void pack_pairs(const float* from, std::ptrdiff_t from_row,
                                      std::int64_t steps, std::int64_t count, std::uint32_t* to,
                                      std::ptrdiff_t to_row) {
  constexpr std::ptrdiff_t kAhead = 6;
  const auto rounded = [](const float* at, __mmask16 mask) ONNXGRAD_PAIRS_TARGET {
    const auto bits = _mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(mask, at));
    return _mm512_cvtepu16_epi32(reinterpret_cast<const __m256i&>(bits));
  };
  for (std::int64_t k = 0; k < steps; k += 2) {
    const float* first = from + k * from_row;
    for (std::int64_t j = 0; j < count; j += kPairLanes) {
      const auto left = static_cast<unsigned>(std::min<std::int64_t>(count - j, kPairLanes));
      const auto mask = static_cast<__mmask16>((1U << left) - 1);
      __builtin_prefetch(first + kAhead * from_row + j);
      __m512i bits = rounded(first + j, mask);
      if (k + 1 < steps) {
        __builtin_prefetch(first + (kAhead + 1) * from_row + j);
        bits = _mm512_or_si512(bits, _mm512_slli_epi32(rounded(first + from_row + j, mask), 16));
      }
      _mm512_storeu_si512(to + j, bits);
    }
    to += to_row;
  }
}

#else

bool cpu_has_pairs() { return false; }
void run_pairs(const PairPanel& /*panel*/) {}

namespace {

std::uint32_t bits_of(std::uint16_t half) { return half; }
std::uint32_t bits_of(float value) { return base::to_bfloat16(value).bits; }

template <class T>
void pack_plainly(const T* from, std::ptrdiff_t from_row, std::int64_t steps, std::int64_t count,
                  std::uint32_t* to, std::ptrdiff_t to_row) {
  for (std::int64_t k = 0; k < steps; k += 2) {
    for (std::int64_t j = 0; j < (count + kPairLanes - 1) / kPairLanes * kPairLanes; ++j) {
      const bool is_pair = j < count && k + 1 < steps;
      const std::uint32_t low = j < count ? bits_of(from[k * from_row + j]) : 0;
      const std::uint32_t high = is_pair ? bits_of(from[(k + 1) * from_row + j]) : 0;
      to[k / 2 * to_row + j] = low | high << 16;
    }
  }
}

}  // namespace

void pack_pairs(const std::uint16_t* from, std::ptrdiff_t from_row, std::int64_t steps,
                std::int64_t count, std::uint32_t* to, std::ptrdiff_t to_row) {
  pack_plainly(from, from_row, steps, count, to, to_row);
}
void pack_pairs(const float* from, std::ptrdiff_t from_row, std::int64_t steps, std::int64_t count,
                std::uint32_t* to, std::ptrdiff_t to_row) {
  pack_plainly(from, from_row, steps, count, to, to_row);
}

#endif

}  // namespace onnxgrad::device
