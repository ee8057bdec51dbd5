#include "device/cpu/amx-inl.h"
#include "device/cpu/amx_target.h"
#include "device/cpu/f16_gemm_end-inl.h"
#include "device/cpu/f16_gemm_vnni.h"
#include "device/cpu/gemm_tile.h"
#include "device/cpu/tap_gemms.h"

// bfloat16 GEMM by AMX, whose tiles are 16 rows of 64 bytes. TDPBF16PS adds to 16 x 16 sums the
// product of a tile of A, 16 rows of 16 VNNI pairs, and a tile of a packed B panel, [pair, column].
// A block of results is 2 x 2 tiles, so that each operand that is loaded is used twice (Intel 64
// and IA-32 Architectures Software Developer's Manual, volume 2, TDPBF16PS).

#if ONNXGRAD_HAS_AMX
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

namespace onnxgrad::device {
namespace {

using amx::kLine;
using amx::kTile;
using amx::store_sums;

/// Configuration of the AMX tiles 0 to 3: 2 x 2 tiles of sums; 4, 5: rows of A; 6, 7: columns of B.
struct alignas(64) TileConfig {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t heights[16] = {};

  explicit TileConfig(std::int64_t rows) {
    const auto upper = static_cast<std::uint8_t>(std::min(rows, kTile));
    const auto lower = static_cast<std::uint8_t>(std::clamp<std::int64_t>(rows - kTile, 1, kTile));
    const std::uint8_t of_tiles[8] = {upper, upper, lower, lower, upper, lower, kTile, kTile};
    std::fill_n(row_bytes, 8, static_cast<std::uint16_t>(kLine));
    std::copy_n(of_tiles, 8, heights);
  }
};

ONNXGRAD_AMX_TARGET void load_config(std::int64_t rows) {
  const TileConfig config(rows);
  // GCC 12's _tile_loadconfig names the first 8 bytes as its operand: the rest is not stored.
  __asm__ volatile("ldtilecfg %0" : : "m"(config));
}

/// Arguments of a block of up to 32 x 32 sums.
struct Block {
  const std::byte* a = nullptr;
  std::ptrdiff_t a_row = 0;  // bytes, as all strides of Block
  const std::byte* b = nullptr;
  std::ptrdiff_t b_row = 0;
  std::int64_t pairs = 0;
  const float* start = nullptr;  ///< initial values of the sums; nullptr: zero
  std::ptrdiff_t start_row = 0;
  float* sums = nullptr;
  std::ptrdiff_t sums_row = 0;
};

/// Initialises the tiles of sums by `start`, or by zero. `row`: row stride in bytes.
template <bool kHasLower, bool kIsWide>
ONNXGRAD_AMX_INLINE void begin_sums(const float* start, std::ptrdiff_t row) {
  if (start == nullptr) return amx::zero_sums<kHasLower, kIsWide>();
  const auto* upper = reinterpret_cast<const std::byte*>(start);
  const std::byte* lower = upper + kTile * row;
  _tile_loadd(0, upper, row);
  if (kIsWide) _tile_loadd(1, upper + kLine, row);
  if (kHasLower) _tile_loadd(2, lower, row);
  if (kHasLower && kIsWide) _tile_loadd(3, lower + kLine, row);
}

/// Adds the products of 16 VNNI pairs of k.
template <bool kHasLower, bool kIsWide>
ONNXGRAD_AMX_INLINE void add_vnni(const std::byte* a, std::ptrdiff_t a_row, const std::byte* b,
                                  std::ptrdiff_t b_row) {
  _tile_loadd(6, b, b_row);
  _tile_loadd(4, a, a_row);
  _tile_dpbf16ps(0, 4, 6);
  if (kHasLower) {
    _tile_loadd(5, a + kTile * a_row, a_row);
    _tile_dpbf16ps(2, 5, 6);
  }
  if (kIsWide) {
    _tile_loadd(7, b + kLine, b_row);
    _tile_dpbf16ps(1, 4, 7);
    if (kHasLower) _tile_dpbf16ps(3, 5, 7);
  }
}

template <bool kHasLower, bool kIsWide>
ONNXGRAD_AMX_TARGET void multiply(const Block& block) {
  begin_sums<kHasLower, kIsWide>(block.start, block.start_row);
  const std::byte* a = block.a;
  const std::byte* b = block.b;
  for (std::int64_t p = 0; p < block.pairs; p += kAmxVnni) {
    add_vnni<kHasLower, kIsWide>(a, block.a_row, b, block.b_row);
    a += kLine;
    b += kAmxVnni * block.b_row;
  }
  store_sums<kHasLower, kIsWide>(block.sums, block.sums_row);
}

/// Addend of a block: none, float32 or bfloat16.
enum class Start : std::uint8_t { kNone, kFloat, kF16 };

/// Applies the epilogue to sums in rows `2 * kTile` apart and stores bfloat16: two vectors per row,
/// the columns of `mask`.
template <Start kStart>
ONNXGRAD_AMX_TARGET void finish_f16(const F16End& given, const float* sums, std::int64_t row,
                                    std::int64_t rows, std::int64_t column, __mmask32 mask) {
  const F16End end = given;  // a copy: no store changes it
  const auto low_mask = static_cast<__mmask16>(mask);
  const auto high_mask = static_cast<__mmask16>(mask >> 16);
  const __m512 scale = _mm512_set1_ps(end.scale);
  const __m512 least = _mm512_set1_ps(end.relu ? 0.0F : -__builtin_inff());
  std::uint16_t* to = end.f16_c + row * end.c_row + column;
  std::ptrdiff_t start = row * end.start_row + column;
  for (std::int64_t i = 0; i < rows; ++i) {
    __m512 low = _mm512_load_ps(sums + i * 2 * kTile);
    __m512 high = _mm512_load_ps(sums + i * 2 * kTile + kTile);
    if (kStart == Start::kNone) {
      low = _mm512_mul_ps(low, scale);
      high = _mm512_mul_ps(high, scale);
    } else if (kStart == Start::kFloat) {
      low = _mm512_fmadd_ps(low, scale, _mm512_maskz_loadu_ps(low_mask, end.start + start));
      high =
          _mm512_fmadd_ps(high, scale, _mm512_maskz_loadu_ps(high_mask, end.start + start + kTile));
    } else {
      const __m512i bits = _mm512_maskz_loadu_epi16(mask, end.f16_start + start);
      const auto widened = [](__m256i halves) ONNXGRAD_AMX_TARGET {
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
      };
      low = _mm512_fmadd_ps(low, scale, widened(_mm512_castsi512_si256(bits)));
      high = _mm512_fmadd_ps(high, scale, widened(_mm512_extracti64x4_epi64(bits, 1)));
    }
    low = _mm512_max_ps(least, low);  // NaN stays: second operand
    high = _mm512_max_ps(least, high);
    const auto bits = _mm512_cvtne2ps_pbh(high, low);
    _mm512_mask_storeu_epi16(to, mask, reinterpret_cast<const __m512i&>(bits));
    to += end.c_row;
    start += end.start_row;
  }
}

/// Applies the epilogue to sums in rows `2 * kTile` apart.
ONNXGRAD_AMX_TARGET void finish_block(const F16End& end, const float* sums, std::int64_t row,
                                      std::int64_t rows, std::int64_t column,
                                      std::int64_t columns) {
  if (end.f16_c != nullptr) {
    const auto mask = static_cast<__mmask32>((std::uint64_t{1} << columns) - 1);
    const auto finish = end.f16_start != nullptr ? finish_f16<Start::kF16>
                        : end.start != nullptr   ? finish_f16<Start::kFloat>
                                                 : finish_f16<Start::kNone>;
    return finish(end, sums, row, rows, column, mask);
  }
  const __mmask16 last = vnni::last_mask(columns);
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; j += kTile) {
      vnni::finish(end, _mm512_load_ps(sums + i * 2 * kTile + j), row + i, column + j,
                   j + kTile < columns ? static_cast<__mmask16>(0xFFFF) : last);
    }
  }
}

template <bool kHasLower, bool kIsWide>
ONNXGRAD_AMX_TARGET void multiply_taps(const TapGemms& products, const std::byte* right,
                                       float* sums) {
  const std::ptrdiff_t row = products.sums_row * 4;
  begin_sums<kHasLower, kIsWide>(products.adds ? sums : nullptr, row);
  for (std::int64_t s = 0; s < products.steps; ++s) {
    add_vnni<kHasLower, kIsWide>(products.a + products.a_offsets[s], products.a_row,
                                 right + products.b_offsets[s], products.b_row);
  }
  store_sums<kHasLower, kIsWide>(sums, row);
}

ONNXGRAD_AMX_TARGET void run_tap_gemms(const TapGemms& products) {
  load_config(products.rows);
  const bool has_lower = products.rows > kTile;
  for (std::int64_t j = 0; j < products.columns; j += 2 * kTile) {
    const std::byte* b = products.b + 4 * j;
    float* sums = products.sums + j;
    const bool is_wide = products.columns - j > kTile;
    if (has_lower) {
      is_wide ? multiply_taps<true, true>(products, b, sums)
              : multiply_taps<true, false>(products, b, sums);
    } else {
      is_wide ? multiply_taps<false, true>(products, b, sums)
              : multiply_taps<false, false>(products, b, sums);
    }
  }
  _tile_release();
}

bool ask_for_amx() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  constexpr unsigned kBf16AndTile = 1U << 22 | 1U << 24;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0 || (ecx & bit_OSXSAVE) == 0) return false;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  if ((edx & kBf16AndTile) != kBf16AndTile) return false;
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;               // XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

ONNXGRAD_AMX_TARGET void run_b_panel(const VnniPanel& b_panel) {
  alignas(64) float sums[2 * kTile * 2 * kTile];
  const F16End& end = b_panel.end;
  // Sums of full vectors with only a float32 addend begin with it and are stored as tiles.
  const bool is_plain =
      end.f16_c == nullptr && end.f16_start == nullptr && end.scale == 1 && !end.relu;
  Block block{.a_row = b_panel.a_row, .b_row = b_panel.vectors * kLine, .pairs = b_panel.pairs};
  std::int64_t configured = 0;
  for (std::int64_t row = 0; row < b_panel.rows; row += 2 * kTile) {
    const std::int64_t rows = std::min<std::int64_t>(2 * kTile, b_panel.rows - row);
    if (rows != configured) load_config(rows);
    configured = rows;
    block.a = b_panel.a + row * b_panel.a_row;
    std::int64_t columns = 0;
    for (std::int64_t column = 0; column < b_panel.columns; column += columns) {
      columns = std::min<std::int64_t>(2 * kTile, b_panel.columns - column);
      // Full vectors are always direct: no bit depends on where panels begin.
      if (is_plain && columns > kTile) columns = columns / kTile * kTile;
      const bool is_direct = is_plain && columns % kTile == 0;
      block.b = reinterpret_cast<const std::byte*>(b_panel.b) + column * 4;
      block.start =
          is_direct && end.start != nullptr ? end.start + row * end.start_row + column : nullptr;
      block.start_row = end.start_row * 4;
      block.sums = is_direct ? end.c + row * end.c_row + column : sums;
      block.sums_row = is_direct ? end.c_row * 4 : 2 * kLine;
      const bool is_wide = columns > kTile;
      if (rows > kTile) {
        is_wide ? multiply<true, true>(block) : multiply<true, false>(block);
      } else {
        is_wide ? multiply<false, true>(block) : multiply<false, false>(block);
      }
      if (!is_direct) finish_block(end, sums, row, rows, column, columns);
    }
  }
  _tile_release();  // threads with tiles in use are slower to switch
}

}  // namespace

const AmxTarget* amx_target() {
  static const bool has_amx =
      cpu_has_bf16_dot() && gemm_target<float>(best_isa()).lanes == kVnniLanes && ask_for_amx();
  static const AmxTarget target{run_b_panel, run_tap_gemms, amx::split_target()};
  return has_amx ? &target : nullptr;
}

}  // namespace onnxgrad::device

#else

namespace onnxgrad::device {

const AmxTarget* amx_target() { return nullptr; }

}  // namespace onnxgrad::device

#endif
