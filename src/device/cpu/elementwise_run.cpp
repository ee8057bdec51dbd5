#include <algorithm>
#include <cstring>
#include <limits>

#include "device/cpu/convert.h"
#include "device/cpu/elementwise_plan.h"
#include "device/cpu/flush_denormals.h"
#include "device/cpu/threads.h"

namespace onnxgrad::device {
namespace {

constexpr std::size_t kMaxRank = Dims::kMaxRank;

/// Index of a row of a space, incremented row by row.
class RowIndex {
 public:
  RowIndex(const Space& space, std::int64_t row) : space_(space), axes_(space.dims.size() - 1) {
    for (std::size_t axis = axes_; axis-- > 0;) {
      index_[axis] = row % space.dims[axis];
      row /= space.dims[axis];
    }
  }

  /// Number of elements from the operand's first to the row's first one.
  std::int64_t offset(const std::vector<std::int64_t>& strides) const {
    std::int64_t sum = 0;
    for (std::size_t axis = 0; axis < axes_; ++axis) sum += index_[axis] * strides[axis];
    return sum;
  }

  void advance() {
    for (std::size_t axis = axes_; axis-- > 0;) {
      if (++index_[axis] < space_.dims[axis]) return;
      index_[axis] = 0;
    }
  }

 private:
  const Space& space_;
  std::size_t axes_;
  std::int64_t index_[kMaxRank];
};

template <class T>
void fill_identity(void* to, std::int64_t n, Fold fold) {
  T value = 0;
  if constexpr (std::is_floating_point_v<T>) {
    constexpr T kInfinity = std::numeric_limits<T>::infinity();
    value = fold == Fold::kSum ? T(0) : fold == Fold::kMax ? -kInfinity : kInfinity;
  } else {
    value = fold == Fold::kSum   ? T(0)
            : fold == Fold::kMax ? std::numeric_limits<T>::min()
                                 : std::numeric_limits<T>::max();
  }
  std::fill_n(static_cast<T*>(to), n, value);
}

TileOp combining(Fold fold) {
  using opdef::ExprOp;
  return tile_op(fold == Fold::kSum   ? ExprOp::kAdd
                 : fold == Fold::kMax ? ExprOp::kMax
                                      : ExprOp::kMin);
}

/// One thread's pass over a range of tiles.
class Runner {
 public:
  Runner(const ElementwisePlan& plan, opdef::KernelArgs args, std::int64_t thread)
      : plan_(plan),
        args_(args),
        scratch_(plan.thread_scratch.in(args[plan.scratch_arg], thread)),
        chunk_scratch_(plan.chunk_scratch.in(args[plan.scratch_arg], thread)),
        at_(reinterpret_cast<std::byte**>(scratch_)) {
    std::byte** at = at_;
    for (const SlotBase& slot : plan.slots) {
      std::byte* base = slot.arg == SlotBase::kConstants ? plan.code.constants.get()
                        : slot.arg == plan.scratch_arg   ? scratch_
                                                         : args[slot.arg];
      *at++ = base + slot.offset;
    }
  }

  void run(std::int64_t first, std::int64_t last) {
    start();
    if (!plan_.fold_once) start_totals(0, plan_.reduced_size);
    if (first == last) return;
    if (plan_.in_blocks) {
      run_blocks(first, last);
    } else {
      run_parts(first, last);
    }
  }

  void run(const opdef::Block& block) {
    start();
    chunk_scratch_ = plan_.chunk_scratch.in(args_[plan_.scratch_arg], block.part);
    start_totals(block.column, block.columns);
    block.visit_ranges(
        [this](std::int64_t first, std::int64_t last) { run_elements(first, last); });
  }

  std::byte* totals(const Reduction& reduction) const {
    return reduction.totals.in(chunk_scratch_);
  }

 private:
  /// Computes the elements [first, last) of the space: parts of runs, whose columns are reduced.
  void run_elements(std::int64_t first, std::int64_t last) {
    while (first < last) {
      const std::int64_t row = first / plan_.run;
      const RowIndex index(plan_.space, row);
      const std::int64_t end = std::min(last - row * plan_.run, plan_.run);
      const std::int64_t begin = first - row * plan_.run;
      for (std::int64_t column = begin; column < end; column += plan_.tile) {
        move_to(index, column);
        if (column == begin) enter_row(index);
        const std::int64_t n = std::min(plan_.tile, end - column);
        run_part(index, column, n);
        for (const Reduction& reduction : plan_.reductions) {
          combine(reduction, column, at_[reduction.slot], n);
        }
      }
      first = row * plan_.run + end;
    }
  }

  void start() {
    for (const Transfer& load : plan_.call_loads) {
      load.convert(at_[load.slot], args_[load.memory.arg], 1);
    }
    execute(plan_.code.per_call, 1);
  }

  void execute(const std::vector<Instruction>& code, std::int64_t n) {
    for (const Instruction& i : code) i.fn(at_[i.to], at_[i.a], at_[i.b], at_[i.c], n, i.pad);
  }

  std::byte* start_of(const Mover& mover, const RowIndex& row) const {
    return args_[mover.arg] + row.offset(mover.strides) * mover.element_bytes;
  }

  // Parts of runs ---------------------------------------------------------------------------------

  void run_parts(std::int64_t first, std::int64_t last) {
    std::int64_t row = first / plan_.tiles_per_row;
    std::int64_t part = first % plan_.tiles_per_row;
    RowIndex index(plan_.space, row);
    bool enters = true;
    for (std::int64_t t = first; t < last; ++t) {
      const std::int64_t column = part * plan_.tile;
      const std::int64_t n = std::min(plan_.tile, plan_.run - column);
      if (plan_.tiles > 1) move_to(index, column);
      if (enters) enter_row(index);
      run_part(index, column, n);
      for (const Reduction& reduction : plan_.reductions) fold_part(reduction, index, column, n);
      enters = ++part == plan_.tiles_per_row;
      if (enters) {
        part = 0;
        index.advance();
      }
    }
  }

  void run_part(const RowIndex& row, std::int64_t column, std::int64_t n) {
    for (const Transfer& load : plan_.tile_loads) {
      load.convert(at_[load.slot], start_of(load.memory, row) + column * load.memory.element_bytes,
                   n);
    }
    execute(plan_.code.per_tile, n);
    for (const Transfer& store : plan_.stores) {
      store.convert(start_of(store.memory, row) + column * store.memory.element_bytes,
                    at_[store.slot], n);
    }
  }

  void move_to(const RowIndex& row, std::int64_t column) {
    for (const Mover& mover : plan_.movers) {
      at_[mover.slot] = start_of(mover, row) + column * mover.strides.back() * mover.element_bytes;
    }
  }

  void enter_row(const RowIndex& row) {
    for (const Transfer& load : plan_.row_loads) {
      load.convert(at_[load.slot], start_of(load.memory, row), 1);
    }
    execute(plan_.code.per_row, 1);
  }

  void fold_part(const Reduction& reduction, const RowIndex& row, std::int64_t column,
                 std::int64_t n) {
    const auto fold = static_cast<std::size_t>(reduction.fold);
    const std::byte* x = at_[reduction.slot];
    if (plan_.fold_once) {
      if (plan_.run_is_reduced) {
        plan_.table.fold_columns[fold](x, 1, n, n, totals(reduction));
      } else {
        plan_.table.fold_rows[fold](x, 1, n, n, totals(reduction));
      }
      return;
    }
    const std::int64_t at = row.offset(plan_.space.strides.back());
    if (plan_.run_is_reduced) {
      plan_.table.fold_columns[fold](x, 1, n, n, folds());
      combine(reduction, at, folds(), 1);
    } else {
      combine(reduction, at + column, x, n);
    }
  }

  // Blocks of whole runs --------------------------------------------------------------------------

  void run_blocks(std::int64_t first, std::int64_t last) {
    for (const Transfer& load : plan_.tile_loads) {
      if (load.once) spread(load, 0, std::min(plan_.rows, plan_.rows_per_block));
    }
    for (std::int64_t t = first; t < last; ++t) {
      const std::int64_t row = t * plan_.rows_per_block;
      const std::int64_t rows = std::min(plan_.rows_per_block, plan_.rows - row);
      const std::int64_t n = rows * plan_.run;
      const std::int64_t start = row * plan_.run;
      if (plan_.tiles > 1) {
        for (const Mover& mover : plan_.movers) {
          at_[mover.slot] = args_[mover.arg] + start * mover.element_bytes;
        }
      }
      for (const Transfer& load : plan_.tile_loads) {
        if (load.is_dense) {
          load.convert(at_[load.slot], args_[load.memory.arg] + start * load.memory.element_bytes,
                       n);
        } else if (!load.once) {
          spread(load, row, rows);
        }
      }
      execute(plan_.code.per_tile, n);
      for (const Transfer& store : plan_.stores) {
        store.convert(args_[store.memory.arg] + start * store.memory.element_bytes, at_[store.slot],
                      n);
      }
      for (const Reduction& reduction : plan_.reductions) fold_block(reduction, row, rows);
    }
  }

  /// Copies an operand's rows [row, row + rows) into its buffer, one after another.
  void spread(const Transfer& load, std::int64_t row, std::int64_t rows) {
    alignas(64) std::byte cell[kCellBytes];
    const TileFn fill = plan_.table.at(TileOp::kFill);
    const TileFn copy = plan_.table.at(TileOp::kCopy);
    const bool moves = load.memory.strides.back() != 0;
    RowIndex index(plan_.space, row);
    std::byte* to = at_[load.slot];
    if (load.once) {
      repeat_row(load, rows);
      return;
    }
    for (std::int64_t r = 0; r < rows; ++r, index.advance()) {
      const std::byte* from = start_of(load.memory, index);
      // Elements written past the end of a row are overwritten by the next row.
      if (moves && load.convert != nullptr) {
        load.convert(to, from, plan_.run);
      } else if (moves) {
        copy(to, from, nullptr, nullptr, plan_.run, true);
      } else {
        if (load.convert != nullptr) load.convert(cell, from, 1);
        fill(to, load.convert != nullptr ? cell : from, nullptr, nullptr, plan_.run, true);
      }
      to += plan_.run * plan_.element_bytes;
    }
  }

  /// Repeats an operand's only row `rows` times, doubling the copied part each time.
  void repeat_row(const Transfer& load, std::int64_t rows) {
    std::byte* to = at_[load.slot];
    const std::byte* from = args_[load.memory.arg];
    const TileFn copy = plan_.table.at(TileOp::kCopy);
    if (load.convert != nullptr) {
      load.convert(to, from, plan_.run);
    } else {
      copy(to, from, nullptr, nullptr, plan_.run, true);
    }
    for (std::int64_t done = 1; done < rows;) {
      const std::int64_t more = std::min(done, rows - done);
      copy(to + done * plan_.run * plan_.element_bytes, to, nullptr, nullptr, more * plan_.run,
           true);
      done += more;
    }
  }

  void fold_block(const Reduction& reduction, std::int64_t row, std::int64_t rows) {
    const auto fold = static_cast<std::size_t>(reduction.fold);
    const std::byte* x = at_[reduction.slot];
    const std::int64_t run = plan_.run;
    if (plan_.fold_once) {
      const FoldFn fn =
          plan_.run_is_reduced ? plan_.table.fold_columns[fold] : plan_.table.fold_rows[fold];
      fn(x, rows, run, run, totals(reduction));
      return;
    }
    RowIndex index(plan_.space, row);
    const auto& strides = plan_.space.strides.back();
    if (plan_.run_is_reduced) {
      plan_.table.fold_columns[fold](x, rows, run, run, folds());
      for (std::int64_t r = 0; r < rows; ++r, index.advance()) {
        combine(reduction, index.offset(strides), folds() + r * plan_.element_bytes, 1);
      }
      return;
    }
    for (std::int64_t r = 0; r < rows;) {  // rows with the same destination are combined
      const std::int64_t at = index.offset(strides);
      const std::int64_t start = r;
      do {
        ++r;
        index.advance();
      } while (r < rows && index.offset(strides) == at);
      plan_.table.fold_rows[fold](x + start * run * plan_.element_bytes, r - start, run, run,
                                  folds());
      combine(reduction, at, folds(), run);
    }
  }

  // Totals ----------------------------------------------------------------------------------------

  std::byte* folds() const { return plan_.folds.in(scratch_); }

  /// Starts `n` totals of each reduction, from `at` on.
  void start_totals(std::int64_t at, std::int64_t n) {
    for (const Reduction& reduction : plan_.reductions) {
      std::byte* to = totals(reduction) + at * (reduction.is_wide ? 8 : plan_.element_bytes);
      if (reduction.is_wide || plan_.code.compute == DataType::kFloat64) {
        fill_identity<double>(to, n, reduction.fold);
      } else if (plan_.code.compute == DataType::kFloat32) {
        fill_identity<float>(to, n, reduction.fold);
      } else if (plan_.code.compute == DataType::kUint64) {
        fill_identity<std::uint64_t>(to, n, reduction.fold);
      } else {
        fill_identity<std::int64_t>(to, n, reduction.fold);
      }
    }
  }

  /// totals[at : at + n] = fold(totals[at : at + n], x).
  void combine(const Reduction& reduction, std::int64_t at, const std::byte* x, std::int64_t n) {
    if (reduction.is_wide) {
      auto* to = reinterpret_cast<double*>(totals(reduction)) + at;
      return add_widened(plan_.isa, to, reinterpret_cast<const float*>(x), n);
    }
    std::byte* to = totals(reduction) + at * plan_.element_bytes;
    plan_.table.at(combining(reduction.fold))(to, to, x, nullptr, n, false);
  }

  const ElementwisePlan& plan_;
  opdef::KernelArgs args_;
  std::byte* scratch_;
  std::byte* chunk_scratch_;  // with totals
  std::byte** at_;            // the slots
};

/// Returns the totals of a chunk.
std::byte* totals_of(const ElementwisePlan& plan, const Reduction& reduction, std::byte* scratch,
                     std::int64_t chunk) {
  return reduction.totals.in(plan.chunk_scratch.in(scratch, chunk));
}

/// Combines the totals of all chunks into those of the first, in the order of the chunks.
void join_totals(const ElementwisePlan& plan, std::byte* scratch, std::int64_t chunks) {
  for (const Reduction& reduction : plan.reductions) {
    std::byte* to = totals_of(plan, reduction, scratch, 0);
    for (std::int64_t i = 1; i < chunks; ++i) {
      const std::byte* from = totals_of(plan, reduction, scratch, i);
      if (reduction.is_wide) {
        auto* sum = reinterpret_cast<double*>(to);
        const auto* part = reinterpret_cast<const double*>(from);
        for (std::int64_t i = 0; i < plan.reduced_size; ++i) sum[i] += part[i];
      } else {
        plan.table.at(combining(reduction.fold))(to, to, from, nullptr, plan.reduced_size, false);
      }
    }
  }
}

void finish(const ElementwisePlan& plan, opdef::KernelArgs args, const opdef::Launch& launch) {
  std::byte* scratch = args[plan.scratch_arg];
  for (const Reduction& reduction : plan.reductions) {
    std::byte* total = totals_of(plan, reduction, scratch, 0);
    if (reduction.is_wide) {  // to floats, in place from the front
      for (std::int64_t i = 0; i < plan.reduced_size; ++i) {
        double sum = 0;
        std::memcpy(&sum, total + i * 8, sizeof sum);
        const auto value = static_cast<float>(sum);
        std::memcpy(total + i * 4, &value, sizeof value);
      }
    }
    if (reduction.arg >= 0) reduction.convert(args[reduction.arg], total, plan.reduced_size);
  }
  if (plan.post.fn == nullptr) return;
  std::byte** table = plan.post_table.in(scratch);
  std::byte** next = table;
  for (const Reduction& reduction : plan.reductions) {
    *next++ = totals_of(plan, reduction, scratch, 0);
  }
  for (const std::int32_t arg : plan.post_args) *next++ = args[arg];
  *next = plan.post_scratch.in(scratch);
  plan.post.fn(plan.post.data.get(), table, launch);
}

/// Calls f(runner) on the calling thread.
template <class F>
void with_runner(const ElementwisePlan& plan, opdef::KernelArgs args, std::int64_t thread,
                 const F& f) {
  Runner runner(plan, args, thread);
  if (plan.flush_denormals) {
    const FlushDenormals flush;
    f(runner);
  } else {
    f(runner);
  }
}

void run_tiles(const ElementwisePlan& plan, opdef::KernelArgs args, std::int64_t thread,
               std::int64_t begin, std::int64_t end) {
  with_runner(plan, args, thread, [&](Runner& runner) { runner.run(begin, end); });
}

}  // namespace

void run_elementwise(const void* data, opdef::KernelArgs args, const opdef::Launch& launch) {
  const auto& plan = *static_cast<const ElementwisePlan*>(data);
  run_tiles(plan, args, 0, 0, plan.tiles);
  if (!plan.reductions.empty()) finish(plan, args, launch);
}

void run_elementwise_parallel(const void* data, opdef::KernelArgs args,
                              const opdef::Launch& launch) {
  const auto& plan = *static_cast<const ElementwisePlan*>(data);
  if (plan.reductions.empty()) {
    on_threads(plan.threads, chunks_of(plan.threads, plan.tiles), [&](const Chunk& chunk) {
      run_tiles(plan, args, chunk.thread, chunk.first(plan.tiles), chunk.last(plan.tiles));
    });
    return;
  }
  std::int64_t used = 1;  // totals, one of each chunk
  on_threads(plan.threads, [&](const Chunk& chunk) {
    run_tiles(plan, args, chunk.index, chunk.first(plan.tiles), chunk.last(plan.tiles));
    if (chunk.index == 0) used = chunk.count;
  });
  join_totals(plan, args[plan.scratch_arg], used);
  finish(plan, args, launch);
}

void run_elementwise_block(const void* data, opdef::KernelArgs args,
                           const opdef::Launch& /*launch*/, const opdef::Block& block) {
  with_runner(*static_cast<const ElementwisePlan*>(data), args, block.thread,
              [&](Runner& runner) { runner.run(block); });
}

void finish_elementwise_blocks(const void* data, opdef::KernelArgs args,
                               const opdef::Launch& launch) {
  const auto& plan = *static_cast<const ElementwisePlan*>(data);
  join_totals(plan, args[plan.scratch_arg], plan.block_parts);
  finish(plan, args, launch);
}

}  // namespace onnxgrad::device
