#ifndef ONNXGRAD_OPS_FUSED_ATTENTION_WORKER_CPU_H_
#define ONNXGRAD_OPS_FUSED_ATTENTION_WORKER_CPU_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "device/cpu/convert.h"
#include "device/cpu/packed_gemm.h"
#include "device/cpu/scratch_layout.h"
#include "device/cpu/vnni_gemm.h"
#include "opdef/attention.h"
#include "ops/fused/attention_rows_simd.h"
#include "ops/kernel_support.h"
#include "ops/random/draws.h"

// Parts shared by the kernels of attention and its gradient: the plan, and masking, dropout and
// packing by a thread.

namespace onnxgrad::ops::fused_attention_cpu {

using device::PackedGemm;
using device::ScratchArray;
using device::ScratchLayout;
using opdef::StridedView;

/// View of an operand whose leading axes are flattened to a list of offsets.
struct Heads {
  std::vector<std::int64_t> offsets;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t row = 0;               ///< stride
  std::int64_t column = 0;            ///< stride
  device::ConvertFn widen = nullptr;  ///< conversion of f16 or bf16 to float

  static Heads of(const StridedView& view) {
    Heads heads;
    if (view.dims.size() < 2) return heads;
    const std::size_t leading = view.dims.size() - 2;
    heads.offsets = {view.offset};
    for (std::size_t axis = 0; axis < leading; ++axis) {
      std::vector<std::int64_t> next;
      for (const std::int64_t offset : heads.offsets) {
        for (std::int64_t i = 0; i < view.dims[axis]; ++i) {
          next.push_back(offset + i * view.strides[axis]);
        }
      }
      heads.offsets = std::move(next);
    }
    heads.rows = view.dims[leading];
    heads.columns = view.dims[leading + 1];
    heads.row = view.strides[leading];
    heads.column = view.strides[leading + 1];
    return heads;
  }
  bool is_present() const { return !offsets.empty(); }
  std::int64_t count() const { return std::ssize(offsets); }
};

/// Rows of a head in the computation's type.
template <class T>
struct Rows {
  const T* at = nullptr;
  std::int64_t row = 0;     ///< stride
  std::int64_t column = 0;  ///< stride
};

struct Mask {
  opdef::MaskKind kind = {};
  double fill = 0;
  Heads heads = {};
};

template <class T>
struct Task {
  Heads q, k, v, y, dy, dq, dk, dv;
  std::vector<Mask> masks;
  T scale = 1;
  bool causal = false;
  std::int64_t causal_offset = 0;
  bool stores_probabilities = false;
  bool rounds_forward = false;         ///< rounds the probabilities before the product with v
  device::ConvertFn narrow = nullptr;  ///< rounds probabilities to f16/bf16, or nullptr
  device::ConvertFn widen = nullptr;
  std::uint64_t dropped = 0;  ///< random words below this drop an element
  T kept = 1;                 ///< factor of kept elements
  RandomStream draws = {};
  int threads = 1;
  device::Isa isa = {};

  std::int64_t groups = 1;      ///< query heads per key head
  std::int64_t block_rows = 0;  ///< rows of queries
  std::int64_t score_row = 0;   ///< elements from one row of scores to the next

  PackedGemm<T> times_keys, times_values;  ///< q k', dy v': keys are columns
  PackedGemm<T> sum_keys, sum_values;      ///< p v, ds k: keys are summed
  PackedGemm<T> sum_q, sum_dy;             ///< ds' q, p' dy: the rows of a block are summed
  device::ScratchBlocks thread_scratch = {};
  ScratchArray<T> packed_k_columns, packed_v_columns, packed_k_rows, packed_v_rows;
  ScratchArray<T> packed_q, packed_dy, scores, dscores, keep, probabilities;
  ScratchArray<T> wide_q, wide_k, wide_v, wide_y, wide_dy;  ///< float copies

  /// Computes products in bfloat16 (VNNI layout), of rounded probabilities; nullptr: in float32.
  const device::AmxTarget* amx = nullptr;
  device::VnniGemm vnni_keys, vnni_values;  ///< q k', and p v or, of the gradient, dy v'
  device::VnniGemm vnni_sum_keys;           ///< ds k
  ScratchArray<std::uint32_t> vnni_k, vnni_v, vnni_lines, vnni_k_rows, vnni_rows;
  ScratchArray<std::uint16_t> vnni_q, vnni_probabilities, vnni_dscores, vnni_columns;

  std::int64_t keys() const { return k.rows; }
  std::int64_t queries() const { return q.rows; }
  /// Returns the number of keys that query rows before `end` attend to.
  std::int64_t seen(std::int64_t end) const {
    return causal ? std::clamp<std::int64_t>(end + causal_offset, 0, keys()) : keys();
  }
};

/// Base of the workers: one thread's state in a call.
template <class T>
class Worker {
 public:
  Worker(const Task<T>& task, KernelArgs args, int first_mask, std::byte* scratch,
         const Launch& launch)
      : task_(task), args_(args), first_mask_(first_mask), scratch_(scratch), launch_(launch) {}

 protected:
  template <class Element>
  Element* scratch(ScratchArray<Element> array) const {
    return array.in(scratch_);
  }
  const T* input(int arg, const Heads& heads, std::int64_t head, std::int64_t row = 0) const {
    return args_.at<const T>(arg) + heads.offsets[static_cast<std::size_t>(head)] + row * heads.row;
  }
  /// Returns rows [first, first + count): in place, or converted to `copy` in scratch.
  Rows<T> rows(int arg, const Heads& heads, std::int64_t head, std::int64_t first,
               std::int64_t count, ScratchArray<T> copy) const {
    if (heads.widen == nullptr) {
      return {input(arg, heads, head, first), heads.row, heads.column};
    }
    const auto* from = args_.at<std::uint16_t>(arg) +
                       heads.offsets[static_cast<std::size_t>(head)] + first * heads.row;
    T* to = scratch(copy);
    const bool by_rows = heads.column == 1;
    const std::int64_t lines = by_rows ? count : heads.columns;
    const std::int64_t length = by_rows ? heads.columns : count;
    const std::int64_t step = by_rows ? heads.row : heads.column;
    for (std::int64_t i = 0; i < lines; ++i) heads.widen(to + i * length, from + i * step, length);
    return {to, by_rows ? length : 1, by_rows ? 1 : length};
  }
  /// Returns the address of row `row` of a head of an f16 or bf16 operand.
  const std::uint16_t* halves(int arg, const Heads& heads, std::int64_t head,
                              std::int64_t row = 0) const {
    return args_.at<const std::uint16_t>(arg) + heads.offsets[static_cast<std::size_t>(head)] +
           row * heads.row;
  }
  T* output(int arg, const Heads& heads, std::int64_t head, std::int64_t row = 0) const {
    return args_.at<T>(arg) + heads.offsets[static_cast<std::size_t>(head)] + row * heads.row;
  }

  /// Masks row `row` of `head`; returns the scale that remains to be applied.
  T mask(T* x, std::int64_t head, std::int64_t row, std::int64_t count) const {
    T scale = task_.scale;
    for (std::size_t i = 0; i < task_.masks.size(); ++i) {
      const Mask& mask = task_.masks[i];
      const std::byte* from = args_[first_mask_ + static_cast<int>(i)];
      const std::int64_t at =
          mask.heads.offsets[static_cast<std::size_t>(head)] + row * mask.heads.row;
      if (mask.kind == opdef::MaskKind::kAdd) {
        attention_rows::add_mask(task_.isa, x, scale, reinterpret_cast<const T*>(from) + at,
                                 mask.heads.column, count);
      } else {
        if (scale != 1) attention_rows::scale(task_.isa, x, scale, count);
        const bool kept = mask.kind == opdef::MaskKind::kKeep;
        const auto* flags = reinterpret_cast<const std::uint8_t*>(from) + at;
        const T fill = static_cast<T>(mask.fill);
        for (std::int64_t j = 0; j < count; ++j) {
          x[j] = (flags[j * mask.heads.column] != 0) == kept ? x[j] : fill;
        }
      }
      scale = 1;
    }
    return scale;
  }

  /// Returns true if a boolean mask hides this score.
  bool is_hidden(std::int64_t head, std::int64_t row, std::int64_t column) const {
    for (std::size_t i = 0; i < task_.masks.size(); ++i) {
      const Mask& mask = task_.masks[i];
      if (mask.kind == opdef::MaskKind::kAdd) continue;
      const std::int64_t at = mask.heads.offsets[static_cast<std::size_t>(head)] +
                              row * mask.heads.row + column * mask.heads.column;
      const bool flag = args_[first_mask_ + static_cast<int>(i)][at] != std::byte{0};
      if (flag != (mask.kind == opdef::MaskKind::kKeep)) return true;
    }
    return false;
  }

  /// Fills `keep` with the dropout factor of each probability of a row: the random numbers that
  /// Dropout generates for these elements.
  void draw(T* keep, std::int64_t head, std::int64_t row, std::int64_t count) const {
    const std::int64_t first = (head * task_.queries() + row) * task_.keys();
    for (std::int64_t block = first / 4; block * 4 < first + count; ++block) {
      const auto words = task_.draws.block(launch_, static_cast<std::uint64_t>(block));
      for (std::int64_t i = 0; i < 4; ++i) {
        const std::int64_t j = block * 4 + i - first;
        if (j < 0 || j >= count) continue;
        keep[j] = words[static_cast<std::size_t>(i)] >= task_.dropped ? task_.kept : T(0);
      }
    }
  }

  /// Rounds a row of probabilities to 16 bits; `halves` receives the rounded values.
  void round(T* x, std::uint16_t* halves, std::int64_t count) const {
    task_.narrow(halves, x, count);
    task_.widen(x, halves, count);
  }

  static void pack(const PackedGemm<T>& gemm, const Rows<T>& from, bool by_columns, T* packed) {
    // op(B) is [size, keys] if the keys are columns; the operand may be row-major or column-major.
    const bool is_transposed = from.column != 1;
    gemm.pack(from.at, is_transposed ? from.column : from.row, by_columns != is_transposed, packed);
  }

  /// Packs keys, or values in their place, as columns in VNNI layout.
  void pack_vnni_columns(const device::VnniGemm& product, int arg, const Heads& heads,
                         std::int64_t head, ScratchArray<std::uint32_t> packed) const {
    const std::uint16_t* from = halves(arg, heads, head);
    if (heads.column == 1) {
      product.pack_columns(from, heads.row, scratch(packed), scratch(task_.vnni_lines));
    } else {
      product.pack_rows(from, heads.column, scratch(packed));
    }
  }

  /// Computes c = rows of an operand times the packed matrix, in bfloat16.
  void multiply_vnni(const device::VnniGemm& product, int arg, const Heads& heads,
                     std::int64_t head, std::int64_t row, std::int64_t count, std::int64_t seen,
                     ScratchArray<std::uint32_t> packed, float* c, std::int64_t c_row) const {
    const std::uint16_t* a = halves(arg, heads, head, row);
    std::int64_t a_row = heads.row;
    if (const auto length = device::VnniGemm::padded(heads.columns); length != heads.columns) {
      device::pad_rows(a, a_row, count, heads.columns, length, scratch(task_.vnni_q));
      a = scratch(task_.vnni_q);
      a_row = length;
    }
    device::VnniGemm::Operands operands{.a = a,
                                        .a_row = a_row,
                                        .packed = scratch(packed),
                                        .c_row = c_row,
                                        .rows = count,
                                        .columns = seen,
                                        .steps = heads.columns};
    operands.c = c;
    product.run(operands);
  }

  const Task<T>& task_;
  KernelArgs args_;
  int first_mask_;
  std::byte* scratch_;
  const Launch& launch_;
};

}  // namespace onnxgrad::ops::fused_attention_cpu

#endif  // ONNXGRAD_OPS_FUSED_ATTENTION_WORKER_CPU_H_
