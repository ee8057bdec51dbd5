#ifndef ONNXGRAD_DEVICE_CPU_GEMM_H_
#define ONNXGRAD_DEVICE_CPU_GEMM_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "onnxgrad/dtype.h"

// Dense matrix products for kernels: prepare_gemm computes everything about a product that is known
// at plan time and chooses the implementation; run_gemm only computes. Start
// reading at GemmSpec; gemm.cpp has the drivers, gemm_tile.h the innermost loops, gemm_cost.h the
// choice.

namespace onnxgrad::device {

/// What alpha * op(A) * op(B) is added to.
enum class GemmStart : std::int32_t {
  kZero,
  kRow,    ///< a row [n] for every row of C: a bias
  kMatrix  ///< a matrix [m, n]; may be C itself
};

enum class GemmChoice : std::int32_t { kBest, kTiles, kDots, kBlocked };

/// C = max(floor, alpha * op(A) * op(B) + start), everything dense, row-major.
/// A: [m, k], or [k, m] if transpose_a. B: [k, n], or [n, k] if transpose_b. C: [m, n].
struct GemmSpec {
  DataType dtype = DataType::kFloat32;  ///< float32 or float64
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  bool transpose_a = false;
  bool transpose_b = false;
  /// From one row of A in memory to the next, if A is part of a larger matrix. 0:
  /// dense. Otherwise only for kTiles and n > 1.
  std::int64_t a_row_length = 0;
  GemmStart start = GemmStart::kZero;
  double alpha = 1;
  bool relu = false;                 ///< floor is 0; else minus infinity. NaN stays NaN.
  bool has_run_time_factor = false;  ///< alpha is multiplied by GemmOperands::factor
  int threads = 1;
  GemmChoice choice = GemmChoice::kBest;  ///< for tests and benchmarks
};

struct GemmOperands {
  const void* a = nullptr;
  const void* b = nullptr;
  const void* start = nullptr;   ///< not read for GemmStart::kZero
  void* c = nullptr;             ///< may be `start` if that is a matrix; overlaps nothing else
  std::byte* scratch = nullptr;  ///< scratch_bytes, 64-byte aligned
  double factor = 1;
};

struct PreparedGemm {
  void (*fn)(const void* data, const GemmOperands& operands) = nullptr;
  std::shared_ptr<const void> data;
  std::int64_t scratch_bytes = 0;
  std::string label;  ///< "tiles 15x50x100"

  void operator()(const GemmOperands& operands) const { fn(data.get(), operands); }
};

/// Sums run over k in an order that depends only on the sizes, not on the number of threads.
/// Cost: a few microseconds. Thread-safe.
PreparedGemm prepare_gemm(const GemmSpec& spec);

}  // namespace onnxgrad::device

#endif  // ONNXGRAD_DEVICE_CPU_GEMM_H_
