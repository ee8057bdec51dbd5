#ifndef ONNXGRAD_DEVICE_CPU_GEMM_TILE_H_
#define ONNXGRAD_DEVICE_CPU_GEMM_TILE_H_

#include <cstddef>
#include <cstdint>

// The smallest pieces of a matrix product, one set per instruction set (gemm_tile-inl.h).
// gemm.cpp decides at plan time which pieces make up a product.

namespace onnxgrad::device {

/// How a tile ends.
enum class GemmFinish : std::int32_t {
  kStore,  ///< c = sum
  kAdd,    ///< c = scale * sum + start
  kRelu    ///< c = max(0, scale * sum + start); NaN stays NaN
};

inline constexpr std::int64_t kGemmLongSum = 96;  // steps from which tiles prefetch
inline constexpr std::int64_t kGemmChunk = 16;    // steps between prefetches, and of packed rows
inline constexpr int kGemmMaxMore = 3;            // addends besides `start`
inline constexpr int kGemmMaxReadsNext = kGemmMaxMore + 3;

/// A part of a matrix that is packed later: `rows` of `lines` cache lines.
template <class T>
struct GemmPrefetch {
  const T* from = nullptr;
  std::int64_t rows = 0;
  std::ptrdiff_t row = 0;  ///< from row to row
  std::int64_t lines = 0;
};

/// Fields of GEMMs beyond the L1 cache: matrices shaped like C and prefetches. Apart from GemmTile,
/// since small GEMMs copy their tile often.
template <class T>
struct GemmExtras {
  /// Further addends, unless kStore: at C[0, 0], and how far each moves per row.
  const T* more[kGemmMaxMore] = {};
  std::ptrdiff_t more_row[kGemmMaxMore] = {};
  int more_count = 0;
  /// Matrix by which complete sums are multiplied element by element: its [0, 0], and elements from
  /// row to row. nullptr: none.
  const T* scales = nullptr;
  std::ptrdiff_t scales_row = 0;
  /// By column of C: receives the sums of each tile's columns. nullptr: not computed.
  T* column_sums = nullptr;
  /// Matrices whose elements at C's places are fetched into the cache while long sums are computed.
  const void* reads_next[kGemmMaxReadsNext] = {};
  std::ptrdiff_t reads_next_row = 0;           ///< elements
  std::ptrdiff_t reads_next_size = sizeof(T);  ///< bytes of one, at most those of T
  int reads_next_count = 0;
  /// Parts that are prefetched into the L2 cache meanwhile, from their first row on, evenly over
  /// the steps.
  GemmPrefetch<T> prefetch[2] = {};
  std::int64_t prefetch_rows = 0;  ///< of the one that has more
};

/// Blocks of C, one below the other: c[i, j] = finish(sum over k of a[i, k] * b[k, j]). The
/// function determines the number of rows and of vectors of columns. All strides are in
/// elements. `c` may be `start`.
template <class T>
struct GemmTile {
  const T* a = nullptr;
  std::ptrdiff_t a_row = 0;    ///< from a[i, k] to a[i + 1, k]
  std::ptrdiff_t a_step = 0;   ///< from a[i, k] to a[i, k + 1]
  std::ptrdiff_t a_block = 0;  ///< from one block's a[0, 0] to the next one's
  const T* b = nullptr;
  std::ptrdiff_t b_step = 0;  ///< from b[k, j] to b[k + 1, j]; columns are adjacent
  T* c = nullptr;
  std::ptrdiff_t c_row = 0;
  const T* start = nullptr;
  std::ptrdiff_t start_row = 0;
  std::int64_t blocks = 1;
  std::int64_t steps = 0;  ///< number of k
  std::int64_t tail = 0;   ///< columns in the last vector, 1 to lanes
  T scale = 1;
  GemmFinish finish = GemmFinish::kStore;
  const GemmExtras<T>* extras = nullptr;  ///< nullptr: none, and nothing is fetched
  std::ptrdiff_t row = 0, column = 0;     ///< of c[0, 0] in the matrices of `extras`
};

template <class T>
using GemmTileFn = void (*)(const GemmTile<T>& tile);

/// c[i, j] = finish(sum over k of a[i, k] * b[j, k]): rows of both are contiguous in k.
template <class T>
struct GemmDots {
  const T* a = nullptr;
  const T* b = nullptr;
  std::int64_t rows = 0;     ///< of a
  std::int64_t columns = 0;  ///< of c: rows of b
  std::int64_t steps = 0;    ///< number of k, and from row to row of a and b
  T* c = nullptr;            ///< [rows, columns]
  const T* start = nullptr;
  std::ptrdiff_t start_row = 0;
  std::ptrdiff_t start_column = 0;
  T scale = 1;
  GemmFinish finish = GemmFinish::kStore;
};

/// The order of elements in a packed b_panel of A.
enum class GemmPackedA : std::int32_t {
  kStepAPanel,  ///< all rows of a step, then those of the next one
  kRowAPanel    ///< kGemmChunk steps of each row, then the next ones, up to a whole chunk
};

inline constexpr int kGemmMaxVectors = 4;
inline constexpr int kGemmMaxRows = 16;

/// The functions of one instruction set for T.
template <class T>
struct GemmTarget {
  const char* name = "";
  int lanes = 1;
  int max_vectors = 1;  ///< columns of a tile, in vectors
  int max_rows[kGemmMaxVectors] = {};
  /// [vectors - 1][rows - 1]
  GemmTileFn<T> tile[kGemmMaxVectors][kGemmMaxRows] = {};
  /// Tiles of a_panel_vectors, and up to a_panel_rows, that read packed b_panels of A and B:
  /// [GemmPackedA][rows - 1].
  int a_panel_vectors = 1;
  int a_panel_rows = 1;
  GemmTileFn<T> a_panel[2][kGemmMaxRows] = {};
  /// Tiles that read packed b_panels of A and b_panels of B of max_vectors, if those are wider: B
  /// that is packed once for all numbers of rows. [GemmPackedA][rows - 1], up to max_rows of them.
  GemmTileFn<T> wide_a_panel[2][kGemmMaxRows] = {};
  /// One column without vectors: [rows - 1].
  GemmTileFn<T> column[kGemmMaxRows] = {};
  void (*dots)(const GemmDots<T>& dots) = nullptr;
  /// to[j, i] = from[i, j] for i in [0, rows), j in [0, columns).
  void (*transpose)(const T* from, std::ptrdiff_t from_row, T* to, std::ptrdiff_t to_row,
                    std::int64_t rows, std::int64_t columns) = nullptr;
  /// to[i, j] = from[i, j]; zeros after the last column up to a full vector.
  void (*copy)(const T* from, std::ptrdiff_t from_row, T* to, std::ptrdiff_t to_row,
               std::int64_t rows, std::int64_t columns) = nullptr;
  /// to[s, i, j] = from[i, s * width + j] for i in [0, steps), j in [0, width): columns of a matrix
  /// as a_panels of steps.
  void (*pack_steps)(const T* from, std::ptrdiff_t from_row, T* to, std::int64_t a_panels,
                     std::int64_t width, std::int64_t steps) = nullptr;
  /// Rows of a matrix as a_panels of `height` of them (GemmPackedA::kRowAPanel).
  void (*pack_rows)(const T* from, std::ptrdiff_t from_row, T* to, std::int64_t a_panels,
                    std::int64_t height, std::int64_t steps) = nullptr;
  /// Rows of b must be readable up to a full vector (no masked loads).
  bool needs_padding = false;
};

/// For the best instruction set of this machine.
template <class T>
const GemmTarget<T>& gemm_target();

}  // namespace onnxgrad::device

#endif  // ONNXGRAD_DEVICE_CPU_GEMM_TILE_H_
