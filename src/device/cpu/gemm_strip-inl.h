// Tiles of matrix products whose A is a strip, as high as the tile, and whose B is a packed panel,
// for all instruction sets.
#if defined(ONNXGRAD_DEVICE_CPU_GEMM_STRIP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONNXGRAD_DEVICE_CPU_GEMM_STRIP_INL_H_
#undef ONNXGRAD_DEVICE_CPU_GEMM_STRIP_INL_H_
#else
#define ONNXGRAD_DEVICE_CPU_GEMM_STRIP_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <type_traits>
#include <utility>

#include "device/cpu/gemm_tile.h"
#include "device/cpu/gemm_tile_end-inl.h"
#include "device/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onnxgrad::device::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// A tile whose steps read, at constant places, a strip of A and a panel of B, so that they take no
/// more instructions than their loads and multiply-adds. A hyper-thread, whose core another one
/// uses too, is 15 % faster with it. What will be needed is fetched in as many parts as there are
/// rows: all at once, the loads of B would wait for it.
///
/// kA and kPacksB: A, or B, is in place, and becomes a strip, or a panel, while the tile
/// multiplies: the stores run beside the multiply-adds.
template <class D, int kRows, int kVectors, GemmStripA kA, bool kPacksB>
void strip_tile(const GemmTile<hn::TFromD<D>>& tile) {
  using T = hn::TFromD<D>;
  using V = hn::Vec<D>;
  const D d;
  constexpr std::ptrdiff_t kLanes = hn::MaxLanes(D());
  constexpr int kGroups = kA == GemmStripA::kRows ? (kRows + 3) / 4 : 1;  // four rows a pointer
  constexpr std::ptrdiff_t kAhead = 12;  // steps in place: a line from the L2 cache needs two
  std::ptrdiff_t a_row = tile.a_row;
  std::ptrdiff_t a_row3 = 3 * a_row;
  if (kA == GemmStripA::kRows) {
    keep_in_register(a_row);
    keep_in_register(a_row3);
  }
  const std::ptrdiff_t a_step = tile.a_step;
  const std::ptrdiff_t b_step = tile.b_step;
  constexpr int kRowVectors = (kRows + kLanes - 1) / kLanes;  // of A's rows, of a step in place
  const auto last_rows = hn::FirstN(d, kRows - (kRowVectors - 1) * kLanes);
  T* a_to = kA == GemmStripA::kStrip ? nullptr : tile.extras->packed_a;
  std::int64_t fetched = 0;
  const std::int64_t ahead = ahead_of_chunk(tile, kRows);
  const std::int64_t chunk = tile.steps / (4 * kRows) * 4;
  const T* strip = tile.a;
  for (std::int64_t block = 0; block < tile.blocks; ++block) {
    V sum[kRows][kVectors];
    unrolled<kRows>([&](auto i) ONNXGRAD_INLINE_LAMBDA {
      unrolled<kVectors>([&](auto v) ONNXGRAD_INLINE_LAMBDA { sum[i][v] = hn::Zero(d); });
    });
    const T* b = tile.b;
    T* b_to = kPacksB ? tile.extras->packed_b : nullptr;
    const T* a[kGroups];
    unrolled<kGroups>([&](auto g) ONNXGRAD_INLINE_LAMBDA {
      a[g] = kA == GemmStripA::kStrip
                 ? strip
                 : tile.a + block * tile.a_block + static_cast<std::ptrdiff_t>(4 * g) * a_row;
      keep_in_register(a[g]);
    });
    const auto add = [&](auto count) ONNXGRAD_INLINE_LAMBDA {
      constexpr int kSteps = decltype(count)::value;
      unrolled<kSteps>([&](auto s) ONNXGRAD_INLINE_LAMBDA {
        V row[kVectors];
        unrolled<kVectors>([&](auto v) ONNXGRAD_INLINE_LAMBDA {
          if constexpr (kPacksB) {
            row[v] = hn::LoadU(d, b + v * kLanes);
            hn::StoreU(row[v], d, b_to + (s * kVectors + v) * kLanes);
            __builtin_prefetch(b + kAhead * b_step + v * kLanes);
          } else {
            row[v] = hn::LoadU(d, b + (s * kVectors + v) * kLanes);
          }
        });
        if constexpr (kA == GemmStripA::kSteps) {
          unrolled<kRowVectors>([&](auto v) ONNXGRAD_INLINE_LAMBDA {
            const T* from = a[0] + v * kLanes;
            T* to = a_to + s * kRows + v * kLanes;
            if constexpr (v + 1 < kRowVectors) {
              hn::StoreU(hn::LoadU(d, from), d, to);
            } else {
              hn::BlendedStore(hn::MaskedLoad(last_rows, d, from), last_rows, d, to);
            }
          });
          __builtin_prefetch(a[0] + kAhead * a_step);
        }
        unrolled<kRows>([&](auto i) ONNXGRAD_INLINE_LAMBDA {
          const T* from = kA == GemmStripA::kStrip   ? a[0] + s * kRows + i
                          : kA == GemmStripA::kSteps ? a[0] + i
                          : i % 4 == 3               ? a[i / 4 % kGroups] + a_row3 + s
                                                     : a[i / 4 % kGroups] + i % 4 * a_row + s;
          const V factor = hn::Set(d, *from);
          needed_until_here(factor);
          if constexpr (kA == GemmStripA::kRows) a_to[s * kRows + i] = hn::GetLane(factor);
          unrolled<kVectors>([&](auto v) ONNXGRAD_INLINE_LAMBDA {
            sum[i][v] = hn::MulAdd(factor, row[v], sum[i][v]);
          });
          needed_until_here(factor);
        });
        unrolled<kVectors>([&](auto v) ONNXGRAD_INLINE_LAMBDA { needed_until_here(row[v]); });
        if constexpr (kA == GemmStripA::kSteps) a[0] += a_step;
        if constexpr (kPacksB) b += b_step;
        keep_in_register(a[0]);  // loads stay in their step
        keep_in_register(b);
      });
      unrolled<kGroups>([&](auto g) ONNXGRAD_INLINE_LAMBDA {
        if constexpr (kA == GemmStripA::kStrip) a[g] += kSteps * kRows;
        if constexpr (kA == GemmStripA::kRows) a[g] += kSteps;
        keep_in_register(a[g]);
      });
      if constexpr (kA != GemmStripA::kStrip) {
        a_to += kSteps * kRows;
        keep_in_register(a_to);
      }
      if constexpr (kPacksB) {
        b_to += kSteps * kVectors * kLanes;
        keep_in_register(b_to);
      } else {
        b += kSteps * kVectors * kLanes;
        keep_in_register(b);
      }
    };
    for (std::int64_t row = 0, left = tile.steps; left > 0; ++row) {
      std::int64_t k = left;
      if (tile.extras != nullptr) {
        prefetch_row<kRows, kVectors, kLanes>(tile, block, row);
        prefetch_ahead(*tile.extras, fetched, ahead);
        fetched += ahead;
        if (row + 1 < kRows) k = chunk;
      }
      left -= k;
      for (; k >= 4; k -= 4) add(std::integral_constant<int, 4>());
      for (; k > 0; --k) add(std::integral_constant<int, 1>());
    }
    strip = a[0];
    const TileEnd<D, kRows, kVectors> end{hn::FirstN(d, static_cast<std::size_t>(tile.tail)),
                                          tile.tail};
    end.finish(sum, tile, block);
  }
}

}  // namespace onnxgrad::device::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
