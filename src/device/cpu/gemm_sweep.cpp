#include <algorithm>
#include <cstdint>

#include "device/cpu/gemm_blocked_run.h"

// The order of tiles that multiply strips of A by a block of B: one strip after the other, each by
// all panels, so that tiles of one strip are side by side. The tiles of the first strip pack B. The
// strip stays in the L1 cache, and each tile reads its panel from the L2 cache, which takes no
// longer where a step has 24 multiply-adds. In return, rows of C, and of what the receiver of a
// handed over block reads, are traversed from one end to the other, which processors foresee; no
// more than one strip is packed at a time, in the L1 cache; and what is fetched for later is spread
// over all tiles of the strip.

namespace onnxgrad::device {
namespace {

constexpr std::int64_t kStripsTogether = 4;  // whose steps in a transposed A are whole cache lines

}  // namespace

/// What the strips of a block have in common.
template <class T>
struct BlockedGemm<T>::Sweep {
  const Block& block;
  const Block& next;
  std::int64_t column = 0;   // of the block
  std::int64_t columns = 0;  // of its wide panels
  std::int64_t width = 0;    // of a panel
  std::int64_t whole = 0;    // panels without a tail
  std::int64_t group = 0;    // panels that are handed over together, or all
  bool hands_over = false;
  bool packs_a_first = false;
  std::int64_t most_rows = 0;  // of strips that are packed together
};

template <class T>
bool BlockedGemm<T>::can_sweep() const {
  return sweeps(plan_) && split_.wide_count > 0 && split_.wide == plan_.target->strip_vectors;
}

template <class T>
void BlockedGemm<T>::sweep(const Block& block, std::int64_t column, const Block& next) {
  const std::int64_t lanes = plan_.target->lanes;
  const RowSplit<T> split = strips(block.rows);
  Sweep sweep{.block = block, .next = next, .column = column, .width = columns_of(0)};
  const bool has_tail = split_.narrow_count == 0 && split_.tail < lanes;
  sweep.columns = split_.wide_count * sweep.width - (has_tail ? lanes - split_.tail : 0);
  sweep.whole = split_.wide_count - (has_tail ? 1 : 0);
  sweep.hands_over = plan_.hands_over && is_last_;
  // The buffer of tiles side by side and one below the other, all side by side.
  sweep.group = sweep.hands_over ? handed_over_panels(plan_) * kHandedOverTiles : split_.wide_count;
  sweep.packs_a_first = !has_packing_tiles(split) || !can_read_in_place();
  const std::int64_t most = sweep.packs_a_first ? kStripsTogether : 1;
  sweep.most_rows = most * split.big;
  std::int64_t row = block.row;
  const auto run_part = [&](std::int64_t count, int height) {
    for (std::int64_t i = 0; i < count; i += most) {
      row = sweep_strips(sweep, row, std::min(most, count - i), height);
    }
  };
  run_part(split.big_count, split.big);
  if (split.small_count > 0) run_part(split.small_count, split.big - 1);
  extras_.b_block = 0;
}

/// Strips from `row` on, packed together if not by tiles. Returns the row after them.
template <class T>
std::int64_t BlockedGemm<T>::sweep_strips(const Sweep& sweep, std::int64_t row, std::int64_t count,
                                          int height) {
  GemmTile<T> tile = begin_tile();
  if (sweep.packs_a_first) pack_a(sweep.block.k, row, {.big_count = count, .big = height});
  tile.row = row;
  tile.a = packed_a_;
  for (std::int64_t i = 0; i < count; ++i) {
    sweep_strip(sweep, tile, {i, 1, count}, height);
    if (sweep.packs_a_first) tile.a += strip_size(height);
    tile.row += height;
  }
  return tile.row;
}

/// The strip at `begin`, one of those that are packed together.
template <class T>
void BlockedGemm<T>::sweep_strip(const Sweep& sweep, const GemmTile<T>& begin,
                                 const Progress& strips, int height) {
  const Block& block = sweep.block;
  const std::int64_t panels = split_.wide_count;
  const bool packs_b = block.packs_b && begin.row == block.row;
  T* c = plan_.hands_over ? c_ + (begin.row - block.row) * c_row_
                          : c_ + begin.row * plan_.n + sweep.column;
  for (std::int64_t p = 0, count = 0; p < panels; p += count) {
    const std::int64_t first = p / sweep.group * sweep.group;
    const std::int64_t end = std::min(first + sweep.group, panels);
    const bool packs_a = p == 0 && !sweep.packs_a_first;
    count = packs_a || packs_b || p == sweep.whole ? 1 : std::min(sweep.whole, end) - p;
    const std::int64_t column = sweep.column + p * sweep.width;
    GemmTile<T> tile = begin;
    if (packs_a) {
      set_a_in_place(tile, block.k, begin.row);
      extras_.packed_a = packed_a_;
    }
    tile.blocks = count;
    tile.tail = p < sweep.whole ? plan_.target->lanes : split_.tail;
    tile.b = block.b + p * sweep.width * steps_;
    tile.b_step = sweep.width;
    extras_.b_block = sweep.width * steps_;
    tile.c = c + p * sweep.width;
    set_addends(tile, begin.row, column);
    extras_.start_block = is_first_ ? sweep.width * plan_.start_column : sweep.width;
    if (sweep.hands_over) {
      tile.c = handed_over_ + (p - first) * sweep.width;
      tile.c_row = sweep.group * sweep.width;
    }
    set_sweep_ahead(
        sweep, begin.row + (strips.all - strips.at) * height,
        {strips.at * panels + p, count, strips.all * panels},
        {(begin.row - block.row) * panels + p * height, count * height, block.rows * panels});
    const GemmStripA a = strip_of(plan_.transpose_a, !packs_a);
    const auto& fns = plan_.target->strip[static_cast<int>(a)];
    const bool packs = packs_b && find_b(sweep, p, fns[1][height - 1] != nullptr, tile);
    fns[packs ? 1 : 0][height - 1](tile);
    if (!sweep.hands_over || p + count < end) continue;
    const std::int64_t at = first * sweep.width;
    operands_.finished(operands_.context,
                       {.c = handed_over_,
                        .c_row = tile.c_row,
                        .row = begin.row,
                        .rows = height,
                        .column = sweep.column + at,
                        .columns = std::min(end * sweep.width, sweep.columns) - at});
  }
}

/// Panel p of B for the first strip: in place, if a tile can pack it, or else packed now. Returns
/// whether it is in place.
template <class T>
bool BlockedGemm<T>::find_b(const Sweep& sweep, std::int64_t p, bool can_pack, GemmTile<T>& tile) {
  const std::int64_t column = sweep.column + p * sweep.width;
  const std::int64_t count = std::min(sweep.width, sweep.column + columns_ - column);
  T* panel = sweep.block.b + p * sweep.width * steps_;
  if (!can_pack || !can_pack_b() || count < sweep.width) {
    pack_panels(sweep.block.k, column, count, sweep.width, panel);
    return false;
  }
  tile.b = b_at(column, sweep.block.k);
  tile.b_step = plan_.n;
  extras_.packed_b = panel;
  return true;
}

/// What tiles fetch: their shares of the rows of A that are packed next, from `below` on or in the
/// next block, and of the next block's part of B.
template <class T>
void BlockedGemm<T>::set_sweep_ahead(const Sweep& sweep, std::int64_t below,
                                     const Progress& of_strips, const Progress& of_block) {
  const Block& block = sweep.block;
  const Block& next = sweep.next;
  const bool has_next = next.k < plan_.k;
  for (GemmAhead<T>& part : extras_.ahead) part = {};
  if (plan_.a_source) {
    if (has_next) {
      const std::int64_t steps = steps_from(next.k);
      extras_.ahead[0] = share_of_a(of_block, next.row, next.rows, next.k, steps);
    }
  } else if (const std::int64_t left = block.row + block.rows - below; left > 0) {
    const std::int64_t rows = std::min(sweep.most_rows, left);
    extras_.ahead[0] = share_of_a(of_strips, below, rows, block.k, steps_);
  } else if (has_next) {
    const std::int64_t rows = std::min(sweep.most_rows, next.rows);
    extras_.ahead[0] = share_of_a(of_strips, next.row, rows, next.k, steps_from(next.k));
  }
  if (has_next && next.k != block.k) {
    const std::int64_t steps = steps_from(next.k);
    const std::int64_t lines = steps * sweep.columns / kLine;
    extras_.ahead[1] = next.packs_b ? share_of_b(of_block, sweep.column, columns_, next.k, steps)
                                    : share_of(of_block, next.b, lines, kLine, kLine);
  }
  extras_.ahead_rows = std::max(extras_.ahead[0].rows, extras_.ahead[1].rows);
}

template bool BlockedGemm<float>::can_sweep() const;
template bool BlockedGemm<double>::can_sweep() const;
template void BlockedGemm<float>::sweep(const Block& block, std::int64_t column, const Block& next);
template void BlockedGemm<double>::sweep(const Block& block, std::int64_t column,
                                         const Block& next);

}  // namespace onnxgrad::device
