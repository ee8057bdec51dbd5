#include "device/cpu/f16_gemm_vnni.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/f16.h"
#include "device/cpu/f16_gemm_end-inl.h"

// bfloat16 GEMM kernels by AVX512-BF16 (vdpbf16ps).

#if ONNXGRAD_HAS_VNNI
#include <cpuid.h>
#endif

namespace onnxgrad::device {
namespace {

std::uint32_t bits_of(std::uint16_t half) { return half; }
std::uint32_t bits_of(float value) { return base::to_bfloat16(value).bits; }

template <class T>
void pack_plainly(const T* from, std::ptrdiff_t from_row, std::int64_t steps, std::int64_t count,
                  std::uint32_t* to, std::ptrdiff_t to_row) {
  for (std::int64_t k = 0; k < steps; k += 2) {
    for (std::int64_t j = 0; j < (count + kVnniLanes - 1) / kVnniLanes * kVnniLanes; ++j) {
      const bool has_second = j < count && k + 1 < steps;
      const std::uint32_t low = j < count ? bits_of(from[k * from_row + j]) : 0;
      const std::uint32_t high = has_second ? bits_of(from[(k + 1) * from_row + j]) : 0;
      to[k / 2 * to_row + j] = low | high << 16;
    }
  }
}

}  // namespace

#if ONNXGRAD_HAS_VNNI

namespace {

// Whether the system saves the state of SSE, AVX, and the registers and masks of AVX-512.
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

template <int kRows, int kVectors>
ONNXGRAD_VNNI_TARGET void a_panel(const VnniPanel& b_panel, std::int64_t row, const std::byte* a) {
  constexpr std::ptrdiff_t kPrefetchDistance = 8;
  const std::ptrdiff_t a_row = b_panel.a_row;
  const std::ptrdiff_t a_step = b_panel.a_step;
  __m512 sum[kRows][kVectors];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sum[i][v] = _mm512_setzero_ps();
  }
  const std::uint32_t* b = b_panel.b;
  for (std::int64_t p = b_panel.pairs; p > 0; --p) {
    __m512bh line[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const __m512i bits = _mm512_loadu_si512(b + v * kVnniLanes);
      line[v] = reinterpret_cast<const __m512bh&>(bits);
      __builtin_prefetch(b + (kPrefetchDistance * kVectors + v) * kVnniLanes);
    }
    b += kVectors * kVnniLanes;
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
  const __mmask16 last = vnni::last_mask(b_panel.columns);
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      vnni::finish(b_panel.end, sum[i][v], row + i, v * kVnniLanes,
                   v + 1 < kVectors ? static_cast<__mmask16>(0xFFFF) : last);
    }
  }
}

using APanelFn = void (*)(const VnniPanel& b_panel, std::int64_t row, const std::byte* a);

template <int kVectors, int... kRow>
constexpr std::array<APanelFn, 8> a_panels(std::integer_sequence<int, kRow...> /*rows*/) {
  return {a_panel<kRow + 1, kVectors>...};
}

constexpr std::array<std::array<APanelFn, 8>, kVnniMaxVectors> kAPanels = {
    a_panels<1>(std::make_integer_sequence<int, kVnniRows[0]>()),
    a_panels<2>(std::make_integer_sequence<int, kVnniRows[1]>()),
    a_panels<3>(std::make_integer_sequence<int, kVnniRows[2]>()),
    a_panels<4>(std::make_integer_sequence<int, kVnniRows[3]>())};

}  // namespace

bool cpu_has_bf16_dot() {
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

void run_vnni(const VnniPanel& b_panel) {
  const auto v = static_cast<std::size_t>(b_panel.vectors - 1);
  const bool is_packed = b_panel.a_row == 4 && b_panel.a_step != 4;
  const std::int64_t height = is_packed ? kVnniPanelRows : kVnniRows[v];
  const std::byte* a = b_panel.a;
  for (std::int64_t row = 0; row < b_panel.rows; row += height) {
    const auto rows = static_cast<std::size_t>(std::min<std::int64_t>(height, b_panel.rows - row));
    kAPanels[v][rows - 1](b_panel, row, a);
    a += is_packed ? height * 4 * b_panel.pairs : height * b_panel.a_row;
  }
}

namespace {

ONNXGRAD_VNNI_TARGET void pack_vectors(const std::uint16_t* from, std::ptrdiff_t from_row,
                                       std::int64_t steps, std::int64_t count, std::uint32_t* to,
                                       std::ptrdiff_t to_row) {
  constexpr std::ptrdiff_t kPrefetchDistance = 8;
  constexpr std::ptrdiff_t kBoth = 2 * kVnniLanes;
  const __m512i lower = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40,
                                         8, 39, 7, 38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
  const __m512i upper = _mm512_add_epi16(lower, _mm512_set1_epi16(kVnniLanes));
  for (std::int64_t k = 0; k < steps; k += 2) {
    const std::uint16_t* first = from + k * from_row;
    const std::uint16_t* second = first + from_row;
    const __mmask32 has_second = k + 1 < steps ? 0xFFFFFFFF : 0;
    for (std::int64_t j = 0; j < count; j += kBoth) {
      const auto left = std::min<std::int64_t>(count - j, kBoth);
      const auto mask = static_cast<__mmask32>((std::uint64_t{1} << left) - 1);
      __builtin_prefetch(first + kPrefetchDistance * from_row + j);
      __builtin_prefetch(second + kPrefetchDistance * from_row + j);
      const __m512i low = _mm512_maskz_loadu_epi16(mask, first + j);
      const __m512i high = _mm512_maskz_loadu_epi16(mask & has_second, second + j);
      _mm512_storeu_si512(to + j, _mm512_permutex2var_epi16(low, lower, high));
      if (j + kVnniLanes < count) {
        _mm512_storeu_si512(to + j + kVnniLanes, _mm512_permutex2var_epi16(low, upper, high));
      }
    }
    to += to_row;
  }
}

ONNXGRAD_VNNI_TARGET void pack_vectors(const float* from, std::ptrdiff_t from_row,
                                       std::int64_t steps, std::int64_t count, std::uint32_t* to,
                                       std::ptrdiff_t to_row) {
  constexpr std::ptrdiff_t kPrefetchDistance = 6;
  const auto rounded = [](const float* at, __mmask16 mask) ONNXGRAD_VNNI_TARGET {
    const auto bits = _mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(mask, at));
    return _mm512_cvtepu16_epi32(reinterpret_cast<const __m256i&>(bits));
  };
  for (std::int64_t k = 0; k < steps; k += 2) {
    const float* first = from + k * from_row;
    for (std::int64_t j = 0; j < count; j += kVnniLanes) {
      const auto left = static_cast<unsigned>(std::min<std::int64_t>(count - j, kVnniLanes));
      const auto mask = static_cast<__mmask16>((1U << left) - 1);
      __builtin_prefetch(first + kPrefetchDistance * from_row + j);
      __m512i bits = rounded(first + j, mask);
      if (k + 1 < steps) {
        __builtin_prefetch(first + (kPrefetchDistance + 1) * from_row + j);
        bits = _mm512_or_si512(bits, _mm512_slli_epi32(rounded(first + from_row + j, mask), 16));
      }
      _mm512_storeu_si512(to + j, bits);
    }
    to += to_row;
  }
}

}  // namespace

#else

bool cpu_has_bf16_dot() { return false; }
void run_vnni(const VnniPanel& /*b_panel*/) {}

namespace {

template <class T>
void pack_vectors(const T* from, std::ptrdiff_t from_row, std::int64_t steps, std::int64_t count,
                  std::uint32_t* to, std::ptrdiff_t to_row) {
  pack_plainly(from, from_row, steps, count, to, to_row);
}

}  // namespace

#endif

void pack_vnni(const std::uint16_t* from, std::ptrdiff_t from_row, std::int64_t steps,
               std::int64_t count, std::uint32_t* to, std::ptrdiff_t to_row) {
  if (cpu_has_bf16_dot()) {
    pack_vectors(from, from_row, steps, count, to, to_row);
  } else {
    pack_plainly(from, from_row, steps, count, to, to_row);
  }
}
void pack_vnni(const float* from, std::ptrdiff_t from_row, std::int64_t steps, std::int64_t count,
               std::uint32_t* to, std::ptrdiff_t to_row) {
  if (cpu_has_bf16_dot()) {
    pack_vectors(from, from_row, steps, count, to, to_row);
  } else {
    pack_plainly(from, from_row, steps, count, to, to_row);
  }
}

}  // namespace onnxgrad::device
