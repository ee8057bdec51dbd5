#include <algorithm>
#include <cstring>

#include "base/half.h"
#include "device/cpu/half_gemm_pairs.h"

// AMX: a tile is 16 rows of 64 bytes. TDPBF16PS adds to 16 x 16 sums the products of 16 rows of 16
// pairs with 16 lines of 16 pairs, which is what a packed panel of B is. A block of results is 2 x
// 2 tiles, so that each operand that is loaded is used twice. The same code runs on tiles that are
// written out in C++ (Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2,
// TDPBF16PS), for tests.

#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__)
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#define ONNXGRAD_HAS_AMX 1
#else
#define ONNXGRAD_HAS_AMX 0
#endif

namespace onnxgrad::device {
namespace {

constexpr std::ptrdiff_t kTile = 16;  // rows, and columns of 32 bits
constexpr std::ptrdiff_t kLine = 64;  // bytes of a row

/// The end of a block of sums [rows, columns], which are `kTile * 2` apart.
void finish(const PairPanel& panel, const float* sums, std::int64_t row, std::int64_t rows,
            std::int64_t column, std::int64_t columns) {
  const HalfEnd& end = panel.end;
  for (std::int64_t i = 0; i < rows; ++i) {
    const std::ptrdiff_t start = (row + i) * end.start_row + column;
    const std::ptrdiff_t to = (row + i) * end.c_row + column;
    for (std::int64_t j = 0; j < columns; ++j) {
      float value = sums[i * 2 * kTile + j];
      if (end.scale != 1) value *= end.scale;
      if (end.half_start != nullptr) {
        value += base::to_float(base::Bfloat16{end.half_start[start + j]});
      } else if (end.start != nullptr) {
        value += end.start[start + j];
      }
      if (end.relu && value < 0) value = 0;
      if (end.half != nullptr) {
        end.half[to + j] = base::to_bfloat16(value).bits;
      } else {
        end.c[to + j] = value;
      }
    }
  }
}

/// Blocks of 32 x 32 results; `Tiles` has the instructions.
template <class Tiles>
void run_blocks(const PairPanel& panel) {
  alignas(64) float sums[2 * kTile * 2 * kTile];
  const std::ptrdiff_t b_row = panel.vectors * kLine;
  const auto* b = reinterpret_cast<const std::byte*>(panel.b);
  for (std::int64_t row = 0; row < panel.rows; row += 2 * kTile) {
    const std::int64_t rows = std::min<std::int64_t>(2 * kTile, panel.rows - row);
    for (int v = 0; v < panel.vectors; v += 2) {
      const bool is_wide = v + 1 < panel.vectors;
      Tiles tiles(rows, is_wide);
      for (std::int64_t p = 0; p < panel.pairs; p += kAmxPairs) {
        tiles.add(panel.a + row * panel.a_row + p * 4, panel.a_row, b + p * b_row + v * kLine,
                  b_row);
      }
      tiles.store(sums);
      const std::int64_t column = v * kTile;
      finish(panel, sums, row, rows, column,
             std::min<std::int64_t>(is_wide ? 2 * kTile : kTile, panel.columns - column));
    }
  }
}

/// TDPBF16PS: subnormal operands and results are zero, each step is rounded to nearest.
class EmulatedTiles {
 public:
  EmulatedTiles(std::int64_t rows, bool is_wide)
      : rows_(rows), columns_(is_wide ? 2 * kTile : kTile) {}

  void add(const std::byte* a, std::ptrdiff_t a_row, const std::byte* b, std::ptrdiff_t b_row) {
    for (std::int64_t i = 0; i < rows_; ++i) {
      for (std::int64_t p = 0; p < kTile; ++p) {
        for (std::int64_t j = 0; j < columns_; ++j) {
          const std::byte* x = a + i * a_row + 4 * p;
          const std::byte* y = b + p * b_row + 4 * j;
          float& sum = sums_[i * 2 * kTile + j];
          sum += number(x) * number(y);
          sum += number(x + 2) * number(y + 2);
        }
      }
    }
  }
  void store(float* to) const { std::copy(std::begin(sums_), std::end(sums_), to); }

 private:
  static float number(const std::byte* from) {
    base::Bfloat16 value;
    std::memcpy(&value.bits, from, sizeof(value.bits));
    const bool is_subnormal = (value.bits & 0x7F80U) == 0;
    return is_subnormal ? 0 : base::to_float(value);
  }

  std::int64_t rows_;
  std::int64_t columns_;
  float sums_[2 * kTile * 2 * kTile] = {};
};

}  // namespace

void run_amx_emulated(const PairPanel& panel) { run_blocks<EmulatedTiles>(panel); }

#if ONNXGRAD_HAS_AMX

namespace {

#define ONNXGRAD_AMX_TARGET __attribute__((target("amx-tile,amx-bf16")))

/// Tiles 0 to 3: sums; 4, 5: rows of A; 6, 7: columns of B.
class AmxTiles {
 public:
  ONNXGRAD_AMX_TARGET AmxTiles(std::int64_t rows, bool is_wide)
      : has_lower_(rows > kTile), is_wide_(is_wide) {
    struct alignas(64) {
      std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
      std::uint16_t row_bytes[16] = {};
      std::uint8_t rows[16] = {};
    } config;
    const auto upper = static_cast<std::uint8_t>(std::min(rows, kTile));
    const auto lower = static_cast<std::uint8_t>(std::max<std::int64_t>(rows - kTile, 1));
    const std::uint8_t heights[8] = {upper, upper, lower, lower, upper, lower, 16, 16};
    for (int t = 0; t < 8; ++t) {
      config.row_bytes[t] = kLine;
      config.rows[t] = heights[t];
    }
    _tile_loadconfig(&config);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  ONNXGRAD_AMX_TARGET ~AmxTiles() { _tile_release(); }
  AmxTiles(const AmxTiles&) = delete;
  AmxTiles& operator=(const AmxTiles&) = delete;

  ONNXGRAD_AMX_TARGET void add(const std::byte* a, std::ptrdiff_t a_row, const std::byte* b,
                               std::ptrdiff_t b_row) const {
    _tile_loadd(6, b, b_row);
    _tile_loadd(4, a, a_row);
    _tile_dpbf16ps(0, 4, 6);
    if (is_wide_) {
      _tile_loadd(7, b + kLine, b_row);
      _tile_dpbf16ps(1, 4, 7);
    }
    if (!has_lower_) return;
    _tile_loadd(5, a + kTile * a_row, a_row);
    _tile_dpbf16ps(2, 5, 6);
    if (is_wide_) _tile_dpbf16ps(3, 5, 7);
  }

  ONNXGRAD_AMX_TARGET void store(float* to) const {
    constexpr std::ptrdiff_t kRow = 2 * kLine;
    _tile_stored(0, to, kRow);
    if (is_wide_) _tile_stored(1, to + kTile, kRow);
    if (!has_lower_) return;
    _tile_stored(2, to + 2 * kTile * kTile, kRow);
    if (is_wide_) _tile_stored(3, to + 2 * kTile * kTile + kTile, kRow);
  }

 private:
  bool has_lower_;
  bool is_wide_;
};

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

}  // namespace

bool cpu_has_amx() {
  static const bool has = ask_for_amx();
  return has;
}

void run_amx(const PairPanel& panel) { run_blocks<AmxTiles>(panel); }

#else

bool cpu_has_amx() { return false; }
void run_amx(const PairPanel& panel) { run_blocks<EmulatedTiles>(panel); }

#endif

}  // namespace onnxgrad::device
