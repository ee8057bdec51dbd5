// Tiles of convolutions, for all instruction sets; see gemm_tile-inl.h.
#if defined(ONNXGRAD_DEVICE_CPU_OFFSET_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONNXGRAD_DEVICE_CPU_OFFSET_TILE_INL_H_
#undef ONNXGRAD_DEVICE_CPU_OFFSET_TILE_INL_H_
#else
#define ONNXGRAD_DEVICE_CPU_OFFSET_TILE_INL_H_
#endif

#include <hwy/highway.h>

#include <utility>

#include "device/cpu/offset_tile.h"
#include "device/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onnxgrad::device::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Sizes of tiles: sums, vectors of b and one element of a fit into the registers.
#if HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM_A64
constexpr int kMaxVectors = 4;
constexpr int kMaxRows[kGemmMaxVectors] = {16, 12, 8, 6};
#else
constexpr int kMaxVectors = 3;
constexpr int kMaxRows[kGemmMaxVectors] = {8, 6, 4, 0};
#endif

template <class T, int kRows, int kVectors>
void offset_tile(const OffsetTile<T>& tile) {
  const hn::ScalableTag<T> d;
  using V = hn::Vec<decltype(d)>;
  constexpr std::ptrdiff_t kLanes = hn::MaxLanes(d);
  constexpr int kGroups = (kRows + 3) / 4;  // four rows share a pointer
  std::ptrdiff_t a_row = tile.a_row;
  std::ptrdiff_t a_row3 = 3 * a_row;
  keep_in_register(a_row);
  keep_in_register(a_row3);
  const std::ptrdiff_t a_group = 4 * a_row;
  const T* block_a = tile.a;
  const T* block_start = tile.start;
  T* block_c = tile.c;
  for (std::int64_t block = tile.blocks; block > 0; --block) {
    V sum[kRows][kVectors];
    const T* start = block_start;
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[i][v] = hn::LoadU(d, start + v * kLanes);
      start += tile.start_row;
      keep_in_register(start);
    }
    const T* b = tile.b;
    const std::int32_t* offset = tile.offsets;
    const std::int32_t* const end = offset + tile.steps;
    for (; offset != end; ++offset) {
      const T* a[kGroups];
      a[0] = block_a + *offset;
      keep_in_register(a[0]);
#pragma GCC unroll 4
      for (int g = 1; g < kGroups; ++g) {
        a[g] = a[g - 1] + a_group;
        keep_in_register(a[g]);
      }
      V row[kVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) row[v] = hn::LoadU(d, b + v * kLanes);
      b += kVectors * kLanes;
#pragma GCC unroll 16
      for (int i = 0; i < kRows; ++i) {
        const V factor = hn::Set(d, a[i / 4][i % 4 == 3 ? a_row3 : i % 4 * a_row]);
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) sum[i][v] = hn::MulAdd(factor, row[v], sum[i][v]);
      }
    }
    T* c = block_c;
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) hn::StoreU(sum[i][v], d, c + v * kLanes);
      c += tile.c_row;
      keep_in_register(c);
    }
    block_a += tile.a_block;
    block_start += tile.start_block;
    block_c += tile.c_block;
  }
}

/// Applies the epilogue to a vector of sums, the first `count` of which are needed.
template <class T, class D = hn::ScalableTag<T>, class V = hn::Vec<D>, class M>
HWY_INLINE V finish_sum(const PlaneTile<T>& tile, V value, M mask, const T* c, std::int64_t count) {
  const D d;
  if (tile.residual != nullptr) {
    const T* more = tile.residual + (c - tile.c);
    value = hn::Add(value, count == static_cast<std::int64_t>(hn::MaxLanes(d))
                               ? hn::LoadU(d, more)
                               : load_first(d, mask, more, count));
  }
  value = max_or_nan(hn::Set(d, tile.low), value);
  return hn::IfThenElse(hn::Gt(value, hn::Set(d, tile.high)), hn::Set(d, tile.high), value);
}

template <class T, int kRows, int kVectors>
void plane_tile(const PlaneTile<T>& tile) {
  const hn::ScalableTag<T> d;
  using V = hn::Vec<decltype(d)>;
  constexpr std::ptrdiff_t kLanes = hn::MaxLanes(d);
  const auto mask = hn::FirstN(d, static_cast<std::size_t>(tile.tail));
  const bool whole = tile.tail == kLanes;
  const T* block_b = tile.b;
  T* block_c = tile.c;
  for (std::int64_t block = tile.blocks; block > 0; --block) {
    V sum[kRows][kVectors];
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[i][v] = hn::Set(d, tile.start[i]);
    }
    const T* a = tile.a;
    const std::int32_t* offset = tile.offsets;
    const std::int32_t* const end = offset + tile.steps;
    for (; offset != end; ++offset) {
      const T* b = block_b + *offset;
      V row[kVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) row[v] = hn::LoadU(d, b + v * kLanes);
#pragma GCC unroll 16
      for (int i = 0; i < kRows; ++i) {
        const V factor = hn::Set(d, a[i]);
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) sum[i][v] = hn::MulAdd(factor, row[v], sum[i][v]);
      }
      a += kRows;
    }
    T* c = block_c;
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        const bool is_whole = v + 1 < kVectors || kLanes == 1 || whole;
        T* to = c + v * kLanes;
        if (tile.finishes) {
          sum[i][v] = finish_sum(tile, sum[i][v], mask, to, is_whole ? kLanes : tile.tail);
        }
        if (is_whole) {
          hn::StoreU(sum[i][v], d, to);
        } else {
          store_first(sum[i][v], d, mask, to, tile.tail);
        }
      }
      c += tile.c_row;
      keep_in_register(c);
    }
    block_b += tile.b_block;
    block_c += tile.c_block;
  }
}

template <class T, int kVectors, int... kRow>
void fill_tiles(OffsetTarget<T>& target, std::integer_sequence<int, kRow...> /*rows*/) {
  target.max_rows[kVectors - 1] = sizeof...(kRow);
  ((target.offset_tile[kVectors - 1][kRow] = offset_tile<T, kRow + 1, kVectors>), ...);
  ((target.plane_tile[kVectors - 1][kRow] = plane_tile<T, kRow + 1, kVectors>), ...);
}

template <class T>
OffsetTarget<T> make_target() {
  OffsetTarget<T> target;
  target.lanes = static_cast<int>(hn::Lanes(hn::ScalableTag<T>()));
  target.max_vectors = kMaxVectors;
  fill_tiles<T, 1>(target, std::make_integer_sequence<int, kMaxRows[0]>());
  fill_tiles<T, 2>(target, std::make_integer_sequence<int, kMaxRows[1]>());
  fill_tiles<T, 3>(target, std::make_integer_sequence<int, kMaxRows[2]>());
  if constexpr (kMaxVectors > 3) {
    fill_tiles<T, 4>(target, std::make_integer_sequence<int, kMaxRows[3]>());
  }
  return target;
}

}  // namespace onnxgrad::device::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // ONNXGRAD_DEVICE_CPU_OFFSET_TILE_INL_H_
