#ifndef ONNXGRAD_DEVICE_CPU_VNNI_GEMM_H_
#define ONNXGRAD_DEVICE_CPU_VNNI_GEMM_H_

#include <cstddef>
#include <cstdint>

// Products of matrices of bfloat16 that fit into a cache, on AMX, for kernels that compute blocks
// of a larger result and choose themselves when to pack what.

namespace onnxgrad::device {

struct AmxTarget;  // amx_target.h

/// C = A B with sums in float32: A is [rows, steps], B [steps, columns], packed once.
struct VnniGemm {
  std::int64_t steps = 0;
  std::int64_t columns = 0;
  const AmxTarget* amx = nullptr;

  /// `steps` to a multiple of what AMX reads at a time: A has as many numbers in a row, those after
  /// `steps` finite.
  static std::int64_t padded(std::int64_t steps);

  std::int64_t packed_size() const;  ///< pairs
  std::int64_t line_size() const;    ///< pairs of scratch for pack_columns
  /// Packs B from rows [steps, columns], `row` numbers apart.
  void pack_rows(const std::uint16_t* b, std::ptrdiff_t row, std::uint32_t* packed) const;
  /// Packs B from columns [columns, steps], `row` numbers apart.
  void pack_columns(const std::uint16_t* b, std::ptrdiff_t row, std::uint32_t* packed,
                    std::uint32_t* lines) const;

  struct Operands {
    const std::uint16_t* a = nullptr;
    std::ptrdiff_t a_row = 0;  ///< numbers
    const std::uint32_t* packed = nullptr;
    float* c = nullptr;
    std::ptrdiff_t c_row = 0;
    std::int64_t rows = 0;
    std::int64_t columns = 0;  ///< the first of B's
    std::int64_t steps = 0;    ///< the first of B's rows; A is zero from there to padded(steps)
    bool adds = false;         ///< to what C has
  };
  void run(const Operands& operands) const;
};

/// Copies rows [rows, steps] that are `row` numbers apart to rows of `length`, with zeros.
void pad_rows(const std::uint16_t* from, std::ptrdiff_t row, std::int64_t rows, std::int64_t steps,
              std::int64_t length, std::uint16_t* to);

/// To rows of padded(steps) from columns [steps, rows], which are transposed; `lines` has 16 rows
/// of `rows` pairs, rounded up to a multiple of 16.
void pad_columns(const std::uint16_t* from, std::ptrdiff_t row, std::int64_t rows,
                 std::int64_t steps, std::uint16_t* to, std::uint32_t* lines);

}  // namespace onnxgrad::device

#endif  // ONNXGRAD_DEVICE_CPU_VNNI_GEMM_H_
