#ifndef ONNXGRAD_DEVICE_CPU_PACKED_GEMM_H_
#define ONNXGRAD_DEVICE_CPU_PACKED_GEMM_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "device/cpu/gemm_plan.h"

// Products of many small matrices with one matrix B, as the steps of a recurrence have them: op(B)
// is written once in the order in which the innermost loops read it, then every product reads that.
// For one thread; several may share what is packed.

namespace onnxgrad::device {

/// C = A op(B) + start, with op(B) [k, n]. What is known at plan time; trivially copyable.
template <class T>
struct PackedGemm {
  std::int64_t k = 0;
  std::int64_t n = 0;
  int lanes = 1;
  ColumnSplit<T> columns = {};

  /// The tiles for m rows of A.
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
    std::int64_t steps = -1;       ///< of k that are summed, the first ones; -1: all
    std::int64_t columns = -1;     ///< of C that are needed, the first ones; -1: all
    /// Parts of matrices that are prefetched into the L2 cache meanwhile, if there are
    /// kGemmLongSum steps or more.
    std::array<GemmPrefetch<T>, 2> prefetch = {};
  };

  static PackedGemm prepare(std::int64_t k, std::int64_t n);
  Rows rows(std::int64_t m) const;
  /// Elements of op(B) as pack() writes it.
  std::int64_t packed_size() const;
  /// B: [k, n], or [n, k] if `transpose`; `b_row` elements from row to row. `packed`: 64-byte
  /// aligned, packed_size() elements.
  void pack(const T* b, std::ptrdiff_t b_row, bool transpose, T* packed) const;
  /// Sums run over k in an order that depends on the sizes only.
  void run(const Rows& rows, const Operands& operands) const;
};

/// C = A^T B, or C += A^T B, with A [rows, m] and B [rows, n] in blocks of rows: gradients of
/// weights, summed over the steps of a recurrence while these are cached. Trivially copyable.
template <class T>
struct RowSumGemm {
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t block = 0;  ///< most rows
  int lanes = 1;
  ColumnSplit<T> columns = {};  ///< of B

  /// Tiles for the columns of A that make up a vector, and for those after the last whole one.
  struct Tiles {
    RowSplit<T> whole = {};
    RowSplit<T> rest = {};
  };
  Tiles wide = {};
  Tiles narrow = {};

  struct Operands {
    const T* a = nullptr;  ///< as pack_a() writes it
    const T* b = nullptr;  ///< as pack_b() writes it
    std::int64_t rows = 0;
    bool adds = false;
    T* c = nullptr;  ///< [m, n]
  };

  static RowSumGemm prepare(std::int64_t m, std::int64_t n, std::int64_t block);
  /// Elements of all columns of A, which several products may share, and of B.
  std::int64_t a_size() const;
  std::int64_t b_size() const;
  /// Rows [first, first + count) of a block. `packed` is 64-byte aligned; `a_row`: from one row of
  /// A to the next.
  void pack_a(const T* a, std::ptrdiff_t a_row, std::int64_t first, std::int64_t count,
              T* packed) const;
  void pack_b(const T* b, std::int64_t first, std::int64_t count, T* packed) const;
  void run(const Operands& operands) const;
};

}  // namespace onnxgrad::device

#endif  // ONNXGRAD_DEVICE_CPU_PACKED_GEMM_H_
