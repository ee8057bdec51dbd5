#include <algorithm>

#include "device/cpu/amx-inl.h"
#include "device/cpu/amx_target.h"
#include "device/cpu/gemm_split.h"

// Split GEMM by AMX, which multiplies tiles of 16 x 16 VNNI pairs (TDPBF16PS, Intel 64 and IA-32
// Architectures Software Developer's Manual, volume 2). TDPBF16PS adds 8,192 products in 16 cycles,
// two multiply-adds of 512 bits add 32 per cycle: AMX pays even with six tile products for one of
// float32.

// GCC 12 warns of its own intrinsics, which leave an operand undefined without using its bits.
#pragma GCC diagnostic ignored "-Wuninitialized"

#if ONNXGRAD_HAS_AMX

namespace onnxgrad::device {
namespace {

using amx::kLine;
using amx::store_sums;
using amx::zero_sums;

constexpr std::uint32_t kHalfOfLast =
    0x8000;  // half a unit of bfloat16's last place, in float32's bits
constexpr std::uint32_t kPartBits = 0xFFFF0000;

/// Splits 16 VNNI pairs (x, y) and writes each part to a row of its tile. Adds the smallest parts
/// to `last`, which becomes NaN if parts do not add up.
template <int kParts>
ONNXGRAD_AMX_INLINE void split_pairs(__m512 x, __m512 y, std::byte* to, __m512& last) {
  const __m512i half_of_last = _mm512_set1_epi32(static_cast<int>(kHalfOfLast));
  const __m512i part_bits = _mm512_set1_epi32(static_cast<int>(kPartBits));
  const auto store = [&](__m512i low, __m512i high, std::ptrdiff_t part) ONNXGRAD_AMX_TARGET {
    // (high & part_bits) | (low >> 16)
    const __m512i both =
        _mm512_ternarylogic_epi32(high, part_bits, _mm512_srli_epi32(low, 16), 0xEA);
    _mm512_store_si512(to + part * kSplitTile, both);
  };
#pragma GCC unroll 2
  for (std::ptrdiff_t part = 0; part + 1 < kParts; ++part) {
    const __m512i x_bits = _mm512_add_epi32(_mm512_castps_si512(x), half_of_last);
    const __m512i y_bits = _mm512_add_epi32(_mm512_castps_si512(y), half_of_last);
    store(x_bits, y_bits, part);
    x = _mm512_sub_ps(x, _mm512_castsi512_ps(_mm512_and_si512(x_bits, part_bits)));
    y = _mm512_sub_ps(y, _mm512_castsi512_ps(_mm512_and_si512(y_bits, part_bits)));
  }
  store(_mm512_castps_si512(x), _mm512_castps_si512(y), kParts - 1);
  if (kParts > 1) last = _mm512_add_ps(last, _mm512_add_ps(x, y));
}

ONNXGRAD_AMX_INLINE bool has_no_nan(__m512 last) {
  return _mm512_cmp_ps_mask(last, last, _CMP_UNORD_Q) == 0;
}

inline __mmask16 mask_of(std::int64_t count) {
  const auto bits = static_cast<unsigned>(std::clamp<std::int64_t>(count, 0, kSplitGroup));
  return static_cast<__mmask16>((1U << bits) - 1);
}

template <int kParts>
ONNXGRAD_AMX_TARGET bool pack_rows(const SplitSource& source) {
  __m512 last = _mm512_setzero_ps();
  const std::int64_t whole = source.steps / kSplitSteps * kSplitSteps;
  for (std::int64_t i = 0; i < round_up(source.count, kSplitGroup); ++i) {
    std::byte* to = source.to + i / kSplitGroup * source.group + i % kSplitGroup * kLine;
    const float* from = source.from + i * source.row;
    const std::int64_t steps = i < source.count ? source.steps : 0;
    for (std::int64_t k = 0; k < source.steps; k += kSplitSteps, to += split_slice(kParts)) {
      if (k < whole && steps > 0) {
        split_pairs<kParts>(_mm512_loadu_ps(from + k), _mm512_loadu_ps(from + k + kSplitGroup), to,
                            last);
      } else {
        const __m512 x = _mm512_maskz_loadu_ps(mask_of(steps - k), from + k);
        const __m512 y =
            _mm512_maskz_loadu_ps(mask_of(steps - k - kSplitGroup), from + k + kSplitGroup);
        split_pairs<kParts>(x, y, to, last);
      }
    }
  }
  return has_no_nan(last);
}

template <int kParts>
ONNXGRAD_AMX_TARGET bool pack_steps(const SplitSource& source) {
  constexpr std::int64_t kPrefetchDistance = 4;  // steps
  __m512 last = _mm512_setzero_ps();
  for (std::int64_t k = 0; k < source.steps; k += kSplitSteps) {
    std::byte* slice = source.to + k / kSplitSteps * split_slice(kParts);
    for (std::int64_t p = 0; p < kSplitGroup; ++p) {
      const float* x = source.from + (k + p) * source.row;
      const float* y = x + kSplitGroup * source.row;
      const bool has_x = k + p < source.steps;
      const bool has_y = k + kSplitGroup + p < source.steps;
      std::byte* to = slice + p * kLine;
      for (std::int64_t j = 0; j < source.count; j += kSplitGroup, to += source.group) {
        __builtin_prefetch(x + kPrefetchDistance * source.row + j);
        __builtin_prefetch(y + kPrefetchDistance * source.row + j);
        const __mmask16 mask = mask_of(source.count - j);
        split_pairs<kParts>(_mm512_maskz_loadu_ps(has_x ? mask : static_cast<__mmask16>(0), x + j),
                            _mm512_maskz_loadu_ps(has_y ? mask : static_cast<__mmask16>(0), y + j),
                            to, last);
      }
    }
  }
  return has_no_nan(last);
}

/// Transposes 16 x 16 elements.
ONNXGRAD_AMX_INLINE void transpose(__m512 (&rows)[kSplitGroup]) {
  __m512 pairs[kSplitGroup];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    pairs[i] = _mm512_unpacklo_ps(rows[i], rows[i + 1]);
    pairs[i + 1] = _mm512_unpackhi_ps(rows[i], rows[i + 1]);
  }
  // Joins four rows: elements 4 q + c of each, for the q-th 128 bits.
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    const auto join = [&](int a, int b, bool high) ONNXGRAD_AMX_TARGET {
      const __m512d x = _mm512_castps_pd(pairs[a]);
      const __m512d y = _mm512_castps_pd(pairs[b]);
      return _mm512_castpd_ps(high ? _mm512_unpackhi_pd(x, y) : _mm512_unpacklo_pd(x, y));
    };
    rows[i] = join(i, i + 2, false);
    rows[i + 1] = join(i, i + 2, true);
    rows[i + 2] = join(i + 1, i + 3, false);
    rows[i + 3] = join(i + 1, i + 3, true);
  }
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    const __m512 low = _mm512_shuffle_f32x4(rows[c], rows[4 + c], 0x44);
    const __m512 high = _mm512_shuffle_f32x4(rows[c], rows[4 + c], 0xEE);
    const __m512 lower = _mm512_shuffle_f32x4(rows[8 + c], rows[12 + c], 0x44);
    const __m512 higher = _mm512_shuffle_f32x4(rows[8 + c], rows[12 + c], 0xEE);
    pairs[c] = _mm512_shuffle_f32x4(low, lower, 0x88);
    pairs[4 + c] = _mm512_shuffle_f32x4(low, lower, 0xDD);
    pairs[8 + c] = _mm512_shuffle_f32x4(high, higher, 0x88);
    pairs[12 + c] = _mm512_shuffle_f32x4(high, higher, 0xDD);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) rows[i] = pairs[i];
}

/// Loads the columns `mask` of `count` rows of 16 elements, and transposes them.
ONNXGRAD_AMX_INLINE void load_transposed(const float* from, std::ptrdiff_t row, std::int64_t count,
                                         __mmask16 mask, __m512 (&to)[kSplitGroup]) {
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    to[i] = _mm512_maskz_loadu_ps(i < count ? mask : static_cast<__mmask16>(0), from);
    if (i + 1 < count) from += row;
  }
  transpose(to);
}

/// Packs a slice of a group that is transposed in memory: x and y are the first and second elements
/// of its VNNI pairs.
template <int kParts>
ONNXGRAD_AMX_TARGET void split_transposed(const float* x, const float* y, std::ptrdiff_t row,
                                          std::int64_t x_count, std::int64_t y_count,
                                          __mmask16 x_mask, __mmask16 y_mask, std::byte* to,
                                          __m512& all) {
  __m512 last = all;
  __m512 numbers[kSplitGroup];
  alignas(64) float first[kSplitGroup * kSplitGroup];
  load_transposed(x, row, x_count, x_mask, numbers);
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) _mm512_store_ps(first + i * kSplitGroup, numbers[i]);
  load_transposed(y, row, y_count, y_mask, numbers);
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    split_pairs<kParts>(_mm512_load_ps(first + i * kSplitGroup), numbers[i], to + i * kLine, last);
  }
  all = last;
}

/// Packs rows of A from a matrix whose rows are steps.
template <int kParts>
ONNXGRAD_AMX_TARGET bool pack_row_steps(const SplitSource& source) {
  constexpr std::int64_t kPrefetchDistance = 2 * kSplitGroup;  // elements
  __m512 last = _mm512_setzero_ps();
  for (std::int64_t k = 0; k < source.steps; k += kSplitSteps) {
    std::byte* to = source.to + k / kSplitSteps * split_slice(kParts);
    const std::int64_t steps = source.steps - k;
    const float* x = source.from + k * source.row;
    const float* y = x + (steps > kSplitGroup ? kSplitGroup * source.row : 0);
    for (std::int64_t i = 0; i < source.count; i += kSplitGroup, to += source.group) {
      for (std::int64_t p = 0; p < std::min(steps, kSplitSteps); ++p) {
        __builtin_prefetch(x + p * source.row + i + kPrefetchDistance);
      }
      const __mmask16 mask = mask_of(source.count - i);
      split_transposed<kParts>(x + i, y + i, source.row, steps, steps - kSplitGroup, mask, mask, to,
                               last);
    }
  }
  return has_no_nan(last);
}

/// Packs columns of B from a matrix whose rows are columns of B.
template <int kParts>
ONNXGRAD_AMX_TARGET bool pack_columns(const SplitSource& source) {
  __m512 last = _mm512_setzero_ps();
  for (std::int64_t j = 0; j < source.count; j += kSplitGroup) {
    std::byte* to = source.to + j / kSplitGroup * source.group;
    const std::int64_t count = source.count - j;
    for (std::int64_t k = 0; k < source.steps; k += kSplitSteps, to += split_slice(kParts)) {
      const float* x = source.from + j * source.row + k;
      const std::int64_t steps = source.steps - k;
      split_transposed<kParts>(x, x + kSplitGroup, source.row, count, count, mask_of(steps),
                               mask_of(steps - kSplitGroup), to, last);
    }
  }
  return has_no_nan(last);
}

/// Configuration of the AMX tiles 0 to 3: sums of 2 x 2 groups; 4, 5: groups of A; 6, 7: of B.
struct alignas(64) TileConfig {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

ONNXGRAD_AMX_TARGET void begin_amx() {
  static constexpr TileConfig kConfig;
  __asm__ volatile("ldtilecfg %0" : : "m"(kConfig));
}

ONNXGRAD_AMX_TARGET void end_amx() { _tile_release(); }

inline void fetch_lines(SplitFetch& fetch) {
  for (std::int64_t i = 0; i < fetch.each; ++i) {
    while (fetch.now.rows == 0) {
      if (fetch.next == fetch.end) return;
      fetch.now = *fetch.next++;
      fetch.line = 0;
    }
    __builtin_prefetch(fetch.now.from + fetch.line * kLine);
    if (++fetch.line < fetch.now.lines) continue;
    fetch.line = 0;
    fetch.now.from += fetch.now.row;
    --fetch.now.rows;
  }
}

/// Operands of a slice: tiles of one or two groups of A and of B.
template <bool kHasLower, bool kIsWide, int kParts>
struct Slice {
  const std::byte* a;
  std::ptrdiff_t a_group;
  const std::byte* b;
  std::ptrdiff_t b_group;

  ONNXGRAD_AMX_INLINE void load_a(std::ptrdiff_t part) const {
    _tile_loadd(4, a + part * kSplitTile, kLine);
    if (kHasLower) _tile_loadd(5, a + a_group + part * kSplitTile, kLine);
  }

  ONNXGRAD_AMX_INLINE void load_b(std::ptrdiff_t part) const {
    _tile_loadd(6, b + part * kSplitTile, kLine);
    if (kIsWide) _tile_loadd(7, b + b_group + part * kSplitTile, kLine);
  }

  ONNXGRAD_AMX_INLINE static void add(SplitFetch& fetch) {
    _tile_dpbf16ps(0, 4, 6);
    if (kIsWide) _tile_dpbf16ps(1, 4, 7);
    if (kHasLower) _tile_dpbf16ps(2, 5, 6);
    if (kHasLower && kIsWide) _tile_dpbf16ps(3, 5, 7);
    fetch_lines(fetch);
  }

  /// Adds all tile products of the parts (gemm_split.h), in an order in which each shares an
  /// operand with the one before.
  ONNXGRAD_AMX_INLINE void add_all(SplitFetch& fetch) const {
    if (kParts == 1) {
      load_a(0);
      load_b(0);
      return add(fetch);
    }
    load_a(0);
    if (kParts == 3) {
      load_b(2);
      add(fetch);
    }
    load_b(1);
    add(fetch);
    load_a(1);
    add(fetch);
    load_b(0);
    add(fetch);
    if (kParts == 3) {
      load_a(2);
      add(fetch);
    }
    load_a(0);
    add(fetch);
  }
};

template <bool kHasLower, bool kIsWide>
ONNXGRAD_AMX_INLINE void add_sums(const float* from, float* to, std::ptrdiff_t row) {
  constexpr std::ptrdiff_t kRows = (kHasLower ? 2 : 1) * kSplitGroup;
  for (std::ptrdiff_t i = 0; i < kRows; ++i, from += kSplitBlock, to += row) {
    _mm512_storeu_ps(to, _mm512_add_ps(_mm512_loadu_ps(to), _mm512_load_ps(from)));
    if (!kIsWide) continue;
    float* wide = to + kSplitGroup;
    _mm512_storeu_ps(wide,
                     _mm512_add_ps(_mm512_loadu_ps(wide), _mm512_load_ps(from + kSplitGroup)));
  }
}

template <bool kHasLower, bool kIsWide, int kParts>
ONNXGRAD_AMX_TARGET void multiply_groups(const SplitGemm& product) {
  Slice<kHasLower, kIsWide, kParts> slice{product.a, product.a_group, product.b, product.b_group};
  SplitFetch fetch = *product.fetch;  // a copy: no store changes it
  zero_sums<kHasLower, kIsWide>();
  for (std::int64_t s = 0; s < product.slices; ++s) {
    slice.add_all(fetch);
    slice.a += split_slice(kParts);
    slice.b += split_slice(kParts);
  }
  *product.fetch = fetch;
  constexpr std::ptrdiff_t kFloat = sizeof(float);
  if (!product.adds) return store_sums<kHasLower, kIsWide>(product.c, product.c_row * kFloat);
  alignas(64) float sums[kSplitBlock * kSplitBlock];
  store_sums<kHasLower, kIsWide>(sums, kSplitBlock * kFloat);
  add_sums<kHasLower, kIsWide>(sums, product.c, product.c_row);
}

template <int kParts>
void multiply_parts(const SplitGemm& product) {
  if (product.has_lower) {
    product.is_wide ? multiply_groups<true, true, kParts>(product)
                    : multiply_groups<true, false, kParts>(product);
  } else {
    product.is_wide ? multiply_groups<false, true, kParts>(product)
                    : multiply_groups<false, false, kParts>(product);
  }
}

void multiply(const SplitGemm& product) {
  if (product.parts == 3) return multiply_parts<3>(product);
  product.parts == 2 ? multiply_parts<2>(product) : multiply_parts<1>(product);
}

template <SplitPackFn kOne, SplitPackFn kTwo, SplitPackFn kThree>
bool pack(const SplitSource& source) {
  if (source.parts == 3) return kThree(source);
  return source.parts == 2 ? kTwo(source) : kOne(source);
}

constexpr SplitTarget kAmx = {{pack<pack_rows<1>, pack_rows<2>, pack_rows<3>>,
                               pack<pack_row_steps<1>, pack_row_steps<2>, pack_row_steps<3>>},
                              {pack<pack_steps<1>, pack_steps<2>, pack_steps<3>>,
                               pack<pack_columns<1>, pack_columns<2>, pack_columns<3>>},
                              multiply,
                              begin_amx,
                              end_amx};

}  // namespace

const SplitTarget& amx::split_target() { return kAmx; }

}  // namespace onnxgrad::device

#endif
