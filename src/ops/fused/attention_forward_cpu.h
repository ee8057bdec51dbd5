#ifndef ONNXGRAD_OPS_FUSED_ATTENTION_FORWARD_CPU_H_
#define ONNXGRAD_OPS_FUSED_ATTENTION_FORWARD_CPU_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "ops/fused/attention_rows_simd.h"
#include "ops/fused/attention_worker_cpu.h"
#include "ops/kernel_support.h"

// Worker of one thread for Attention.

namespace onnxgrad::ops::fused_attention_cpu {

/// args: (q, k, v, masks...) -> (y, stats or probabilities).
template <class T>
class Forward : public Worker<T> {
 public:
  Forward(const Task<T>& task, KernelArgs args, std::byte* scratch, const Launch& launch)
      : Worker<T>(task, args, 3, scratch, launch),
        y_(3 + static_cast<int>(task.masks.size())),
        stats_(args.at<T>(y_ + 1)) {}

  /// Computes blocks [first, last) of the query heads that share key head `key_head`.
  void run(std::int64_t key_head, std::int64_t first, std::int64_t last) {
    const Task<T>& task = this->task_;
    task.amx != nullptr ? pack_vnni(key_head) : pack_keys_and_values(key_head);
    const std::int64_t blocks = ceil_div(task.queries(), task.block_rows);
    for (std::int64_t i = first; i < last; ++i) {
      const std::int64_t row = i % blocks * task.block_rows;
      run_block(key_head * task.groups + i / blocks, row,
                std::min(task.block_rows, task.queries() - row));
    }
  }

 private:
  void pack_keys_and_values(std::int64_t key_head) const {
    const Task<T>& task = this->task_;
    const Rows<T> k = this->rows(1, task.k, key_head, 0, task.keys(), task.wide_k);
    const Rows<T> v = this->rows(2, task.v, key_head, 0, task.keys(), task.wide_v);
    this->pack(task.times_keys, k, true, this->scratch(task.packed_k_columns));
    this->pack(task.sum_values, v, false, this->scratch(task.packed_v_rows));
  }

  void pack_vnni(std::int64_t key_head) const {
    const Task<T>& task = this->task_;
    this->pack_vnni_columns(task.vnni_keys, 1, task.k, key_head, task.vnni_k);
    task.vnni_values.pack_rows(this->halves(2, task.v, key_head), task.v.row,
                               this->scratch(task.vnni_v));
  }

  /// Computes scores = q k' of a block, for the first `seen` keys.
  void multiply_keys(std::int64_t head, std::int64_t row, std::int64_t count, std::int64_t seen,
                     T* scores, std::int64_t score_row) const {
    const Task<T>& task = this->task_;
    if constexpr (std::is_same_v<T, float>) {
      if (task.amx != nullptr) {
        return this->multiply_vnni(task.vnni_keys, 0, task.q, head, row, count, seen, task.vnni_k,
                                   scores, score_row);
      }
    }
    const Rows<T> q = this->rows(0, task.q, head, row, count, task.wide_q);
    task.times_keys.run(task.times_keys.rows(count),
                        {.a = q.at,
                         .a_row = q.row,
                         .packed = this->scratch(task.packed_k_columns),
                         .c = scores,
                         .c_row = score_row,
                         .columns = seen});
  }

  /// Computes y = p v of a block.
  void multiply_values(const T* probabilities, std::int64_t share_row, std::int64_t count,
                       std::int64_t seen, T* y) const {
    const Task<T>& task = this->task_;
    if constexpr (std::is_same_v<T, float>) {
      if (task.amx != nullptr) {
        return task.vnni_values.run({.a = this->scratch(task.vnni_probabilities),
                                     .a_row = device::VnniGemm::padded(task.keys()),
                                     .packed = this->scratch(task.vnni_v),
                                     .c = y,
                                     .c_row = task.y.row,
                                     .rows = count,
                                     .columns = task.v.columns,
                                     .steps = seen});
      }
    }
    task.sum_values.run(task.sum_values.rows(count), {.a = probabilities,
                                                      .a_row = share_row,
                                                      .packed = this->scratch(task.packed_v_rows),
                                                      .c = y,
                                                      .c_row = task.y.row,
                                                      .steps = seen});
  }

  void run_block(std::int64_t head, std::int64_t row, std::int64_t count) const {
    const Task<T>& task = this->task_;
    // Probabilities that are stored without rounding are computed in place.
    const bool is_stored = task.stores_probabilities && task.narrow == nullptr;
    T* scores = is_stored ? stats_ + (head * task.queries() + row) * task.keys()
                          : this->scratch(task.scores);
    const std::int64_t score_row = is_stored ? task.keys() : task.score_row;
    const std::int64_t seen = task.seen(row + count);
    multiply_keys(head, row, count, seen, scores, score_row);
    T* inverse = this->scratch(task.dscores);
    const bool divides = task.stores_probabilities || task.rounds_forward;
    for (std::int64_t i = 0; i < count; ++i) {
      T* x = scores + i * score_row;
      const std::int64_t own = task.seen(row + i + 1);
      const auto stats =
          attention_rows::exponentials(task.isa, x, this->mask(x, head, row + i, own), own);
      std::fill(x + own, x + seen, T(0));
      inverse[i] = stats.inverse;
      if (divides) attention_rows::scale(task.isa, x, stats.inverse, own);
      if (task.amx != nullptr) {
        keep_vnni(x, head, row, i, own, seen);
      } else if (task.narrow != nullptr) {
        keep_f16(x, head, row + i, own);
      }
      if (!task.stores_probabilities && stats_ != nullptr) {
        T* to = stats_ + 2 * (head * task.queries() + row + i);
        to[0] = stats.largest;
        to[1] = stats.inverse;
      }
    }
    if (task.dropped > 0) {
      scores = drop(scores, score_row, head, row, count, seen);
    }
    T* y = this->output(y_, task.y, head, row);
    multiply_values(scores, task.dropped > 0 ? task.score_row : score_row, count, seen, y);
    if (divides) return;
    for (std::int64_t i = 0; i < count; ++i) {
      attention_rows::scale(task.isa, y + i * task.y.row, inverse[i], task.y.columns);
    }
  }

  /// Rounds a row of probabilities and stores it, if either is wanted.
  void keep_f16(T* x, std::int64_t head, std::int64_t row, std::int64_t count) const {
    const Task<T>& task = this->task_;
    auto* halves = reinterpret_cast<std::uint16_t*>(this->scratch(task.probabilities));
    if (task.stores_probabilities) {
      halves =
          reinterpret_cast<std::uint16_t*>(stats_) + (head * task.queries() + row) * task.keys();
    }
    if (task.rounds_forward) {
      this->round(x, halves, count);
    } else if (task.stores_probabilities) {
      task.narrow(halves, x, count);
    }
  }

  /// Rounds and stores row `i` of a block from `row` on, for a matrix product in VNNI layout.
  void keep_vnni(const T* x, std::int64_t head, std::int64_t row, std::int64_t i, std::int64_t own,
                 std::int64_t seen) const {
    const Task<T>& task = this->task_;
    std::uint16_t* to =
        this->scratch(task.vnni_probabilities) + i * device::VnniGemm::padded(task.keys());
    task.narrow(to, x, own);
    std::fill(to + own, to + device::VnniGemm::padded(seen), std::uint16_t{0});
    if (!task.stores_probabilities) return;
    std::copy_n(
        to, own,
        reinterpret_cast<std::uint16_t*>(stats_) + (head * task.queries() + row + i) * task.keys());
  }

  /// Applies dropout to a block; returns the copy in scratch.
  T* drop(const T* scores, std::int64_t score_row, std::int64_t head, std::int64_t row,
          std::int64_t count, std::int64_t seen) const {
    const Task<T>& task = this->task_;
    T* dropped = this->scratch(task.scores);
    T* keep = this->scratch(task.keep);
    for (std::int64_t i = 0; i < count; ++i) {
      T* to = dropped + i * task.score_row;
      if (to != scores + i * score_row) std::copy_n(scores + i * score_row, seen, to);
      this->draw(keep, head, row + i, seen);
      attention_rows::multiply(task.isa, to, keep, seen);
    }
    return dropped;
  }

  int y_;
  T* stats_;
};

}  // namespace onnxgrad::ops::fused_attention_cpu

#endif  // ONNXGRAD_OPS_FUSED_ATTENTION_FORWARD_CPU_H_
