#ifndef ONNXGRAD_DEVICE_CPU_PACKED_GEMM_H_
#define ONNXGRAD_DEVICE_CPU_PACKED_GEMM_H_

#include <cstddef>
#include <cstdint>

#include "device/cpu/gemm_plan.h"
#include "device/isa.h"

// GEMM of many small matrices with one matrix B, as in the steps of a recurrence: op(B) is packed
// once in the order in which the innermost loops read it, then every GEMM reads the packed B. Each
// GEMM runs on one thread; several threads may share a packed B.

namespace onnxgrad::device {

/// The plan of C = A op(B) + start, with op(B) [k, n]; trivially copyable.
template <class T>
struct PackedGemm {
  Isa isa = {};
  std::int64_t k = 0;
  std::int64_t n = 0;
  int lanes = 1;
  ColumnSplit columns = {};

  /// Tiles of the rows of A, for wide and narrow B panels.
  struct Rows {
    RowSplit<T> wide = {};
    RowSplit<T> narrow = {};
  };

  /// All strides are in elements; rows of C are contiguous.
  struct Operands {
    const T* a = nullptr;
    std::ptrdiff_t a_row = 0;
    std::ptrdiff_t a_step = 1;  ///< from one k to the next; 1: rows of A are contiguous
    const T* packed = nullptr;
    T* c = nullptr;
    std::ptrdiff_t c_row = 0;
    const T* start = nullptr;      ///< nullptr: zero; may be `c`
    std::ptrdiff_t start_row = 0;  ///< 0: one row for all
    std::int64_t steps = -1;       ///< the first steps of k to sum over; -1: all
    std::int64_t columns = -1;     ///< the first columns of C to compute; -1: all
  };

  static PackedGemm prepare(Isa isa, std::int64_t k, std::int64_t n);
  Rows rows(std::int64_t m) const;
  /// Number of elements of op(B) as pack() writes it.
  std::int64_t packed_size() const;
  /// Packs B, [k, n], or [n, k] if `transpose`; `b_row`: row stride in elements. `packed`: 64-byte
  /// aligned, packed_size() elements.
  void pack(const T* b, std::ptrdiff_t b_row, bool transpose, T* packed) const;
  /// Packs rows [first, first + count) of a B that is not transposed, from `b` on.
  void pack_rows(const T* b, std::ptrdiff_t b_row, std::int64_t first, std::int64_t count,
                 T* packed) const;
  /// Computes C. Sums run over k in an order that depends only on the sizes.
  void run(const Rows& rows, const Operands& operands) const;
};

/// The plan of C = A^T B, or C += A^T B, with A [rows, m] and B [rows, n] in blocks of rows: weight
/// gradients, summed over the steps of a recurrence while these are cached. Trivially copyable.
template <class T>
struct RowSumGemm {
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t block = 0;  ///< maximum of rows
  int lanes = 1;
  PackedGemm<T> gemm = {};  ///< of `lanes` rows of C
  typename PackedGemm<T>::Rows whole = {}, rest = {};

  struct Operands {
    const T* a = nullptr;  ///< as pack_a() writes it
    const T* b = nullptr;  ///< as pack_b() writes it
    std::int64_t rows = 0;
    bool adds = false;
    T* c = nullptr;  ///< [m, n]
  };

  static RowSumGemm prepare(Isa isa, std::int64_t m, std::int64_t n, std::int64_t block);
  /// Numbers of elements of the packed A, which several GEMMs may share, and of the packed B.
  std::int64_t a_size() const { return round_up(m, lanes) * block; }
  std::int64_t b_size() const { return gemm.packed_size(); }
  /// Pack rows [first, first + count) of a block. `packed` is 64-byte aligned; `a_row`: row stride
  /// of A in elements.
  void pack_a(const T* a, std::ptrdiff_t a_row, std::int64_t first, std::int64_t count,
              T* packed) const;
  void pack_b(const T* b, std::int64_t first, std::int64_t count, T* packed) const {
    gemm.pack_rows(b, n, first, count, packed);
  }
  void run(const Operands& operands) const;
};

}  // namespace onnxgrad::device

#endif  // ONNXGRAD_DEVICE_CPU_PACKED_GEMM_H_
