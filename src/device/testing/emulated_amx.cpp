#include "device/testing/emulated_amx.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "base/f16.h"

namespace onnxgrad::device::emulated_amx_detail {
namespace {

/// Returns a bfloat16 element as float; a subnormal one as zero.
float number(const std::byte* from) {
  base::Bfloat16 value;
  std::memcpy(&value.bits, from, sizeof(value.bits));
  const bool is_subnormal = (value.bits & 0x7F80U) == 0;
  return is_subnormal ? 0 : base::to_float(value);
}

void finish_one(const F16End& end, float value, std::int64_t row, std::int64_t column) {
  const std::ptrdiff_t start = row * end.start_row + column;
  const std::ptrdiff_t to = row * end.c_row + column;
  value *= end.scale;
  if (end.f16_start != nullptr) value += base::to_float(base::Bfloat16{end.f16_start[start]});
  if (end.start != nullptr) value += end.start[start];
  if (end.relu && value < 0) value = 0;
  if (end.f16_c != nullptr) {
    end.f16_c[to] = base::to_bfloat16(value).bits;
  } else {
    end.c[to] = value;
  }
}

void run_b_panel(const VnniPanel& panel) {
  const auto* b = reinterpret_cast<const std::byte*>(panel.b);
  const std::ptrdiff_t b_row = panel.vectors * kVnniLanes * 4;
  // Sums of full vectors begin with a float32 addend if that is all of the epilogue.
  const F16End& end = panel.end;
  const bool is_plain = end.start != nullptr && end.f16_c == nullptr && end.scale == 1 && !end.relu;
  for (std::int64_t i = 0; i < panel.rows; ++i) {
    for (std::int64_t j = 0; j < panel.columns; ++j) {
      const bool is_direct = is_plain && j < panel.columns / kVnniLanes * kVnniLanes;
      float sum = is_direct ? end.start[i * end.start_row + j] : 0;
      for (std::int64_t p = 0; p < panel.pairs; ++p) {
        const std::byte* x = panel.a + i * panel.a_row + 4 * p;
        const std::byte* y = b + p * b_row + 4 * j;
        sum += number(x) * number(y);
        sum += number(x + 2) * number(y + 2);
      }
      if (is_direct) {
        end.c[i * end.c_row + j] = sum;
      } else {
        finish_one(end, sum, i, j);
      }
    }
  }
}

void run_tap_gemms(const TapGemms& products) {
  for (std::int64_t i = 0; i < products.rows; ++i) {
    for (std::int64_t j = 0; j < products.columns; ++j) {
      float& result = products.sums[i * products.sums_row + j];
      float sum = products.adds ? result : 0;
      for (std::int64_t s = 0; s < products.steps; ++s) {
        const std::byte* a = products.a + products.a_offsets[s] + i * products.a_row;
        const std::byte* b = products.b + products.b_offsets[s] + 4 * j;
        for (std::int64_t p = 0; p < kTapVnni; ++p, a += 4, b += products.b_row) {
          sum += number(a) * number(b);
          sum += number(a + 2) * number(b + 2);
        }
      }
      result = sum;
    }
  }
}

std::uint32_t bits_of(float value) { return std::bit_cast<std::uint32_t>(value); }

constexpr std::uint32_t kHalfOfLast =
    0x8000;  // half a unit of bfloat16's last place, in float32's bits
constexpr std::uint32_t kPartBits = 0xFFFF0000;

float rounded(float value) {
  return std::bit_cast<float>((bits_of(value) + kHalfOfLast) & kPartBits);
}

/// Writes the parts of the VNNI pair (x, y) to its place in each part's tile. Returns the sum of
/// the smallest parts: NaN if the parts do not add up.
float split_pair(float x, float y, int parts, std::byte* to) {
  float last = 0;
  float rest[2] = {x, y};
  for (int part = 0; part < parts; ++part, to += kSplitTile) {
    for (std::size_t i = 0; i < 2; ++i) {
      const float now = part + 1 < parts ? rounded(rest[i]) : rest[i];
      const auto half = static_cast<std::uint16_t>(bits_of(now) >> 16);
      std::memcpy(to + 2 * i, &half, sizeof(half));
      if (part + 1 < parts) {
        rest[i] -= now;
      } else if (parts > 1) {
        last += now;
      }
    }
  }
  return last;
}

/// Packs groups. `at(i, k)`: element of row or column i at step k; `place(i, p)`: byte offset of
/// pair p within a tile.
template <class At, class Place>
bool pack(const SplitSource& source, const At& at, const Place& place) {
  float all = 0;
  for (std::int64_t i = 0; i < round_up(source.count, kSplitGroup); ++i) {
    for (std::int64_t k = 0; k < source.steps; k += kSplitSteps) {
      std::byte* to =
          source.to + i / kSplitGroup * source.group + k / kSplitSteps * split_slice(source.parts);
      for (std::int64_t p = 0; p < kSplitGroup; ++p) {
        const auto element = [&](std::int64_t step) {
          return i < source.count && step < source.steps ? at(i, step) : 0.0F;
        };
        const float x = element(k + p);
        const float y = element(k + kSplitGroup + p);
        all += split_pair(x, y, source.parts, to + place(i % kSplitGroup, p));
      }
    }
  }
  return !std::isnan(all);
}

/// Packs A (kIsA) or B. kIsTransposed: whether it is transposed in memory.
template <bool kIsA, bool kIsTransposed>
bool pack(const SplitSource& source) {
  // Steps of A's rows, and columns of B's steps, are adjacent, or else the others.
  constexpr bool kStepsAreAdjacent = kIsA != kIsTransposed;
  const auto at = [&](std::int64_t i, std::int64_t k) {
    return kStepsAreAdjacent ? source.from[i * source.row + k] : source.from[k * source.row + i];
  };
  return pack(source, at, [](std::int64_t i, std::int64_t p) {
    return kIsA ? i * 64 + p * 4 : p * 64 + i * 4;
  });
}

// Tile products as (part of A, part of B), each of which shares an operand with the one before.
constexpr int kThreeParts[split_gemms(3)][2] = {{0, 2}, {0, 1}, {1, 1}, {1, 0}, {2, 0}, {0, 0}};
constexpr int kTwoParts[split_gemms(2)][2] = {{0, 1}, {1, 1}, {1, 0}, {0, 0}};
constexpr int kOnePart[split_gemms(1)][2] = {{0, 0}};

/// Returns the contribution of a tile product to one sum.
float tile_gemm(const std::byte* a, const std::byte* b) {
  float even = 0;
  float odd = 0;
  for (std::int64_t p = 0; p < kSplitGroup; ++p) {
    even = std::fma(number(a + 4 * p), number(b + 64 * p), even);
    odd = std::fma(number(a + 4 * p + 2), number(b + 64 * p + 2), odd);
  }
  return even + odd;
}

void multiply(const SplitGemm& product) {
  const std::int64_t rows = (product.has_lower ? 2 : 1) * kSplitGroup;
  const std::int64_t columns = (product.is_wide ? 2 : 1) * kSplitGroup;
  const std::int64_t slice = split_slice(product.parts);
  const auto* order = product.parts == 3 ? kThreeParts : product.parts == 2 ? kTwoParts : kOnePart;
  for (std::int64_t i = 0; i < rows; ++i) {
    const std::byte* a = product.a + i / kSplitGroup * product.a_group + i % kSplitGroup * 64;
    for (std::int64_t j = 0; j < columns; ++j) {
      const std::byte* b = product.b + j / kSplitGroup * product.b_group + j % kSplitGroup * 4;
      float& c = product.c[i * product.c_row + j];
      float sum = 0;
      for (std::int64_t s = 0; s < product.slices; ++s) {
        for (std::int64_t q = 0; q < split_gemms(product.parts); ++q) {
          const auto& [x, y] = order[q];
          sum += tile_gemm(a + s * slice + x * kSplitTile, b + s * slice + y * kSplitTile);
        }
      }
      c = product.adds ? c + sum : sum;
    }
  }
}

void do_nothing() {}

}  // namespace
}  // namespace onnxgrad::device::emulated_amx_detail

namespace onnxgrad::device {

const AmxTarget& emulated_amx() {
  using namespace emulated_amx_detail;  // NOLINT(google-build-using-namespace): this file's own
  static constexpr AmxTarget kTarget{.run_b_panel = run_b_panel,
                                     .tap_gemms = run_tap_gemms,
                                     .split = {{pack<true, false>, pack<true, true>},
                                               {pack<false, false>, pack<false, true>},
                                               multiply,
                                               do_nothing,
                                               do_nothing}};
  return kTarget;
}

}  // namespace onnxgrad::device
