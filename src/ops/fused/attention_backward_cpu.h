#ifndef ONNXGRAD_OPS_FUSED_ATTENTION_BACKWARD_CPU_H_
#define ONNXGRAD_OPS_FUSED_ATTENTION_BACKWARD_CPU_H_

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "device/cpu/f16_gemm_vnni.h"
#include "ops/fused/attention_rows_simd.h"
#include "ops/fused/attention_worker_cpu.h"
#include "ops/kernel_support.h"

// Worker of one thread for AttentionGradient.

namespace onnxgrad::ops::fused_attention_cpu {

/// args: (dy, y, stats or probabilities, q, k, v, masks...) -> (dq, dk, dv, dscore).
template <class T>
class Backward : public Worker<T> {
 public:
  Backward(const Task<T>& task, KernelArgs args, std::byte* scratch, const Launch& launch)
      : Worker<T>(task, args, 6, scratch, launch),
        dq_(6 + static_cast<int>(task.masks.size())),
        stats_(args.at<T>(2)),
        dscore_(args.at<T>(dq_ + 3)) {}

  /// Computes a key head.
  void run(std::int64_t key_head) {
    const Task<T>& task = this->task_;
    task.amx != nullptr ? pack_vnni(key_head) : pack_keys_and_values(key_head);
    const std::int64_t blocks = ceil_div(task.queries(), task.block_rows);
    // With a causal mask, the first block may not reach all keys, whose gradients then start at
    // zero.
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
  void pack_vnni(std::int64_t key_head) const {
    const Task<T>& task = this->task_;
    if (!task.stores_probabilities) {
      this->pack_vnni_columns(task.vnni_keys, 4, task.k, key_head, task.vnni_k);
    }
    this->pack_vnni_columns(task.vnni_values, 5, task.v, key_head, task.vnni_v);
    if (!task.dq.is_present()) return;
    const std::uint16_t* k = this->halves(4, task.k, key_head);
    std::uint32_t* packed = this->scratch(task.vnni_k_rows);
    if (task.k.column == 1) {
      task.vnni_sum_keys.pack_rows(k, task.k.row, packed);
    } else {
      task.vnni_sum_keys.pack_columns(k, task.k.column, packed, this->scratch(task.vnni_lines));
    }
  }

  void pack_keys_and_values(std::int64_t key_head) const {
    const Task<T>& task = this->task_;
    const Rows<T> k = this->rows(4, task.k, key_head, 0, task.keys(), task.wide_k);
    const Rows<T> v = this->rows(5, task.v, key_head, 0, task.keys(), task.wide_v);
    if (!task.stores_probabilities) {
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

  /// Computes a block with bfloat16 matrix products (VNNI layout).
  void run_vnni_block(std::int64_t key_head, std::int64_t head, std::int64_t row,
                      std::int64_t count) const {
    const Task<T>& task = this->task_;
    float* scores = this->scratch(task.scores);
    float* dscores = this->scratch(task.dscores);
    std::uint16_t* probabilities = this->scratch(task.vnni_probabilities);
    std::uint16_t* gradients = this->scratch(task.vnni_dscores);
    const std::int64_t seen = task.seen(row + count);
    const std::int64_t length = device::VnniGemm::padded(task.keys());
    if (!task.stores_probabilities) {
      this->multiply_vnni(task.vnni_keys, 3, task.q, head, row, count, seen, task.vnni_k, scores,
                          task.score_row);
    }
    this->multiply_vnni(task.vnni_values, 0, task.dy, head, row, count, seen, task.vnni_v, dscores,
                        task.score_row);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t own = task.seen(row + i + 1);
      float* x = scores + i * task.score_row;
      float* dx = dscores + i * task.score_row;
      run_row(x, dx, nullptr, head, row + i, own);
      const auto keep = [&](std::uint16_t* to, const float* from) {
        task.narrow(to, from, own);
        std::fill(to + own, to + device::VnniGemm::padded(seen), std::uint16_t{0});
      };
      keep(probabilities + i * length, x);
      keep(gradients + i * length, dx);
    }
    if (task.dq.is_present()) {
      task.vnni_sum_keys.run({.a = gradients,
                              .a_row = length,
                              .packed = this->scratch(task.vnni_k_rows),
                              .c = this->output(dq_, task.dq, head, row),
                              .c_row = task.dq.row,
                              .rows = count,
                              .columns = task.k.columns,
                              .steps = seen});
    }
    sum_vnni(gradients, seen, this->halves(3, task.q, head, row), task.q, count, dq_ + 1, task.dk,
             key_head);
    sum_vnni(probabilities, seen, this->halves(0, task.dy, head, row), task.dy, count, dq_ + 2,
             task.dv, key_head);
  }

  /// Computes result[key head] (+)= (rows of scores)' (rows of `b`), in bfloat16.
  void sum_vnni(const std::uint16_t* scores, std::int64_t seen, const std::uint16_t* b,
                const Heads& heads, std::int64_t count, int arg, const Heads& result,
                std::int64_t key_head) const {
    if (!result.is_present() || seen == 0) return;
    const Task<T>& task = this->task_;
    std::uint16_t* columns = this->scratch(task.vnni_columns);
    device::pad_columns(task.isa, scores, device::VnniGemm::padded(task.keys()), seen, count,
                        columns, this->scratch(task.vnni_lines));
    const device::VnniGemm product{
        .steps = count, .columns = heads.columns, .amx = task.amx, .isa = task.isa};
    std::uint32_t* packed = this->scratch(task.vnni_rows);
    product.pack_rows(b, heads.row, packed);
    product.run({.a = columns,
                 .a_row = device::VnniGemm::padded(count),
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
      if (task.amx != nullptr) return run_vnni_block(key_head, head, row, count);
    }
    T* scores = this->scratch(task.scores);
    T* dscores = this->scratch(task.dscores);
    const std::int64_t seen = task.seen(row + count);
    const Rows<T> q = this->rows(3, task.q, head, row, count, task.wide_q);
    const Rows<T> dy = this->rows(0, task.dy, head, row, count, task.wide_dy);
    if (!task.stores_probabilities) {
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

  /// Replaces x by a row's probabilities and dx by the gradient of its scores times the scale.
  void run_row(T* x, T* dx, const T* dy, std::int64_t head, std::int64_t row,
               std::int64_t count) const {
    const Task<T>& task = this->task_;
    T* dscore =
        dscore_ == nullptr ? nullptr : dscore_ + (head * task.queries() + row) * task.keys();
    if (dscore != nullptr) std::fill(dscore + count, dscore + task.keys(), T(0));
    attention_rows::RowGradient<T> gradient{
        .x = x, .dx = dx, .dscore = dscore, .factor = task.scale};
    const bool is_undefined = task.narrow != nullptr ? read_rounded(gradient, head, row, count)
                                                     : read_probabilities(gradient, head, row);
    if (task.dropped > 0) {
      T* keep = this->scratch(task.keep);
      this->draw(keep, head, row, count);
      gradient.keep = keep;
    }
    // A row has either only NaN probabilities or none.
    if (is_undefined) return run_undefined_row(gradient, head, row, count);
    if (task.narrow != nullptr) {
      gradient.along = sum_along(gradient, count);
    } else {
      const Rows<T> y = this->rows(1, task.y, head, row, 1, task.wide_y);
      gradient.along = attention_rows::dot(this->task_.isa, dy, y.at, task.y.columns);
      if (!task.stores_probabilities) gradient.scale = this->mask(x, head, row, count);
    }
    attention_rows::gradient(this->task_.isa, gradient, count);
  }

  /// Reads the probabilities of a row, or the statistics to recompute them; returns true if they
  /// are NaN.
  bool read_probabilities(attention_rows::RowGradient<T>& gradient, std::int64_t head,
                          std::int64_t row) const {
    const Task<T>& task = this->task_;
    const T* stats =
        stats_ + (task.stores_probabilities ? task.keys() : 2) * (head * task.queries() + row);
    if (task.stores_probabilities) {
      gradient.p = stats;
    } else {
      gradient.stats = {stats[0], stats[1]};
    }
    return std::isnan(task.stores_probabilities ? stats[0] : stats[1]);
  }

  /// Reads rounded probabilities of a row, stored or recomputed from the scores in x; returns true
  /// if they are NaN.
  bool read_rounded(attention_rows::RowGradient<T>& gradient, std::int64_t head, std::int64_t row,
                    std::int64_t count) const {
    const Task<T>& task = this->task_;
    T* probabilities = this->scratch(task.probabilities);
    auto* halves = reinterpret_cast<std::uint16_t*>(probabilities + task.score_row);
    if (task.stores_probabilities) {
      const auto* stored = reinterpret_cast<const std::uint16_t*>(stats_);
      task.widen(probabilities, stored + (head * task.queries() + row) * task.keys(), count);
    } else {
      std::copy_n(gradient.x, count, probabilities);
      const auto stats = attention_rows::exponentials(
          this->task_.isa, probabilities, this->mask(probabilities, head, row, count), count);
      attention_rows::scale(this->task_.isa, probabilities, stats.inverse, count);
      this->round(probabilities, halves, count);
    }
    gradient.p = probabilities;
    return count > 0 && std::isnan(probabilities[0]);
  }

  /// Returns sum(p dp) of a row.
  T sum_along(const attention_rows::RowGradient<T>& gradient, std::int64_t count) const {
    if (gradient.keep == nullptr)
      return attention_rows::dot(this->task_.isa, gradient.p, gradient.dx, count);
    std::copy_n(gradient.p, count, gradient.x);
    attention_rows::multiply(this->task_.isa, gradient.x, gradient.keep, count);
    return attention_rows::dot(this->task_.isa, gradient.x, gradient.dx, count);
  }

  // Handles NaN probabilities: the gradient is zero if the loss does not depend on them, else NaN
  // where no boolean mask hides the score.
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

  /// Computes result[key head] (+)= (rows of scores)' (rows of `b`).
  void sum_block(const PackedGemm<T>& gemm, const T* b, std::int64_t b_row, std::int64_t count,
                 const T* scores, std::int64_t seen, ScratchArray<T> packed_array, int arg,
                 const Heads& result, std::int64_t key_head) const {
    if (!result.is_present() || seen == 0) return;
    T* packed = this->scratch(packed_array);
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

}  // namespace onnxgrad::ops::fused_attention_cpu

#endif  // ONNXGRAD_OPS_FUSED_ATTENTION_BACKWARD_CPU_H_
