// GEMM tiles, for all instruction sets; each element type has a source file of its own, so that a
// build compiles them side by side.
#if defined(ONNXGRAD_DEVICE_CPU_GEMM_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONNXGRAD_DEVICE_CPU_GEMM_TILE_INL_H_
#undef ONNXGRAD_DEVICE_CPU_GEMM_TILE_INL_H_
#else
#define ONNXGRAD_DEVICE_CPU_GEMM_TILE_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>

#include "device/cpu/gemm_a_panel-inl.h"
#include "device/cpu/gemm_tile.h"
#include "device/cpu/gemm_tile_end-inl.h"
#include "device/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onnxgrad::device::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Sizes of tiles. Sixteen registers hold 12 sums, 2 vectors of b, one element of a and the mask;
// thirty-two hold 24, 4, one and more. B panels of 2 vectors and 256 steps are half of a small L1
// cache, of 3 they fill it. Tiles that read packed A panels can be high, since packed rows do not
// compete for a set of the L1 cache, and their B panels are narrow.
#if HWY_TARGET <= HWY_AVX3
constexpr int kMaxVectors = 4;
constexpr int kMaxRows[kGemmMaxVectors] = {16, 8, 8, 6};
constexpr int kAPanelVectors = 2;
constexpr int kAPanelRows = 12;
#elif HWY_ARCH_ARM_A64
constexpr int kMaxVectors = 4;
constexpr int kMaxRows[kGemmMaxVectors] = {16, 8, 8, 6};
constexpr int kAPanelVectors = 4;
constexpr int kAPanelRows = 6;
#else
constexpr int kMaxVectors = 2;
constexpr int kMaxRows[kGemmMaxVectors] = {8, 6, 0, 0};
constexpr int kAPanelVectors = 2;
constexpr int kAPanelRows = 6;
#endif

/// Computes tiles of kRows rows and kVectors vectors. The sums stay in registers for all k: each
/// step loads kVectors vectors of b, and one scalar of a per row.
template <class D, int kRows, int kVectors>
void gemm_tile(const GemmTile<hn::TFromD<D>>& tile) {
  using T = hn::TFromD<D>;
  using V = hn::Vec<D>;
  const D d;
  constexpr std::ptrdiff_t kLanes = hn::MaxLanes(D());
  const TileEnd<D, kRows, kVectors> end{hn::FirstN(d, static_cast<std::size_t>(tile.tail)),
                                        tile.tail};
  constexpr std::ptrdiff_t kPrefetchDistance = 8;
  constexpr int kGroups = (kRows + 3) / 4;  // four rows share a pointer
  std::ptrdiff_t a_row = tile.a_row;
  std::ptrdiff_t a_row3 = 3 * a_row;
  keep_in_register(a_row);
  keep_in_register(a_row3);
  const std::ptrdiff_t a_step = tile.a_step;
  const std::ptrdiff_t b_step = tile.b_step;
  Prefetch<T> prefetch(tile, (tile.steps + kGemmChunk - 1) / kGemmChunk);
  for (std::int64_t block = 0; block < tile.blocks; ++block) {
    V sum[kRows][kVectors];
    set_zero(d, sum);
    const T* b = tile.b;
    const T* a[kGroups];
#pragma GCC unroll 4
    for (int g = 0; g < kGroups; ++g) {
      a[g] = tile.a + block * tile.a_block + static_cast<std::ptrdiff_t>(4 * g) * a_row;
      keep_in_register(a[g]);
    }
    for (std::int64_t done = 0; done < tile.steps;) {
      // Fields that only this loop reads are loaded again each time: registers are for the inner
      // loop.
      const GemmTile<T>* now = &tile;
      keep_in_register(now);
      std::int64_t steps = now->steps - done;
      if (now->extras != nullptr && now->steps >= kGemmLongSum) {
        prefetch_chunk<kRows, kVectors, kLanes>(*now, block, done / kGemmChunk);
        prefetch.fetch_part();
        steps = std::min(steps, kGemmChunk);
      }
      done += steps;
      for (std::int64_t k = steps; k > 0; --k) {
        V row[kVectors];
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
          row[v] = v + 1 < kVectors || kLanes == 1 ? hn::LoadU(d, b + v * kLanes)
                                                   : load_padded(d, end.mask, b + v * kLanes);
          // If rows of b are far apart, the hardware prefetcher does not predict the next ones.
          if (kVectors > 2) __builtin_prefetch(b + kPrefetchDistance * b_step + v * kLanes);
        }
        b += b_step;
        keep_in_register(b);
#pragma GCC unroll 16
        for (int i = 0; i < kRows; ++i) {
          const V factor = hn::Set(d, a[i / 4][i % 4 == 3 ? a_row3 : i % 4 * a_row]);
#pragma GCC unroll 4
          for (int v = 0; v < kVectors; ++v) sum[i][v] = hn::MulAdd(factor, row[v], sum[i][v]);
        }
#pragma GCC unroll 4
        for (int g = 0; g < kGroups; ++g) {
          a[g] += a_step;
          keep_in_register(a[g]);  // not as a vector of pointers
        }
      }
    }
    end.finish(sum, tile, block * kRows);
  }
}

/// A block of dot products: partial sums by lane, then across lanes.
template <class T, int kRows, int kColumns>
void dot_block(const GemmDots<T>& dots, std::int64_t row, std::int64_t column) {
  const hn::ScalableTag<T> d;
  using V = hn::Vec<decltype(d)>;
  constexpr std::int64_t kLanes = hn::MaxLanes(d);
  const std::int64_t steps = dots.steps;
  const T* a = dots.a + row * steps;
  const T* b = dots.b + column * steps;
  V sum[kRows][kColumns];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < kColumns; ++j) sum[i][j] = hn::Zero(d);
  }
  const auto add = [&](auto load) HWY_ATTR {
    V x[kRows];
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) x[i] = load(a + i * steps);
#pragma GCC unroll 8
    for (int j = 0; j < kColumns; ++j) {
      const V y = load(b + j * steps);
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) sum[i][j] = hn::MulAdd(x[i], y, sum[i][j]);
    }
  };
  std::int64_t k = 0;
  for (; k + kLanes <= steps; k += kLanes) {
    add([&](const T* from) HWY_ATTR { return hn::LoadU(d, from + k); });
  }
  if (k < steps) {
    const auto mask = hn::FirstN(d, static_cast<std::size_t>(steps - k));
    add([&](const T* from) HWY_ATTR { return load_first(d, mask, from + k, steps - k); });
  }
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < kColumns; ++j) {
      T value = hn::GetLane(hn::SumOfLanes(d, sum[i][j]));
      if (dots.finish != GemmFinish::kStore) {
        value = dots.scale * value +
                dots.start[(row + i) * dots.start_row + (column + j) * dots.start_column];
        if (dots.finish == GemmFinish::kRelu && value < 0) value = 0;
      }
      dots.c[(row + i) * dots.columns + column + j] = value;
    }
  }
}

template <class T, int kRows, int kColumns>
void dot_rows(const GemmDots<T>& dots, std::int64_t row) {
  std::int64_t j = 0;
  for (; j + kColumns <= dots.columns; j += kColumns) dot_block<T, kRows, kColumns>(dots, row, j);
  for (; j < dots.columns; ++j) dot_block<T, kRows, 1>(dots, row, j);
}

// Sums of a block and loaded values fit into the registers.
inline constexpr int kDotRows = kMaxVectors > 3 ? 4 : 2;

template <class T>
void dots(const GemmDots<T>& dots) {
  std::int64_t i = 0;
  for (; i + kDotRows <= dots.rows; i += kDotRows) dot_rows<T, kDotRows, 4>(dots, i);
  for (; i < dots.rows; ++i) dot_rows<T, 1, 8>(dots, i);
}

inline constexpr std::int64_t kFloatSquare = 4;
inline constexpr std::int64_t kDoubleSquare = 2;

/// Transposes four rows within each 128 bits and stores them.
template <class D, class V>
HWY_INLINE void store_transposed(D d, V r0, V r1, V r2, V r3, float* q, std::ptrdiff_t to_row) {
  const hn::Repartition<double, D> pair;
  const auto low01 = hn::BitCast(pair, hn::InterleaveLower(d, r0, r1));
  const auto low23 = hn::BitCast(pair, hn::InterleaveLower(d, r2, r3));
  const auto high01 = hn::BitCast(pair, hn::InterleaveUpper(d, r0, r1));
  const auto high23 = hn::BitCast(pair, hn::InterleaveUpper(d, r2, r3));
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(pair, low01, low23)), d, q);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(pair, low01, low23)), d, q + to_row);
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(pair, high01, high23)), d, q + 2 * to_row);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(pair, high01, high23)), d, q + 3 * to_row);
}

HWY_INLINE void transpose_square(const float* p, std::ptrdiff_t from_row, float* q,
                                 std::ptrdiff_t to_row) {
  const hn::FixedTag<float, 4> d;
  const auto r0 = hn::LoadU(d, p);
  const auto r1 = hn::LoadU(d, p + from_row);
  const auto r2 = hn::LoadU(d, p + 2 * from_row);
  const auto r3 = hn::LoadU(d, p + 3 * from_row);
  store_transposed(d, r0, r1, r2, r3, q, to_row);
}

HWY_INLINE void transpose_square(const double* p, std::ptrdiff_t from_row, double* q,
                                 std::ptrdiff_t to_row) {
  const hn::FixedTag<double, 2> d;
  const auto r0 = hn::LoadU(d, p);
  const auto r1 = hn::LoadU(d, p + from_row);
  hn::StoreU(hn::InterleaveLower(d, r0, r1), d, q);
  hn::StoreU(hn::InterleaveUpper(d, r0, r1), d, q + to_row);
}

/// Loads 128 bits from each of several addresses, `step` elements apart, into one vector.
template <class D, class T = hn::TFromD<D>>
HWY_INLINE hn::Vec<D> load_quarters(D d, const T* from, std::ptrdiff_t step) {
  if constexpr (hn::MaxLanes(D()) * sizeof(T) == 16) {
    return hn::LoadU(d, from);
  } else {
    const hn::Half<D> half;
    constexpr std::ptrdiff_t kQuarters = hn::MaxLanes(D()) * sizeof(T) / 32;
    return hn::Combine(d, load_quarters(half, from + kQuarters * step, step),
                       load_quarters(half, from, step));
  }
}

/// Transposes as many rows as a vector has lanes, and as many columns as fit into 128 bits.
HWY_INLINE void transpose_a_panel(const float* p, std::ptrdiff_t from_row, float* q,
                                  std::ptrdiff_t to_row) {
  const hn::ScalableTag<float> d;
  const auto r0 = load_quarters(d, p, 4 * from_row);
  const auto r1 = load_quarters(d, p + from_row, 4 * from_row);
  const auto r2 = load_quarters(d, p + 2 * from_row, 4 * from_row);
  const auto r3 = load_quarters(d, p + 3 * from_row, 4 * from_row);
  store_transposed(d, r0, r1, r2, r3, q, to_row);
}

HWY_INLINE void transpose_a_panel(const double* p, std::ptrdiff_t from_row, double* q,
                                  std::ptrdiff_t to_row) {
  const hn::ScalableTag<double> d;
  const auto r0 = load_quarters(d, p, 2 * from_row);
  const auto r1 = load_quarters(d, p + from_row, 2 * from_row);
  hn::StoreU(hn::InterleaveLower(d, r0, r1), d, q);
  hn::StoreU(hn::InterleaveUpper(d, r0, r1), d, q + to_row);
}

/// Transposes a matrix by transpose_a_panel(), then by squares; those at the lower and right edges
/// overlap their neighbours.
template <class T>
void transpose(const T* from, std::ptrdiff_t from_row, T* to, std::ptrdiff_t to_row,
               std::int64_t rows, std::int64_t columns) {
  constexpr std::int64_t kSquare = sizeof(T) == 4 ? kFloatSquare : kDoubleSquare;
  constexpr std::int64_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
  if (rows >= kSquare && columns >= kSquare) {
    const auto column_of = [&](std::int64_t j) {
      return j + kSquare <= columns ? j : columns - kSquare;
    };
    constexpr std::int64_t kLine = 64 / sizeof(T);
    std::int64_t i = 0;
    for (; i + kLanes <= rows; i += kLanes) {
      for (std::int64_t j = 0; j < columns; j += kSquare) {
        const std::int64_t column = column_of(j);
        if (j % kLine == 0 && j + 2 * kLine < columns) {  // too many rows for the prefetcher
          const T* prefetch = from + i * from_row + j + 2 * kLine;
          for (std::int64_t r = 0; r < kLanes; ++r) __builtin_prefetch(prefetch + r * from_row);
        }
        transpose_a_panel(from + i * from_row + column, from_row, to + column * to_row + i, to_row);
      }
    }
    if (i == rows) return;
    for (std::int64_t j = 0; j < columns; j += kSquare) {
      const std::int64_t column = column_of(j);
      for (std::int64_t k = i; k < rows; k += kSquare) {
        const std::int64_t row = k + kSquare <= rows ? k : rows - kSquare;
        transpose_square(from + row * from_row + column, from_row, to + column * to_row + row,
                         to_row);
      }
    }
    return;
  }
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j) to[j * to_row + i] = from[i * from_row + j];
  }
}

template <class T>
void copy(const T* from, std::ptrdiff_t from_row, T* to, std::ptrdiff_t to_row, std::int64_t rows,
          std::int64_t columns) {
  const hn::ScalableTag<T> d;
  constexpr std::int64_t kLanes = hn::MaxLanes(d);
  constexpr std::int64_t kPrefetchDistance =
      12;  // rows: each is on a different page for the prefetcher
  const std::int64_t whole = columns / kLanes * kLanes;
  const std::int64_t rest = columns - whole;
  const auto mask = hn::FirstN(d, static_cast<std::size_t>(rest));
  if (columns < 2 * kLanes) {  // short rows: one vector, a part of one, or both
    for (std::int64_t i = 0; i < rows; ++i) {
      __builtin_prefetch(from + kPrefetchDistance * from_row);
      if (whole > 0) hn::StoreU(hn::LoadU(d, from), d, to);
      if (rest > 0) hn::StoreU(load_first(d, mask, from + whole, rest), d, to + whole);
      from += from_row;
      to += to_row;
    }
    return;
  }
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < whole; j += kLanes) {
      if (i + kPrefetchDistance < rows) __builtin_prefetch(from + kPrefetchDistance * from_row + j);
      hn::StoreU(hn::LoadU(d, from + j), d, to + j);
    }
    if (rest > 0) hn::StoreU(load_first(d, mask, from + whole, rest), d, to + whole);
    from += from_row;
    to += to_row;
  }
}

/// Packs kTogether steps of all A panels at a time, since A panels share cache lines of `from`. A
/// row is stored as whole vectors, whose excess the next rows overwrite, except at the end of an A
/// panel.
template <class T>
void pack_steps(const T* from, std::ptrdiff_t from_row, T* to, std::int64_t a_panels,
                std::int64_t width, std::int64_t steps) {
  const hn::ScalableTag<T> d;
  constexpr std::int64_t kLanes = hn::MaxLanes(d);
  constexpr std::int64_t kTogether = 8;
  const std::int64_t whole = (width - 1) / kLanes * kLanes;
  const std::int64_t rest = width - whole;
  const auto mask = hn::FirstN(d, static_cast<std::size_t>(rest));
  const std::int64_t last_whole =
      steps * width - whole - kLanes;  // offset of an A panel's last row that is stored whole
  for (std::int64_t k = 0; k < steps; k += kTogether) {
    const std::int64_t end = std::min(k + kTogether, steps);
    for (std::int64_t s = 0; s < a_panels; ++s) {
      for (std::int64_t i = k; i < end; ++i) {
        const T* p = from + i * from_row + s * width;
        T* q = to + (s * steps + i) * width;
        for (std::int64_t j = 0; j < whole; j += kLanes) hn::StoreU(hn::LoadU(d, p + j), d, q + j);
        const auto end_of_row = load_first(d, mask, p + whole, rest);
        if (i * width <= last_whole) {
          hn::StoreU(end_of_row, d, q + whole);
        } else {
          store_first(end_of_row, d, mask, q + whole, rest);
        }
      }
    }
  }
}

/// Packs kGemmChunk steps of each row at a time; of the last ones, only those that there are.
template <class T>
void pack_rows(const T* from, std::ptrdiff_t from_row, T* to, std::int64_t a_panels,
               std::int64_t height, std::int64_t steps) {
  const hn::ScalableTag<T> d;
  constexpr std::int64_t kLanes = hn::MaxLanes(d);
  constexpr std::int64_t kPrefetchDistance = 2 * kGemmChunk;
  for (std::int64_t s = 0; s < a_panels; ++s) {
    for (std::int64_t k = 0; k < steps; k += kGemmChunk) {
      const std::int64_t count = std::min(kGemmChunk, steps - k);
      const T* row = from + s * height * from_row + k;
      for (std::int64_t i = 0; i < height; ++i) {
        __builtin_prefetch(row + kPrefetchDistance);
        if (count == kGemmChunk) {
          for (std::int64_t j = 0; j < kGemmChunk; j += kLanes) {
            hn::StoreU(hn::LoadU(d, row + j), d, to + j);
          }
        } else {
          for (std::int64_t j = 0; j < count; ++j) to[j] = row[j];
        }
        row += from_row;
        to += kGemmChunk;
      }
    }
  }
}

template <class T, int kVectors, int... kRow>
void fill_tiles(GemmTarget<T>& target, std::integer_sequence<int, kRow...> /*rows*/) {
  target.max_rows[kVectors - 1] = sizeof...(kRow);
  ((target.tile[kVectors - 1][kRow] = gemm_tile<hn::ScalableTag<T>, kRow + 1, kVectors>), ...);
}

template <class T, int kVectors, int... kRow>
void fill_a_panels(GemmTileFn<T> (&to)[2][kGemmMaxRows],
                   std::integer_sequence<int, kRow...> /*rows*/) {
  using D = hn::ScalableTag<T>;
  using enum GemmPackedA;
  ((to[0][kRow] = APanelTile<D, kRow + 1, kVectors, kStepAPanel>::run), ...);
  ((to[1][kRow] = APanelTile<D, kRow + 1, kVectors, kRowAPanel>::run), ...);
}

template <class T, int... kRow>
void fill_columns(GemmTarget<T>& target, std::integer_sequence<int, kRow...> /*rows*/) {
  ((target.column[kRow] = gemm_tile<hn::CappedTag<T, 1>, kRow + 1, 1>), ...);
}

template <class T>
GemmTarget<T> make_target() {
  GemmTarget<T> target;
  target.name = hwy::TargetName(HWY_TARGET);
  target.lanes = static_cast<int>(hn::Lanes(hn::ScalableTag<T>()));
  target.max_vectors = kMaxVectors;
  target.needs_padding = !kMasksAreSafe;
  target.dots = dots<T>;
  target.transpose = transpose<T>;
  target.copy = copy<T>;
  target.pack_steps = pack_steps<T>;
  target.pack_rows = pack_rows<T>;
  fill_tiles<T, 1>(target, std::make_integer_sequence<int, kMaxRows[0]>());
  fill_tiles<T, 2>(target, std::make_integer_sequence<int, kMaxRows[1]>());
  if constexpr (kMaxVectors > 2) {
    fill_tiles<T, 3>(target, std::make_integer_sequence<int, kMaxRows[2]>());
    fill_tiles<T, 4>(target, std::make_integer_sequence<int, kMaxRows[3]>());
  }
  target.a_panel_vectors = kAPanelVectors;
  target.a_panel_rows = kAPanelRows;
  fill_a_panels<T, kAPanelVectors>(target.a_panel, std::make_integer_sequence<int, kAPanelRows>());
  if constexpr (kMaxVectors > kAPanelVectors) {
    fill_a_panels<T, kMaxVectors>(target.wide_a_panel,
                                  std::make_integer_sequence<int, kMaxRows[kMaxVectors - 1]>());
  }
  fill_columns<T>(target, std::make_integer_sequence<int, kGemmMaxRows>());
  return target;
}

}  // namespace onnxgrad::device::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // ONNXGRAD_DEVICE_CPU_GEMM_TILE_INL_H_
