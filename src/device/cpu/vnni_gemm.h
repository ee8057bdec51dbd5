#ifndef ONNXGRAD_DEVICE_CPU_VNNI_GEMM_H_
#define ONNXGRAD_DEVICE_CPU_VNNI_GEMM_H_

#include <cstddef>
#include <cstdint>

#include "device/cpu/convert.h"
#include "device/isa.h"

// GEMM of bfloat16 matrices that fit into a cache, on AMX, for kernels that compute a larger result
// by blocks and decide themselves when to pack.

namespace onnxgrad::device {

struct AmxTarget;  // amx_target.h

/// C = A B with sums in float32: A is [rows, steps], B [steps, columns], packed once in VNNI
/// layout.
struct VnniGemm {
  std::int64_t steps = 0;
  std::int64_t columns = 0;
  const AmxTarget* amx = nullptr;
  Isa isa = {};

  /// Returns `steps` rounded up to a multiple of the steps that AMX reads at a time. A row of A has
  /// that many elements; those after `steps` must be finite.
  static std::int64_t padded(std::int64_t steps);

  std::int64_t packed_size() const;  ///< VNNI pairs of the packed B
  std::int64_t line_size() const;    ///< VNNI pairs of scratch for pack_columns
  /// Packs B from rows [steps, columns] that are `row` elements apart.
  void pack_rows(const std::uint16_t* b, std::ptrdiff_t row, std::uint32_t* packed) const;
  /// Packs B from its transpose [columns, steps], whose rows are `row` elements apart.
  void pack_columns(const std::uint16_t* b, std::ptrdiff_t row, std::uint32_t* packed,
                    std::uint32_t* lines) const;

  struct Operands {
    const std::uint16_t* a = nullptr;
    std::ptrdiff_t a_row = 0;  ///< row stride in elements
    const std::uint32_t* packed = nullptr;
    float* c = nullptr;
    std::ptrdiff_t c_row = 0;
    std::int64_t rows = 0;
    std::int64_t columns = 0;  ///< number of B's first columns to use
    std::int64_t steps =
        0;              ///< number of B's first rows to use; A is zero from there to padded(steps)
    bool adds = false;  ///< to C; else replaces it
  };
  void run(const Operands& operands) const;
};

/// Packs `count` columns of B from its transpose [count, steps], rows `row` elements apart, into a
/// panel of `width` columns and `pairs` VNNI pairs, with zeros beyond `steps` and `count`. With
/// `narrow`, `from` is float32 and rounded by it. `lines`: scratch of 16 rows, of `steps` rounded
/// up to an even number.
void pack_vnni_columns(Isa isa, const void* from, std::ptrdiff_t row, std::int64_t steps,
                       std::int64_t pairs, std::int64_t count, std::int64_t width,
                       std::uint32_t* to, std::uint16_t* lines, ConvertFn narrow = nullptr);

/// Copies rows [rows, steps] that are `row` elements apart to rows of `length`, padded with zeros.
void pad_rows(const std::uint16_t* from, std::ptrdiff_t row, std::int64_t rows, std::int64_t steps,
              std::int64_t length, std::uint16_t* to);

/// Transposes [steps, rows] to rows of padded(steps) elements. `lines`: scratch of 16 rows of
/// `rows` VNNI pairs, rounded up to a multiple of 16.
void pad_columns(Isa isa, const std::uint16_t* from, std::ptrdiff_t row, std::int64_t rows,
                 std::int64_t steps, std::uint16_t* to, std::uint32_t* lines);

}  // namespace onnxgrad::device

#endif  // ONNXGRAD_DEVICE_CPU_VNNI_GEMM_H_
