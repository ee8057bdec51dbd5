#include "device/cpu/packed_gemm.h"

#include <algorithm>

namespace onnxgrad::device {
namespace {

// Calls f(panel, first column, columns, columns with padding).
template <class T, class F>
void visit_panels(const PackedGemm<T>& gemm, F&& f) {
  std::int64_t column = 0;
  const std::int64_t count = gemm.columns.wide_count + gemm.columns.narrow_count;
  for (std::int64_t p = 0; p < count; ++p) {
    const bool wide = p < gemm.columns.wide_count;
    const std::int64_t padded = (wide ? gemm.columns.wide : gemm.columns.wide - 1) * gemm.lanes;
    f(p, column, std::min(padded, gemm.n - column), padded);
    column += padded;
  }
}

template <class T>
void run_tiles(GemmTile<T>& tile, const RowSplit<T>& rows) {
  tile.blocks = rows.big_count;
  tile.a_block = rows.big * tile.a_row;
  rows.big_fn(tile);
  if (rows.small_count == 0) return;
  const std::int64_t done = rows.big_count * rows.big;
  tile.a += done * tile.a_row;
  tile.c += done * tile.c_row;
  tile.start += done * tile.start_row;
  tile.blocks = rows.small_count;
  tile.a_block -= tile.a_row;
  rows.small_fn(tile);
}

}  // namespace

template <class T>
PackedGemm<T> PackedGemm<T>::prepare(std::int64_t k, std::int64_t n) {
  const GemmTarget<T>& target = gemm_target<T>();
  return {.k = k, .n = n, .lanes = target.lanes, .columns = split_columns(n, target)};
}

template <class T>
typename PackedGemm<T>::Rows PackedGemm<T>::rows(std::int64_t m) const {
  const GemmTarget<T>& target = gemm_target<T>();
  const auto rows_of = [&](int vectors) {
    return vectors == 0 || m == 0
               ? RowSplit<T>{}
               : split_rows(m, target.tile[vectors - 1], target.max_rows[vectors - 1]);
  };
  return {.wide = rows_of(columns.wide), .narrow = rows_of(columns.wide - 1)};
}

template <class T>
std::int64_t PackedGemm<T>::packed_size() const {
  std::int64_t size = 0;
  visit_panels(*this, [&](auto, auto, auto, std::int64_t padded) { size += padded * k; });
  return size;
}

template <class T>
void PackedGemm<T>::pack(const T* b, std::ptrdiff_t b_row, bool transpose, T* packed) const {
  const GemmTarget<T>& target = gemm_target<T>();
  visit_panels(*this, [&](auto, std::int64_t column, std::int64_t width, std::int64_t padded) {
    if (transpose) {
      target.transpose(b + column * b_row, b_row, packed, padded, width, k);
      for (std::int64_t i = 0; width < padded && i < k; ++i) {
        std::fill(packed + i * padded + width, packed + (i + 1) * padded, T(0));
      }
    } else {
      target.copy(b + column, b_row, packed, padded, k, width);
    }
    packed += padded * k;
  });
}

template <class T>
void PackedGemm<T>::run(const Rows& rows, const Operands& operands) const {
  if (rows.wide.big == 0) return;
  constexpr std::int64_t kWidestPanel = 64;
  alignas(64) static constexpr T kZeros[kWidestPanel] = {};
  const bool adds = operands.start != nullptr;
  const T* packed = operands.packed;
  const std::int64_t count = columns.wide_count + columns.narrow_count;
  visit_panels(*this, [&](std::int64_t p, std::int64_t column, auto, std::int64_t padded) {
    GemmTile<T> tile;
    tile.a = operands.a;
    tile.a_row = operands.a_row;
    tile.a_step = 1;
    tile.b = packed;
    tile.b_step = padded;
    tile.c = operands.c + column;
    tile.c_row = operands.c_row;
    tile.start = adds ? operands.start + column : kZeros;
    tile.start_row = adds ? operands.start_row : 0;
    tile.steps = k;
    tile.tail = p + 1 == count ? columns.tail : lanes;
    tile.finish = adds ? GemmFinish::kAdd : GemmFinish::kStore;
    run_tiles(tile, p < columns.wide_count ? rows.wide : rows.narrow);
    packed += padded * k;
  });
}

template struct PackedGemm<float>;
template struct PackedGemm<double>;

}  // namespace onnxgrad::device
