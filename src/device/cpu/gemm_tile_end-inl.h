// Epilogue and prefetches of GEMM tiles, for all instruction sets.
#if defined(ONNXGRAD_DEVICE_CPU_GEMM_TILE_END_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONNXGRAD_DEVICE_CPU_GEMM_TILE_END_INL_H_
#undef ONNXGRAD_DEVICE_CPU_GEMM_TILE_END_INL_H_
#else
#define ONNXGRAD_DEVICE_CPU_GEMM_TILE_END_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>

#include "device/cpu/gemm_tile.h"
#include "device/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onnxgrad::device::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Epilogue of a tile, which writes elements of C. D is Highway's tag of a vector type. The last
/// vector of a row is masked to `tail` columns.
template <class D, int kRows, int kVectors>
struct TileEnd {
  using T = hn::TFromD<D>;
  using V = hn::Vec<D>;
  static constexpr std::ptrdiff_t kLanes = hn::MaxLanes(D());

  hn::Mask<D> mask;
  std::int64_t tail;

  V load(const T* from, int v) const {
    const D d;
    if (v + 1 < kVectors || kLanes == 1) return hn::LoadU(d, from);
    return load_first(d, mask, from, tail);
  }

  /// Adds `start` to all sums before any is written: a load right after a masked store to the same
  /// cache line waits for it. Without a scale it only adds: some processors run
  /// additions and the multiply-adds of the next tile on different ports.
  template <bool kScales>
  void add(V (&sum)[kRows][kVectors], const T* start, std::ptrdiff_t start_row, V scale) const {
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        const V term = load(start + v * kLanes, v);
        sum[i][v] = kScales ? hn::MulAdd(scale, sum[i][v], term) : hn::Add(sum[i][v], term);
      }
      start += start_row;
      keep_in_register(start);
    }
  }

  /// Applies the epilogue `tile.finish` to the sums of the block at row `row`, and stores them.
  HWY_INLINE void finish(V (&sum)[kRows][kVectors], const GemmTile<T>& tile,
                         std::ptrdiff_t row) const {
    const D d;
    const GemmTile<T>* now = &tile;
    keep_in_register(now);
    if (now->finish != GemmFinish::kStore) {
      const T* start = now->start + row * now->start_row;
      const V scale = hn::Set(d, now->scale);
      if (now->scale != T(1)) {
        add<true>(sum, start, now->start_row, scale);
      } else {
        add<false>(sum, start, now->start_row, scale);
      }
      if (const GemmExtras<T>* extras = now->extras; extras != nullptr) {
        for (int i = 0; i < extras->more_count; ++i) {
          const std::ptrdiff_t more_row = extras->more_row[i];
          const T* more = extras->more[i] + (now->row + row) * more_row + now->column;
          add<false>(sum, more, more_row, scale);
        }
      }
      if (now->finish == GemmFinish::kRelu) relu(sum);
    }
    if (const GemmExtras<T>* extras = now->extras; extras != nullptr) {
      if (extras->scales != nullptr) {
        const std::ptrdiff_t scales_row = extras->scales_row;
        const T* scales = extras->scales + (now->row + row) * scales_row + now->column;
        scale(sum, scales, scales_row);
      }
    }
    store(sum, now->c + row * now->c_row, now->c_row);
  }

  void scale(V (&sum)[kRows][kVectors], const T* scales, std::ptrdiff_t row) const {
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        sum[i][v] = hn::Mul(sum[i][v], load(scales + v * kLanes, v));
      }
      scales += row;
      keep_in_register(scales);
    }
  }

  void relu(V (&sum)[kRows][kVectors]) const {
    const V zero = hn::Zero(D());
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[i][v] = max_or_nan(zero, sum[i][v]);
    }
  }

  void store(const V (&sum)[kRows][kVectors], T* c, std::ptrdiff_t c_row) const {
    const D d;
    const bool whole = tail == kLanes;
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        if (v + 1 < kVectors || kLanes == 1 || whole) {
          hn::StoreU(sum[i][v], d, c + v * kLanes);
        } else {
          store_first(sum[i][v], d, mask, c + v * kLanes, tail);
        }
      }
      c += c_row;
      keep_in_register(c);
    }
  }
};

template <class D, class V, int kRows, int kVectors>
HWY_INLINE void set_zero(D d, V (&sum)[kRows][kVectors]) {
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sum[i][v] = hn::Zero(d);
  }
}

/// Prefetches operands that are packed later (GemmExtras::prefetch), equally many cache lines with
/// each part of a tile's steps: no branch that is hard to predict interrupts the multiply-adds.
/// Takes few instructions: Intel's processors add integers on the ports that multiply vectors of
/// 512 bits.
template <class T>
class Prefetch {
 public:
  HWY_INLINE Prefetch(const GemmTile<T>& tile, std::int64_t parts_of_block) {
    if (tile.extras == nullptr || tile.extras->prefetch.rows == 0) return;
    const std::int64_t parts = parts_of_block * tile.blocks;
    const GemmPrefetch<T>& all = tile.extras->prefetch;
    left_ = all.rows * all.lines;
    together_ = (left_ + parts - 1) / parts;
    at_ = all.from;
    end_ = at_ + all.lines * kLine;
    row_ = all.row;
    gap_ = row_ - all.lines * kLine;
  }

  HWY_INLINE void fetch_part() {
    if (left_ <= 0) return;
    const T* at = at_;
    const T* end = end_;
    std::int64_t count = together_;
    keep_in_register(count);  // else the compiler keeps two counters in one vector
    left_ -= count;
    for (; count > 0; --count) {
      __builtin_prefetch(at, 0, 2);
      at += kLine;
      if (at == end) {
        at += gap_;
        end += row_;
      }
    }
    at_ = at;
    end_ = end;
  }

 private:
  static constexpr std::ptrdiff_t kLine = 64 / sizeof(T);

  const T* at_ = nullptr;
  const T* end_ = nullptr;     // end of the current row
  std::ptrdiff_t gap_ = 0;     // elements from there to the next row
  std::ptrdiff_t row_ = 0;     // row stride in elements
  std::int64_t left_ = 0;      // cache lines left
  std::int64_t together_ = 0;  // cache lines per part
};

/// Prefetches row `row` of each matrix that a tile's epilogue reads or writes.
template <int kVectors, std::ptrdiff_t kLanes, class T>
HWY_INLINE void prefetch_row(const GemmTile<T>& tile, std::ptrdiff_t row) {
  const GemmExtras<T>& extras = *tile.extras;
  const std::ptrdiff_t offset =
      ((tile.row + row) * extras.reads_next_row + tile.column) * extras.reads_next_size;
  constexpr std::ptrdiff_t kVector = kLanes * sizeof(T);
  for (int i = 0; i < extras.reads_next_count; ++i) {
    const char* at = static_cast<const char*>(extras.reads_next[i]) + offset;
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) __builtin_prefetch(at + v * kVector, 1);
    __builtin_prefetch(at + kVectors * kVector - 1, 1);
  }
}

/// Prefetches memory that the hardware prefetcher does not foresee, a little with every kGemmChunk
/// steps: a row of each matrix that the tile's epilogue reads or writes, and the next tile's A.
template <int kRows, int kVectors, std::ptrdiff_t kLanes, class T>
HWY_INLINE void prefetch_chunk(const GemmTile<T>& tile, std::int64_t block, std::int64_t chunk) {
  if (chunk < kRows) prefetch_row<kVectors, kLanes>(tile, block * kRows + chunk);
  if (tile.a_step != 1) return;
  const T* next = tile.a + (block + 1) * tile.a_block + chunk * kGemmChunk;
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) __builtin_prefetch(next + i * tile.a_row);
}

}  // namespace onnxgrad::device::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
