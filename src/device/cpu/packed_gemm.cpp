#include "device/cpu/packed_gemm.h"

#include <algorithm>

namespace onnxgrad::device {
namespace {

// Calls f(B panel, first column, columns, columns with padding).
template <class T, class F>
void visit_b_panels(const PackedGemm<T>& gemm, F&& f) {
  std::int64_t column = 0;
  const std::int64_t count = gemm.columns.count();
  for (std::int64_t p = 0; p < count; ++p) {
    const std::int64_t padded = gemm.columns.size(p) * gemm.lanes;
    f(p, column, std::min(padded, gemm.n - column), padded);
    column += padded;
  }
}

}  // namespace

template <class T>
PackedGemm<T> PackedGemm<T>::prepare(Isa isa, std::int64_t k, std::int64_t n) {
  const GemmTarget<T>& target = gemm_target<T>(isa);
  return {.isa = isa, .k = k, .n = n, .lanes = target.lanes, .columns = split_columns(n, target)};
}

template <class T>
typename PackedGemm<T>::Rows PackedGemm<T>::rows(std::int64_t m) const {
  const GemmTarget<T>& target = gemm_target<T>(isa);
  return {.wide = split_rows(m, target, columns.big),
          .narrow = split_rows(m, target, columns.big - 1)};
}

template <class T>
std::int64_t PackedGemm<T>::packed_size() const {
  return round_up(n, lanes) * k;
}

template <class T>
void PackedGemm<T>::pack(const T* b, std::ptrdiff_t b_row, bool transpose, T* packed) const {
  if (!transpose) return pack_rows(b, b_row, 0, k, packed);
  visit_b_panels(*this, [&](auto, std::int64_t column, std::int64_t width, std::int64_t padded) {
    gemm_target<T>(isa).transpose(b + column * b_row, b_row, packed, padded, width, k);
    for (std::int64_t i = 0; width < padded && i < k; ++i) {
      std::fill(packed + i * padded + width, packed + (i + 1) * padded, T(0));
    }
    packed += padded * k;
  });
}

template <class T>
void PackedGemm<T>::pack_rows(const T* b, std::ptrdiff_t b_row, std::int64_t first,
                              std::int64_t count, T* packed) const {
  visit_b_panels(*this, [&](auto, std::int64_t column, std::int64_t width, std::int64_t padded) {
    gemm_target<T>(isa).copy(b + column, b_row, packed + first * padded, padded, count, width);
    packed += padded * k;
  });
}

template <class T>
void PackedGemm<T>::run(const Rows& rows, const Operands& operands) const {
  if (rows.wide.big == 0) return;
  constexpr std::int64_t kWidestBPanel = 64;
  alignas(64) static constexpr T kZeros[kWidestBPanel] = {};
  GemmExtras<T> extras;  // with them, tiles fetch A too
  extras.reads_next[0] = operands.c;
  extras.reads_next_row = operands.c_row;
  extras.reads_next_count = 1;
  const bool adds = operands.start != nullptr;
  const T* packed = operands.packed;
  const std::int64_t count = columns.count();
  const std::int64_t needed = operands.columns < 0 ? n : operands.columns;
  visit_b_panels(*this, [&](std::int64_t p, std::int64_t column, auto, std::int64_t padded) {
    if (column >= needed) return;
    GemmTile<T> tile;
    tile.a = operands.a;
    tile.a_row = operands.a_row;
    tile.a_step = operands.a_step;
    tile.b = packed;
    tile.b_step = padded;
    tile.c = operands.c + column;
    tile.c_row = operands.c_row;
    tile.start = adds ? operands.start + column : kZeros;
    tile.start_row = adds ? operands.start_row : 0;
    tile.steps = operands.steps < 0 ? k : operands.steps;
    tile.tail = p + 1 == count ? columns.tail : lanes;
    tile.finish = adds ? GemmFinish::kAdd : GemmFinish::kStore;
    tile.extras = &extras;
    tile.column = column;
    run_rows(tile, columns.is_big(p) ? rows.wide : rows.narrow);
    packed += padded * k;
  });
}

template <class T>
RowSumGemm<T> RowSumGemm<T>::prepare(Isa isa, std::int64_t m, std::int64_t n, std::int64_t block) {
  const auto gemm = PackedGemm<T>::prepare(isa, block, n);
  return {.m = m,
          .n = n,
          .block = block,
          .lanes = gemm.lanes,
          .gemm = gemm,
          .whole = gemm.rows(gemm.lanes),
          .rest = gemm.rows(m % gemm.lanes)};
}

template <class T>
void RowSumGemm<T>::pack_a(const T* a, std::ptrdiff_t a_row, std::int64_t first, std::int64_t count,
                           T* packed) const {
  for (std::int64_t column = 0; column < m; column += lanes) {
    gemm_target<T>(gemm.isa).copy(a + column, a_row, packed + column * block + first * lanes, lanes,
                                  count, std::min<std::int64_t>(lanes, m - column));
  }
}

template <class T>
void RowSumGemm<T>::run(const Operands& operands) const {
  for (std::int64_t row = 0; row < m; row += lanes) {
    T* const c = operands.c + row * n;
    gemm.run(row + lanes <= m ? whole : rest, {.a = operands.a + row * block,
                                               .a_row = 1,
                                               .a_step = lanes,
                                               .packed = operands.b,
                                               .c = c,
                                               .c_row = n,
                                               .start = operands.adds ? c : nullptr,
                                               .start_row = n,
                                               .steps = operands.rows});
  }
}

template struct PackedGemm<float>;
template struct PackedGemm<double>;
template struct RowSumGemm<float>;
template struct RowSumGemm<double>;

}  // namespace onnxgrad::device
