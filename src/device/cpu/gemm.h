#ifndef ONNXGRAD_DEVICE_CPU_GEMM_H_
#define ONNXGRAD_DEVICE_CPU_GEMM_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "device/cpu/gemm_source.h"
#include "device/cpu_options.h"
#include "onnxgrad/dtype.h"
#include "opdef/follower.h"

// Dense matrix products (GEMM) for kernels: prepare_gemm chooses the implementation and computes at
// plan time all that depends on sizes only; a call of the PreparedGemm only multiplies. Start
// reading at GemmSpec; gemm_driver.h has the loop nest of large products, gemm_small.cpp those of
// small ones, gemm_tile.h the innermost loops, gemm_cost.h the choice.

namespace onnxgrad::device {

/// Shape of an addend of C, such as `start` in C = alpha * op(A) * op(B) + start.
enum class GemmStart : std::int32_t {
  kZero,   ///< no addend
  kRow,    ///< a row [n] for every row of C: a bias
  kMatrix  ///< a matrix [m, n]; may be C itself
};

inline constexpr std::size_t kGemmMoreAddends = 3;

enum class GemmChoice : std::int32_t {
  kBest,
  kTiles,
  kDots,
  kBlocked,
  kBlockedPackedA,  ///< kBlocked with A packed too
  kSplit  ///< float32 split into three bfloat16 parts, where hardware multiplies those faster
};

/// C = scales * max(floor, alpha * op(A) * op(B) + start + more), everything dense, row-major.
/// A: [m, k], or [k, m] if transpose_a. B: [k, n], or [n, k] if transpose_b. C: [m, n].
struct GemmSpec {
  DataType dtype = DataType::kFloat32;  ///< float32, float64; 16 bits only for f16_gemm_spec()
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  bool transpose_a = false;
  bool transpose_b = false;
  /// Row stride of A in elements if A is part of a larger matrix; 0: A is dense.
  /// Supported by kTiles with n > 1, and with sources.
  std::int64_t a_row_length = 0;
  /// Element types of A and B in memory if float32 is computed from other types: elements are
  /// converted as blocks of A and B are packed. A only with B.
  GemmSource a_source = {}, b_source = {};
  GemmStart start = GemmStart::kZero;
  /// Addends besides `start`, up to the first kZero; only with a `start` and n > 1.
  std::array<GemmStart, kGemmMoreAddends> more = {};
  double alpha = 1;
  bool relu = false;                 ///< floor is 0; else minus infinity. NaN stays NaN.
  bool is_scaled = false;            ///< by GemmOperands::scales; else scales are 1
  bool sums_columns = false;         ///< also GemmOperands::column_sums
  bool has_run_time_factor = false;  ///< alpha is multiplied by GemmOperands::factor
  int threads = 1;
  GemmChoice choice = GemmChoice::kBest;  ///< for tests and benchmarks
  /// GemmOperands::b is what pack_gemm_b() wrote. Only where can_pack_b().
  bool b_is_packed = false;
  /// C is not stored: each part of it goes to GemmOperands::finished while it is in the cache.
  /// Only where can_have_consumer().
  bool has_consumer = false;
  CpuOptions cpu = {};
};

/// Complete elements of C: `rows` x `columns` of them, from C[row, column] on.
struct GemmBlock {
  const void* c = nullptr;  ///< at C[row, column]; nullptr: C is stored
  std::int64_t c_row = 0;   ///< row stride in elements
  std::int64_t row = 0, rows = 0;
  std::int64_t column = 0, columns = 0;
  // Only where C is stored:
  std::int64_t part = 0;    ///< of the rows, which may have none
  std::int64_t thread = 0;  ///< that computed them
};

struct GemmOperands {
  const void* a = nullptr;
  const void* b = nullptr;
  const void* start = nullptr;  ///< not read for GemmStart::kZero
  void* c = nullptr;  ///< may be one of the addends that are matrices; overlaps nothing else
  std::byte* scratch = nullptr;  ///< scratch_bytes, 64-byte aligned
  double factor = 1;
  std::array<const void*, kGemmMoreAddends> more = {};
  const void* scales = nullptr;  ///< [m, n]; not C
  void* column_sums =
      nullptr;  ///< [n]: the sum of each column of C, in float64 from block to block
  /// The consumer, if has_consumer; else, where PreparedGemm::completes says so, any follower, or
  /// nullptr. Called for each part of C by the thread that has computed it.
  void (*finished)(const void* context, const GemmBlock& block) = nullptr;
  const void* context = nullptr;
  /// Matrices shaped like C that `finished` reads; tiles may prefetch them. nullptr: none.
  std::array<const void*, kGemmMoreAddends> reads_next = {};
  std::int64_t reads_next_size = 0;  ///< bytes per element, at most C's; 0: C's
};

/// A GEMM ready to run: its implementation, plan and scratch size.
struct PreparedGemm {
  void (*fn)(const void* data, const GemmOperands& operands) = nullptr;
  std::shared_ptr<const void> data;
  std::int64_t scratch_bytes = 0;
  std::string label;                                   ///< "tiles 15x50x100"
  opdef::BlockCut completes = opdef::BlockCut::kNone;  ///< parts that go to `finished`
  std::int64_t parts = 1;                              ///< of the rows
  int threads = 1;

  void operator()(const GemmOperands& operands) const { fn(data.get(), operands); }
};

/// Plans a GEMM in a few microseconds. Sums run over k in an order that depends only on the sizes,
/// not on the number of threads. Thread-safe.
PreparedGemm prepare_gemm(const GemmSpec& spec);

/// Whether the GEMM supports has_consumer: it is computed block by block, and k is small enough to
/// complete each block of C before the next one is begun.
bool can_have_consumer(const GemmSpec& spec);

/// Whether the GEMM supports is_scaled and sums_columns: it is computed block by block.
bool can_scale(const GemmSpec& spec);

/// Whether the GEMM can read a B that was packed once for many GEMMs, in the order of the innermost
/// loops, which depends on k and n alone. Results have the same bits as with an unpacked B that is
/// not transposed, computed by multiply-adds.
bool can_pack_b(const GemmSpec& spec);
/// Number of elements of a packed B.
std::int64_t packed_b_elements(const GemmSpec& spec);
/// Packs B into `packed`: packed_b_elements() elements, 64-byte aligned.
void pack_gemm_b(const GemmSpec& spec, const void* b, void* packed);

}  // namespace onnxgrad::device

#endif  // ONNXGRAD_DEVICE_CPU_GEMM_H_
