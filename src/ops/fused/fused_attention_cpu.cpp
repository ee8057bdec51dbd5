#include <fmt/format.h>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "device/cpu/half_gemm_pairs.h"
#include "device/cpu/threads.h"
#include "ir/builder.h"
#include "opdef/attention.h"
#include "opdef/kernel.h"
#include "ops/fused/attention_forward_cpu.h"
#include "ops/fused/attention_rows.h"
#include "ops/fused/attention_worker_cpu.h"
#include "ops/kernel_support.h"

// Attention and its gradient (opdef/attention.h). For each key head, K and V are packed once; then
// blocks of rows of scores are computed, used and forgotten: they take a part of the L2 cache, not
// memory. The gradient computes them again from the statistics of each row. (Rabe and Staats, 2021;
// Dao et al., FlashAttention, 2022, whose D is sum(dy y) of a row, `along` here.)

namespace onnxgrad::ops::fused_attention_cpu {
namespace {

/// (dy, y, stats or shares, q, k, v, masks...) -> (dq, dk, dv, dscore).
template <class T>
class Backward : public Worker<T> {
 public:
  Backward(const Task<T>& task, std::byte* const* args, std::byte* scratch,
           const opdef::Launch& launch)
      : Worker<T>(task, args, 6, scratch, launch),
        dq_(6 + static_cast<int>(task.masks.size())),
        stats_(reinterpret_cast<const T*>(args[2])),
        dscore_(reinterpret_cast<T*>(args[dq_ + 3])) {}

  void run(std::int64_t key_head) {
    const Task<T>& task = this->task_;
    task.uses_pairs ? pack_pairs(key_head) : pack_keys_and_values(key_head);
    const std::int64_t blocks = (task.queries() + task.block_rows - 1) / task.block_rows;
    // Keys that the first block does not see get nothing from it.
    adds_ = blocks * task.groups > 1 || task.causal;
    if (adds_) {
      clear(dq_ + 1, task.dk, key_head);
      clear(dq_ + 2, task.dv, key_head);
    }
    for (std::int64_t i = 0; i < blocks * task.groups; ++i) {
      const std::int64_t row = i % blocks * task.block_rows;
      run_block(key_head, key_head * task.groups + i / blocks, row,
                std::min(task.block_rows, task.queries() - row));
    }
  }

 private:
  void pack_pairs(std::int64_t key_head) const {
    const Task<T>& task = this->task_;
    if (!task.stores_shares) {
      this->pack_pair_columns(task.pair_keys, 4, task.k, key_head, task.pair_k);
    }
    this->pack_pair_columns(task.pair_values, 5, task.v, key_head, task.pair_v);
    if (!task.dq.is_present()) return;
    const std::uint16_t* k = this->halves(4, task.k, key_head);
    std::uint32_t* packed = this->pair_scratch(task.pair_k_rows);
    if (task.k.column == 1) {
      task.pair_sum_keys.pack_rows(k, task.k.row, packed);
    } else {
      task.pair_sum_keys.pack_columns(k, task.k.column, packed,
                                      this->pair_scratch(task.pair_lines));
    }
  }

  void pack_keys_and_values(std::int64_t key_head) const {
    const Task<T>& task = this->task_;
    const Rows<T> k = this->rows(4, task.k, key_head, 0, task.keys(), task.wide_k);
    const Rows<T> v = this->rows(5, task.v, key_head, 0, task.keys(), task.wide_v);
    if (!task.stores_shares) {
      this->pack(task.times_keys, k, true, this->scratch(task.packed_k_columns));
    }
    this->pack(task.times_values, v, true, this->scratch(task.packed_v_columns));
    if (task.dq.is_present()) {
      this->pack(task.sum_keys, k, false, this->scratch(task.packed_k_rows));
    }
  }

  void clear(int arg, const Heads& heads, std::int64_t key_head) const {
    if (!heads.is_present()) return;
    for (std::int64_t i = 0; i < heads.rows; ++i) {
      std::fill_n(this->output(arg, heads, key_head, i), heads.columns, T(0));
    }
  }

  /// The block with products of pairs.
  void run_pair_block(std::int64_t key_head, std::int64_t head, std::int64_t row,
                      std::int64_t count) const {
    const Task<T>& task = this->task_;
    float* scores = this->scratch(task.scores);
    float* dscores = this->scratch(task.dscores);
    std::uint16_t* shares = this->half_scratch(task.pair_shares);
    std::uint16_t* gradients = this->half_scratch(task.pair_dscores);
    const std::int64_t seen = task.seen(row + count);
    const std::int64_t length = device::PairProduct::padded(task.keys());
    if (!task.stores_shares) {
      this->multiply_pairs(task.pair_keys, 3, task.q, head, row, count, seen, task.pair_k, scores,
                           task.score_row);
    }
    this->multiply_pairs(task.pair_values, 0, task.dy, head, row, count, seen, task.pair_v, dscores,
                         task.score_row);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t own = task.seen(row + i + 1);
      float* x = scores + i * task.score_row;
      float* dx = dscores + i * task.score_row;
      run_row(x, dx, nullptr, head, row + i, own);
      const auto keep = [&](std::uint16_t* to, const float* from) {
        task.narrow(to, from, own);
        std::fill(to + own, to + device::PairProduct::padded(seen), std::uint16_t{0});
      };
      keep(shares + i * length, x);
      keep(gradients + i * length, dx);
    }
    if (task.dq.is_present()) {
      task.pair_sum_keys.run({.a = gradients,
                              .a_row = length,
                              .packed = this->pair_scratch(task.pair_k_rows),
                              .c = this->output(dq_, task.dq, head, row),
                              .c_row = task.dq.row,
                              .rows = count,
                              .columns = task.k.columns,
                              .steps = seen});
    }
    sum_pairs(gradients, seen, this->halves(3, task.q, head, row), task.q, count, dq_ + 1, task.dk,
              key_head);
    sum_pairs(shares, seen, this->halves(0, task.dy, head, row), task.dy, count, dq_ + 2, task.dv,
              key_head);
  }

  /// result[key head] (+)= (rows of scores)' (rows of `b`).
  void sum_pairs(const std::uint16_t* scores, std::int64_t seen, const std::uint16_t* b,
                 const Heads& heads, std::int64_t count, int arg, const Heads& result,
                 std::int64_t key_head) const {
    if (!result.is_present() || seen == 0) return;
    const Task<T>& task = this->task_;
    std::uint16_t* columns = this->half_scratch(task.pair_columns);
    device::pad_columns(scores, device::PairProduct::padded(task.keys()), seen, count, columns,
                        this->pair_scratch(task.pair_lines));
    const device::PairProduct product{.steps = count, .columns = heads.columns};
    std::uint32_t* packed = this->pair_scratch(task.pair_rows);
    product.pack_rows(b, heads.row, packed);
    product.run({.a = columns,
                 .a_row = device::PairProduct::padded(count),
                 .packed = packed,
                 .c = this->output(arg, result, key_head),
                 .c_row = result.row,
                 .rows = seen,
                 .columns = heads.columns,
                 .steps = count,
                 .adds = adds_});
  }

  void run_block(std::int64_t key_head, std::int64_t head, std::int64_t row, std::int64_t count) {
    const Task<T>& task = this->task_;
    if constexpr (std::is_same_v<T, float>) {
      if (task.uses_pairs) return run_pair_block(key_head, head, row, count);
    }
    T* scores = this->scratch(task.scores);
    T* dscores = this->scratch(task.dscores);
    const std::int64_t seen = task.seen(row + count);
    const Rows<T> q = this->rows(3, task.q, head, row, count, task.wide_q);
    const Rows<T> dy = this->rows(0, task.dy, head, row, count, task.wide_dy);
    if (!task.stores_shares) {
      task.times_keys.run(task.times_keys.rows(count),
                          {.a = q.at,
                           .a_row = q.row,
                           .packed = this->scratch(task.packed_k_columns),
                           .c = scores,
                           .c_row = task.score_row,
                           .columns = seen});
    }
    task.times_values.run(task.times_values.rows(count),
                          {.a = dy.at,
                           .a_row = dy.row,
                           .packed = this->scratch(task.packed_v_columns),
                           .c = dscores,
                           .c_row = task.score_row,
                           .columns = seen});
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t own = task.seen(row + i + 1);
      T* x = scores + i * task.score_row;
      T* dx = dscores + i * task.score_row;
      run_row(x, dx, dy.at + i * dy.row, head, row + i, own);
      std::fill(x + own, x + seen, T(0));
      std::fill(dx + own, dx + seen, T(0));
    }
    if (task.dq.is_present()) {
      task.sum_keys.run(task.sum_keys.rows(count), {.a = dscores,
                                                    .a_row = task.score_row,
                                                    .packed = this->scratch(task.packed_k_rows),
                                                    .c = this->output(dq_, task.dq, head, row),
                                                    .c_row = task.dq.row,
                                                    .steps = seen});
    }
    sum_block(task.sum_q, q.at, q.row, count, dscores, seen, task.packed_q, dq_ + 1, task.dk,
              key_head);
    sum_block(task.sum_dy, dy.at, dy.row, count, scores, seen, task.packed_dy, dq_ + 2, task.dv,
              key_head);
  }

  /// x and dx become the shares of a row and the gradient of its scores times the scale.
  void run_row(T* x, T* dx, const T* dy, std::int64_t head, std::int64_t row,
               std::int64_t count) const {
    const Task<T>& task = this->task_;
    T* dscore =
        dscore_ == nullptr ? nullptr : dscore_ + (head * task.queries() + row) * task.keys();
    if (dscore != nullptr) std::fill(dscore + count, dscore + task.keys(), T(0));
    attention_rows::RowGradient<T> gradient{
        .x = x, .dx = dx, .dscore = dscore, .factor = task.scale};
    const bool is_undefined = task.narrow != nullptr ? read_rounded(gradient, head, row, count)
                                                     : read_shares(gradient, head, row);
    if (task.dropped > 0) {
      T* keep = this->scratch(task.keep);
      this->draw(keep, head, row, count);
      gradient.keep = keep;
    }
    // A row that has one such share has no other.
    if (is_undefined) return run_undefined_row(gradient, head, row, count);
    if (task.narrow != nullptr) {
      gradient.along = sum_along(gradient, count);
    } else {
      const Rows<T> y = this->rows(1, task.y, head, row, 1, task.wide_y);
      gradient.along = attention_rows::dot(dy, y.at, task.y.columns);
      if (!task.stores_shares) gradient.scale = this->mask(x, head, row, count);
    }
    attention_rows::gradient(gradient, count);
  }

  /// The shares of a row, or what they are computed from; true if they are NaN.
  bool read_shares(attention_rows::RowGradient<T>& gradient, std::int64_t head,
                   std::int64_t row) const {
    const Task<T>& task = this->task_;
    const T* stats =
        stats_ + (task.stores_shares ? task.keys() : 2) * (head * task.queries() + row);
    if (task.stores_shares) {
      gradient.p = stats;
    } else {
      gradient.stats = {stats[0], stats[1]};
    }
    return std::isnan(task.stores_shares ? stats[0] : stats[1]);
  }

  /// The same with shares that are rounded, stored or computed again from the scores in x.
  bool read_rounded(attention_rows::RowGradient<T>& gradient, std::int64_t head, std::int64_t row,
                    std::int64_t count) const {
    const Task<T>& task = this->task_;
    T* shares = this->scratch(task.shares);
    auto* halves = reinterpret_cast<std::uint16_t*>(shares + task.score_row);
    if (task.stores_shares) {
      const auto* stored = reinterpret_cast<const std::uint16_t*>(stats_);
      task.widen(shares, stored + (head * task.queries() + row) * task.keys(), count);
    } else {
      std::copy_n(gradient.x, count, shares);
      const auto stats =
          attention_rows::exponentials(shares, this->mask(shares, head, row, count), count);
      attention_rows::scale(shares, stats.inverse, count);
      this->round(shares, halves, count);
    }
    gradient.p = shares;
    return count > 0 && std::isnan(shares[0]);
  }

  /// sum(p dp) of a row.
  T sum_along(const attention_rows::RowGradient<T>& gradient, std::int64_t count) const {
    if (gradient.keep == nullptr) return attention_rows::dot(gradient.p, gradient.dx, count);
    std::copy_n(gradient.p, count, gradient.x);
    attention_rows::multiply(gradient.x, gradient.keep, count);
    return attention_rows::dot(gradient.x, gradient.dx, count);
  }

  // Shares that are NaN: nothing if the loss does not depend on them, else NaN where no boolean
  // mask stops it.
  void run_undefined_row(const attention_rows::RowGradient<T>& gradient, std::int64_t head,
                         std::int64_t row, std::int64_t count) const {
    const bool is_unused =
        std::all_of(gradient.dx, gradient.dx + count, [](T v) { return v == 0; });
    const T share = is_unused ? T(0) : std::numeric_limits<T>::quiet_NaN();
    for (std::int64_t j = 0; j < count; ++j) {
      gradient.x[j] = share;
      gradient.dx[j] = this->is_hidden(head, row, j) ? T(0) : share;
      if (gradient.dscore != nullptr) gradient.dscore[j] = gradient.dx[j];
    }
  }

  /// result[key head] (+)= (rows of scores)' (rows of `b`).
  void sum_block(const PackedGemm<T>& gemm, const T* b, std::int64_t b_row, std::int64_t count,
                 const T* scores, std::int64_t seen, std::int64_t packed_offset, int arg,
                 const Heads& result, std::int64_t key_head) const {
    if (!result.is_present() || seen == 0) return;
    T* packed = this->scratch(packed_offset);
    PackedGemm<T> part = gemm;
    part.k = count;
    part.pack(b, b_row, false, packed);
    T* c = this->output(arg, result, key_head);
    part.run(part.rows(seen), {.a = scores,
                               .a_row = 1,
                               .a_step = this->task_.score_row,
                               .packed = packed,
                               .c = c,
                               .c_row = result.row,
                               .start = adds_ ? c : nullptr,
                               .start_row = result.row});
  }

  int dq_;
  const T* stats_;
  T* dscore_;
  bool adds_ = false;
};

template <class T>
void run_forward(const void* data, std::byte* const* args, const opdef::Launch& launch) {
  const auto& task = *static_cast<const Task<T>*>(data);
  std::byte* scratch = args[3 + task.masks.size() + 2];
  const std::int64_t key_heads = task.k.count();
  const std::int64_t blocks =
      task.groups * ((task.queries() + task.block_rows - 1) / task.block_rows);
  // Few heads: threads share the blocks of each, and all of them pack its keys and values.
  const std::int64_t pieces = task.threads == 1 || key_heads >= task.threads
                                  ? 1
                                  : std::min<std::int64_t>(blocks, task.threads);
  const auto run_part = [&](const device::Share& share) {
    const Forward<T> forward(task, args, scratch + share.thread * task.scratch_bytes, launch);
    const std::int64_t total = key_heads * pieces;
    for (std::int64_t i = share.first(total); i < share.last(total); ++i) {
      const std::int64_t piece = i % pieces;
      forward.run(i / pieces, blocks * piece / pieces, blocks * (piece + 1) / pieces);
    }
  };
  device::on_threads(task.threads, run_part);
}

template <class T>
void run_backward(const void* data, std::byte* const* args, const opdef::Launch& launch) {
  const auto& task = *static_cast<const Task<T>*>(data);
  std::byte* scratch = args[6 + task.masks.size() + 4];
  const auto run_part = [&](const device::Share& share) {
    Backward<T> backward(task, args, scratch + share.thread * task.scratch_bytes, launch);
    const std::int64_t total = task.k.count();
    for (std::int64_t i = share.first(total); i < share.last(total); ++i) {
      backward.run(i);
    }
  };
  device::on_threads(task.threads, run_part);
}

/// Rows of a block so that its scores fill a part of the L2 cache; fewer if a triangle is left out,
/// which blocks follow in steps.
std::int64_t choose_rows(std::int64_t queries, std::int64_t row_bytes, bool is_causal) {
  constexpr std::int64_t kFewest = 24;
  const std::int64_t block_bytes = is_causal ? 32 << 10 : 128 << 10;
  const std::int64_t most = std::max(kFewest, block_bytes / row_bytes / kFewest * kFewest);
  const std::int64_t blocks = (queries + most - 1) / most;
  const std::int64_t rows = (queries + blocks - 1) / blocks;
  return std::min(queries, (rows + 5) / 6 * 6);
}

template <class T>
void plan_common(const opdef::KernelRequest& request, const opdef::Attention& op, Task<T>& task) {
  task.q = Heads::of(op.q);
  task.k = Heads::of(op.k);
  task.v = Heads::of(op.v);
  task.y = Heads::of(op.y);
  for (const opdef::AttentionMask& mask : op.masks) {
    task.masks.push_back({.kind = mask.kind, .fill = mask.fill, .heads = Heads::of(mask.view)});
  }
  task.scale = static_cast<T>(op.scale);
  task.causal = op.causal;
  task.causal_offset = op.causal_offset;
  task.stores_shares = op.stores_shares;
  if (op.shares_type != DataType::kUndefined) {
    task.narrow = device::find_conversion(DataType::kFloat32, op.shares_type);
    task.widen = device::find_conversion(op.shares_type, DataType::kFloat32);
    task.rounds_forward = !op.rounds_gradient;
  }
  if (op.dropout > 0) {
    task.dropped = static_cast<std::uint64_t>(std::ldexp(op.dropout, 32));
    task.kept = static_cast<T>(1 / (1 - op.dropout));
    task.draws = DrawStream::of(request.node);
  }
  task.groups = task.q.count() / task.k.count();
  const std::int64_t line = 64 / static_cast<std::int64_t>(sizeof(T));
  task.score_row = (task.keys() + line - 1) / line * line;
  task.block_rows =
      choose_rows(task.queries(), task.score_row * static_cast<std::int64_t>(sizeof(T)), op.causal);
}

double product_flops(std::int64_t heads, std::int64_t queries, std::int64_t keys,
                     std::int64_t size) {
  return 2.0 * static_cast<double>(heads) * static_cast<double>(queries) *
         static_cast<double>(keys) * static_cast<double>(size);
}

template <class T>
opdef::KernelOffer offer(Task<T> task, opdef::KernelFn fn, const Scratch& scratch, double flops,
                         int threads, bool shares_blocks) {
  constexpr double kParallelFlops = 2e6;
  const std::int64_t most = shares_blocks ? threads : task.k.count();
  task.threads =
      flops < kParallelFlops ? 1 : static_cast<int>(std::min<std::int64_t>(threads, most));
  task.scratch_bytes = scratch.size;
  const std::string label =
      fmt::format("{} of {}x{}x{}{}{}", task.q.count(), task.queries(), task.keys(), task.q.columns,
                  task.causal ? " causal" : "", task.uses_pairs ? " tiles AMX" : "");
  const int count = task.threads;
  opdef::KernelOffer made = prepared(fn, std::move(task), label);
  made.kernel.scratch_bytes = scratch.size * count;
  made.kernel.flops = flops;
  return made;
}

/// Room for an operand in float32 if it is stored in 16 bits.
template <class T>
void plan_widened(const opdef::KernelRequest& request, std::size_t input, std::int64_t rows,
                  Heads& heads, Scratch& scratch, std::int64_t& copy) {
  if (input >= request.inputs.size() || !is_half(request.inputs[input].dtype)) return;
  heads.widen = device::find_conversion(request.inputs[input].dtype, DataType::kFloat32);
  copy = scratch.add<T>(rows * heads.columns);
}

/// Where operands are bfloat16 and shares are rounded to it, products are those of AMX. Only keys
/// may be stored as columns.
template <class T>
bool can_use_pairs(const opdef::KernelRequest& request, std::initializer_list<std::size_t> operands,
                   const opdef::Attention& op, const Task<T>& task) {
  constexpr std::int64_t kFewest = 32;
  const bool is_bfloat16 = std::all_of(operands.begin(), operands.end(), [&](std::size_t i) {
    return request.inputs[i].dtype == DataType::kBfloat16;
  });
  const auto has_rows = [](const Heads& heads) { return !heads.is_present() || heads.column == 1; };
  return std::is_same_v<T, float> && is_bfloat16 && has_rows(task.q) && has_rows(task.v) &&
         has_rows(task.dy) && op.shares_type == DataType::kBfloat16 && task.rounds_forward &&
         task.dropped == 0 && task.block_rows >= kFewest / 2 && task.keys() >= kFewest &&
         task.q.columns >= kFewest / 2 && device::cpu_has_amx();
}

template <class T>
void plan_pairs(Scratch& scratch, Task<T>& task) {
  using device::PairProduct;
  const std::int64_t size = std::max(task.q.columns, task.v.columns);
  const std::int64_t longest = std::max({size, task.keys(), task.block_rows});
  const std::int64_t shares = task.block_rows * PairProduct::padded(task.keys());
  task.uses_pairs = true;
  task.pair_keys = {.steps = task.q.columns, .columns = task.keys()};
  task.pair_k = scratch.add<std::uint32_t>(task.pair_keys.packed_size());
  task.pair_v = scratch.add<std::uint32_t>(task.pair_values.packed_size());
  task.pair_lines = scratch.add<std::uint32_t>(16 * PairProduct::padded(longest));
  task.pair_q = scratch.add<std::uint16_t>(task.block_rows * PairProduct::padded(size));
  task.pair_shares = scratch.add<std::uint16_t>(shares);
}

template <class T>
void plan_gradient_pairs(Scratch& scratch, Task<T>& task) {
  using device::PairProduct;
  task.pair_values = {.steps = task.v.columns, .columns = task.keys()};
  plan_pairs(scratch, task);
  task.pair_sum_keys = {.steps = task.keys(), .columns = task.k.columns};
  task.pair_k_rows = scratch.add<std::uint32_t>(task.pair_sum_keys.packed_size());
  const std::int64_t rows = PairProduct::padded(task.block_rows);
  task.pair_dscores =
      scratch.add<std::uint16_t>(task.block_rows * PairProduct::padded(task.keys()));
  task.pair_columns = scratch.add<std::uint16_t>(task.keys() * rows);
  const PairProduct widest{.steps = task.block_rows,
                           .columns = std::max(task.q.columns, task.v.columns)};
  task.pair_rows = scratch.add<std::uint32_t>(widest.packed_size());
}

template <class T>
opdef::KernelOffer offer_forward(const opdef::KernelRequest& request) {
  Task<T> task;
  const auto op = opdef::Attention::read(request.node);
  plan_common(request, op, task);
  task.times_keys = PackedGemm<T>::prepare(task.q.columns, task.keys());
  task.sum_values = PackedGemm<T>::prepare(task.keys(), task.v.columns);
  Scratch scratch;
  task.packed_k_columns = scratch.add<T>(task.times_keys.packed_size());
  task.packed_v_rows = scratch.add<T>(task.sum_values.packed_size());
  task.scores = scratch.add<T>(task.block_rows * task.score_row);
  task.dscores = scratch.add<T>(task.block_rows);  // 1 / sum of each row
  plan_widened<T>(request, 0, task.block_rows, task.q, scratch, task.wide_q);
  plan_widened<T>(request, 1, task.keys(), task.k, scratch, task.wide_k);
  plan_widened<T>(request, 2, task.keys(), task.v, scratch, task.wide_v);
  task.keep = scratch.add<T>(task.dropped > 0 ? task.score_row : 0);
  task.shares = scratch.add<T>(task.narrow != nullptr ? task.score_row : 0);
  if (can_use_pairs(request, {0, 1, 2}, op, task)) {
    task.pair_values = {.steps = task.keys(), .columns = task.v.columns};
    plan_pairs(scratch, task);
  }
  const double flops =
      product_flops(task.q.count(), task.queries(), task.keys(), task.q.columns + task.v.columns);
  return offer(std::move(task), run_forward<T>, scratch, flops, request.threads, true);
}

template <class T>
opdef::KernelOffer offer_backward(const opdef::KernelRequest& request) {
  Task<T> task;
  const auto op = opdef::AttentionGradient::read(request.node);
  plan_common(request, op.forward, task);
  task.dy = Heads::of(op.dy);
  task.dq = Heads::of(op.dq);
  task.dk = Heads::of(op.dk);
  task.dv = Heads::of(op.dv);
  task.times_keys = PackedGemm<T>::prepare(task.q.columns, task.keys());
  task.times_values = PackedGemm<T>::prepare(task.v.columns, task.keys());
  task.sum_keys = PackedGemm<T>::prepare(task.keys(), task.k.columns);
  task.sum_q = PackedGemm<T>::prepare(task.block_rows, task.q.columns);
  task.sum_dy = PackedGemm<T>::prepare(task.block_rows, task.v.columns);
  Scratch scratch;
  task.packed_k_columns = scratch.add<T>(task.times_keys.packed_size());
  task.packed_v_columns = scratch.add<T>(task.times_values.packed_size());
  task.packed_k_rows = scratch.add<T>(task.sum_keys.packed_size());
  task.packed_q = scratch.add<T>(task.sum_q.packed_size());
  task.packed_dy = scratch.add<T>(task.sum_dy.packed_size());
  task.scores = scratch.add<T>(task.block_rows * task.score_row);
  task.dscores = scratch.add<T>(task.block_rows * task.score_row);
  plan_widened<T>(request, 0, task.block_rows, task.dy, scratch, task.wide_dy);
  plan_widened<T>(request, 1, 1, task.y, scratch, task.wide_y);
  plan_widened<T>(request, 3, task.block_rows, task.q, scratch, task.wide_q);
  plan_widened<T>(request, 4, task.keys(), task.k, scratch, task.wide_k);
  plan_widened<T>(request, 5, task.keys(), task.v, scratch, task.wide_v);
  task.keep = scratch.add<T>(task.dropped > 0 ? task.score_row : 0);
  task.shares = scratch.add<T>(task.narrow != nullptr ? 2 * task.score_row : 0);
  if (can_use_pairs(request, {0, 3, 4, 5}, op.forward, task)) plan_gradient_pairs(scratch, task);
  const double flops =
      product_flops(task.q.count(), task.queries(), task.keys(),
                    (task.stores_shares ? 2 : 3) * task.q.columns + 2 * task.v.columns);
  return offer(std::move(task), run_backward<T>, scratch, flops, request.threads, false);
}

/// The type in which to compute, or kUndefined. Operands from `first_view` on, and the two before
/// the shares, may be of 16 bits if that is float32; masks, of which `masks` is the first, not.
DataType computed_type(const opdef::KernelRequest& request, std::size_t first_view,
                       std::size_t masks) {
  const auto type_of = [](DataType stored) {
    return is_half(stored) ? DataType::kFloat32 : stored;
  };
  const DataType type = type_of(request.inputs[0].dtype);
  for (std::size_t i = 0; i < request.inputs.size(); ++i) {
    const opdef::TensorDesc& input = request.inputs[i];
    if (!input.is_present() || input.dtype == DataType::kBool) continue;
    const bool is_view = i < masks && (i < 2 || i >= first_view);
    if (is_view ? type_of(input.dtype) != type : i >= masks && input.dtype != type) {
      return DataType::kUndefined;
    }
  }
  // The statistics or shares of the forward pass come after y.
  for (std::size_t i = 0; i < (first_view == 0 ? 1 : request.outputs.size()); ++i) {
    if (request.outputs[i].is_present() && request.outputs[i].dtype != type) {
      return DataType::kUndefined;
    }
  }
  return type;
}

opdef::KernelOffer offer_attention(const opdef::KernelRequest& request) {
  switch (computed_type(request, 0, 3)) {
    case DataType::kFloat32:
      return offer_forward<float>(request);
    case DataType::kFloat64:
      return offer_forward<double>(request);
    default:
      return decline_dtype(request, request.inputs[0].dtype);
  }
}

opdef::KernelOffer offer_attention_gradient(const opdef::KernelRequest& request) {
  switch (computed_type(request, 3, 6)) {
    case DataType::kFloat32:
      return offer_backward<float>(request);
    case DataType::kFloat64:
      return offer_backward<double>(request);
    default:
      return decline_dtype(request, request.inputs[0].dtype);
  }
}

}  // namespace

void register_fused_attention_cpu(opdef::KernelRegistry& registry) {
  registry.add(ir::kFusedDomain, opdef::kAttention, 0, offer_attention);
  registry.add(ir::kFusedDomain, opdef::kAttentionGradient, 0, offer_attention_gradient);
}

}  // namespace onnxgrad::ops::fused_attention_cpu
