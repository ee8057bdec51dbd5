#ifndef ONNXGRAD_DEVICE_CPU_GEMM_TILE_H_
#define ONNXGRAD_DEVICE_CPU_GEMM_TILE_H_

#include <cstddef>
#include <cstdint>

#include "device/isa.h"

// The innermost kernels of GEMM, which compute one tile of C with its sums in registers; one set
// per instruction set (gemm_tile-inl.h). gemm_plan.h splits a GEMM among them.

namespace onnxgrad::device {

/// Epilogue of a tile.
enum class GemmFinish : std::int32_t {
  kStore,  ///< c = sum
  kAdd,    ///< c = scale * sum + start
  kRelu    ///< c = max(0, scale * sum + start); NaN stays NaN
};

inline constexpr std::int64_t kGemmLongSum = 96;  // minimum of k with which tiles prefetch
inline constexpr std::int64_t kGemmChunk = 16;  // steps of k between prefetches, and of kRowAPanel
inline constexpr int kGemmMaxMore = 3;          // addends besides `start`
inline constexpr int kGemmMaxReadsNext = kGemmMaxMore + 3;

/// Part of a matrix to prefetch because it is packed later: `lines` cache lines of each of `rows`.
template <class T>
struct GemmPrefetch {
  const T* from = nullptr;
  std::int64_t rows = 0;
  std::ptrdiff_t row = 0;  ///< row stride in elements
  std::int64_t lines = 0;
};

/// Fields of GEMMs beyond the L1 cache: matrices shaped like C and prefetches. Apart from GemmTile,
/// since small GEMMs copy their tile often.
template <class T>
struct GemmExtras {
  /// Addends besides `start`, unless kStore: pointers at C[0, 0], and row strides in elements.
  const T* more[kGemmMaxMore] = {};
  std::ptrdiff_t more_row[kGemmMaxMore] = {};
  int more_count = 0;
  /// Matrix by which complete sums are multiplied element by element: its [0, 0], and its row
  /// stride in elements. nullptr: none.
  const T* scales = nullptr;
  std::ptrdiff_t scales_row = 0;
  /// Matrices shaped like C, of which a tile prefetches its own elements while long sums are
  /// computed.
  const void* reads_next[kGemmMaxReadsNext] = {};
  std::ptrdiff_t reads_next_row = 0;           ///< row stride in elements
  std::ptrdiff_t reads_next_size = sizeof(T);  ///< bytes per element, at most sizeof(T)
  int reads_next_count = 0;
  /// Prefetched into the L2 cache while the tiles are computed, evenly over the steps.
  GemmPrefetch<T> prefetch = {};
};

/// `blocks` tiles of C, one below the other: c[i, j] = finish(sum over k of a[i, k] * b[k, j]). The
/// function determines the number of rows and of vectors of columns. All strides are in
/// elements. `c` may be `start`.
template <class T>
struct GemmTile {
  const T* a = nullptr;
  std::ptrdiff_t a_row = 0;    ///< from a[i, k] to a[i + 1, k]
  std::ptrdiff_t a_step = 0;   ///< from a[i, k] to a[i, k + 1]
  std::ptrdiff_t a_block = 0;  ///< from one tile's a[0, 0] to the next one's
  const T* b = nullptr;
  std::ptrdiff_t b_step = 0;  ///< from b[k, j] to b[k + 1, j]; columns are adjacent
  T* c = nullptr;
  std::ptrdiff_t c_row = 0;
  const T* start = nullptr;
  std::ptrdiff_t start_row = 0;
  std::int64_t blocks = 1;
  std::int64_t steps = 0;  ///< size of k
  std::int64_t tail = 0;   ///< columns in the last vector, 1 to lanes
  T scale = 1;
  GemmFinish finish = GemmFinish::kStore;
  const GemmExtras<T>* extras = nullptr;  ///< nullptr: none, and no prefetches
  std::ptrdiff_t row = 0, column = 0;     ///< position of c[0, 0] in `extras`
};

template <class T>
using GemmTileFn = void (*)(const GemmTile<T>& tile);

/// Dot products c[i, j] = finish(sum over k of a[i, k] * b[j, k]): rows of a and b are contiguous.
template <class T>
struct GemmDots {
  const T* a = nullptr;
  const T* b = nullptr;
  std::int64_t rows = 0;     ///< rows of a and c
  std::int64_t columns = 0;  ///< columns of c: rows of b
  std::int64_t steps = 0;    ///< size of k, and row stride of a and b
  T* c = nullptr;            ///< [rows, columns]
  const T* start = nullptr;
  std::ptrdiff_t start_row = 0;
  std::ptrdiff_t start_column = 0;
  T scale = 1;
  GemmFinish finish = GemmFinish::kStore;
};

/// Order of elements in a packed A panel.
enum class GemmPackedA : std::int32_t {
  kStepAPanel,  ///< k-major: [step][row]
  /// Row-major in chunks of k: [step / kGemmChunk][row][step % kGemmChunk], k padded to a multiple.
  kRowAPanel
};

inline constexpr int kGemmMaxVectors = 4;
inline constexpr int kGemmMaxRows = 16;

/// Tile functions of one instruction set for T.
template <class T>
struct GemmTarget {
  const char* name = "";
  int lanes = 1;
  int max_vectors = 1;  ///< vectors of columns in the widest tile
  int max_rows[kGemmMaxVectors] = {};
  /// Tiles that read A and B in place: [vectors - 1][rows - 1].
  GemmTileFn<T> tile[kGemmMaxVectors][kGemmMaxRows] = {};
  /// Tiles of a_panel_vectors vectors and up to a_panel_rows rows that read packed A and B panels:
  /// [GemmPackedA][rows - 1].
  int a_panel_vectors = 1;
  int a_panel_rows = 1;
  GemmTileFn<T> a_panel[2][kGemmMaxRows] = {};
  /// Tiles that read packed A panels and B panels of max_vectors vectors, if that is more: for a B
  /// that was packed once for any number of rows. [GemmPackedA][rows - 1], up to max_rows.
  GemmTileFn<T> wide_a_panel[2][kGemmMaxRows] = {};
  /// Tiles of one column, without vectors: [rows - 1].
  GemmTileFn<T> column[kGemmMaxRows] = {};
  void (*dots)(const GemmDots<T>& dots) = nullptr;
  /// to[j, i] = from[i, j] for i in [0, rows), j in [0, columns).
  void (*transpose)(const T* from, std::ptrdiff_t from_row, T* to, std::ptrdiff_t to_row,
                    std::int64_t rows, std::int64_t columns) = nullptr;
  /// to[i, j] = from[i, j]; zeros after the last column up to a full vector.
  void (*copy)(const T* from, std::ptrdiff_t from_row, T* to, std::ptrdiff_t to_row,
               std::int64_t rows, std::int64_t columns) = nullptr;
  /// to[s, i, j] = from[i, s * width + j] for i in [0, steps), j in [0, width): packs columns of a
  /// matrix as A panels (GemmPackedA::kStepAPanel).
  void (*pack_steps)(const T* from, std::ptrdiff_t from_row, T* to, std::int64_t a_panels,
                     std::int64_t width, std::int64_t steps) = nullptr;
  /// Packs rows of a matrix as A panels of `height` rows (GemmPackedA::kRowAPanel).
  void (*pack_rows)(const T* from, std::ptrdiff_t from_row, T* to, std::int64_t a_panels,
                    std::int64_t height, std::int64_t steps) = nullptr;
  /// Rows of b must be readable up to a full vector: there are no masked loads.
  bool needs_padding = false;
};

/// Returns the tiles of an instruction set.
template <class T>
const GemmTarget<T>& gemm_target(Isa isa);

}  // namespace onnxgrad::device

#endif  // ONNXGRAD_DEVICE_CPU_GEMM_TILE_H_
