#include "device/cpu/gemm_cost.h"

#include <algorithm>

#include "device/cpu/even_split.h"
#include "device/cpu/gemm_tile.h"

// The constants below were fitted to the times that onnxgrad_gemm_table (benchmarks/) reports for
// each implementation of a GEMM (docs/kernels.md names them). They decide by sizes, type and
// processor alone: the same GEMM has the same bits every time.

namespace onnxgrad::device {
namespace {

// Cycles of a vector multiply-add and of a tile's start. Tiles do two vector multiply-adds per
// cycle except for some stalls.
constexpr double kMultiplyAdd = 0.55;
constexpr double kTileStart = 30;
// Cycles to transpose an element while packing.
constexpr double kTransposed = 0.5;
// Cycles of a dot product: per vector, in a block of several rows or alone, then of the sum across
// the lanes.
constexpr double kDotVector = 0.6;
constexpr double kLoneDotVector = 1.1;
constexpr double kDotEnd = 5.5;

// Bytes of B beyond which it no longer stays in the L2 cache between rows of tiles and is packed
// B panel by B panel. Processors with 512-bit vectors have 1 to 2 MiB. With shorter vectors,
// and for that many rows by two ports, packing pays beyond the L1 cache.
constexpr double kCachedBytes512 = 1.75 * 1024 * 1024;
constexpr double kCachedBytes = 48 * 1024;
constexpr double kCachedRows512 = 128;
// Bytes of a transposed operand from which packing pays: in place it costs more.
constexpr double kTransposedBytes = 96 * 1024;
// Bytes of A and columns of C beyond which blocks of rows pay.
constexpr double kStreamedBytes = 1024 * 1024;
constexpr std::int64_t kStreamedColumns = 512;
// Minimum of the rows, or columns, that use a packed operand.
constexpr double kPackedRows = 32;
// Minimum of the vectors of columns that use a packed A.
constexpr std::int64_t kPackedVectors = 8;

bool has_vectors_of_512_bits(const Machine& machine) { return machine.vector_bits == 512; }

/// Bytes of a sum.
std::int64_t size_of(const GemmSpec& spec) { return spec.dtype == DataType::kFloat64 ? 8 : 4; }

std::int64_t lanes_of(const GemmSpec& spec, const Machine& machine) {
  return machine.vector_bits / (8 * size_of(spec));
}

/// Whether A is packed into A panels, which enough columns use. With vectors of less than 512 bits
/// always: a load of A goes with fewer multiply-adds, and from a packed A panel a step takes the
/// fewest instructions. With 512 bits only by two ports, which wait for B panels from the L2 cache;
/// with one, packing costs more than it brings. The sums have the same bits.
bool packs_a(const GemmSpec& spec, const Machine& machine) {
  return spec.n >= kPackedVectors * lanes_of(spec, machine) &&
         (!has_vectors_of_512_bits(machine) || machine.fma_ports > 1);
}

bool can_split(const GemmSpec& spec, const Machine& machine) {
  return machine.has_amx && !spec.b_is_packed && spec.dtype == DataType::kFloat32 &&
         (spec.a_row_length == 0 || spec.a_source) &&
         spec.more[kGemmMaxMore - 1] == GemmStart::kZero;  // `start` and two more fit a tile
}

/// Whether a split GEMM is faster than float32 multiply-adds, packing included: on one core with
/// AMX it is for 64 x 64 x 512, 128 x 128 x 128 and 256 x 256 x 64, but not for 48 x 512 x 512 and
/// 256 x 256 x 32.
bool suits_split(const GemmSpec& spec, const Machine& machine) {
  constexpr std::int64_t kLeast = 64;
  const std::int64_t least = std::min(spec.m, spec.n);
  return least >= kLeast && spec.k >= kLeast && std::max(least, spec.k) >= 2 * kLeast &&
         can_split(spec, machine);
}

double vectors(std::int64_t elements, std::int64_t lanes) {
  return static_cast<double>(ceil_div(elements, lanes));
}

double tiles_cost(const GemmSpec& spec, std::int64_t lanes) {
  const auto m = static_cast<double>(spec.m);
  const auto n = static_cast<double>(spec.n);
  const auto k = static_cast<double>(spec.k);
  const bool packs = spec.transpose_b && spec.n != 1 && spec.k != 1;
  // One column is computed without vectors.
  const double columns = spec.n == 1 ? 1 : vectors(spec.n, lanes);
  return kTileStart + kMultiplyAdd * m * columns * k + (packs ? kTransposed * n * k : 0);
}

double dots_cost(const GemmSpec& spec, std::int64_t lanes) {
  const auto n = static_cast<double>(spec.n);
  const auto k = static_cast<double>(spec.k);
  const bool packs = !spec.transpose_b && spec.n != 1;
  const bool alone = spec.m == 1 || spec.n == 1;
  const double dot = (alone ? kLoneDotVector : kDotVector) * vectors(spec.k, lanes) + kDotEnd;
  return dot * static_cast<double>(spec.m) * n + (packs ? kTransposed * n * k : 0);
}

}  // namespace

GemmChoice choose_gemm(const GemmSpec& spec, const Machine& machine) {
  const std::int64_t lanes = lanes_of(spec, machine);
  const bool a_is_transposed = spec.transpose_a && spec.m != 1 && spec.k != 1;
  if (spec.b_source) {
    if (spec.choice != GemmChoice::kBlocked && suits_split(spec, machine))
      return GemmChoice::kSplit;
    return packs_a(spec, machine) ? GemmChoice::kBlockedPackedA : GemmChoice::kBlocked;
  }
  if (spec.k == 0) return GemmChoice::kTiles;
  if (spec.choice != GemmChoice::kBest) {
    const bool cannot = (spec.choice == GemmChoice::kDots &&
                         (a_is_transposed || spec.more[0] != GemmStart::kZero)) ||
                        (spec.choice == GemmChoice::kSplit && !can_split(spec, machine));
    return cannot ? GemmChoice::kTiles : spec.choice;
  }
  if (suits_split(spec, machine)) return GemmChoice::kSplit;
  const bool adds_more = spec.more[0] != GemmStart::kZero;  // dots do not
  if (!a_is_transposed && !adds_more && dots_cost(spec, lanes) < tiles_cost(spec, lanes)) {
    return GemmChoice::kDots;
  }
  const auto m = static_cast<double>(spec.m);
  const auto k = static_cast<double>(spec.k);
  const auto size = static_cast<double>(size_of(spec));
  const double a_bytes = m * k * size;
  const double b_bytes = static_cast<double>(spec.n) * k * size;
  const bool stays_in_l2 =
      has_vectors_of_512_bits(machine) && (machine.fma_ports == 1 || m < kCachedRows512);
  const double cached = stays_in_l2 ? kCachedBytes512 : kCachedBytes;
  // B panels that each read all of a large A, and write a part of each row of C, wait for memory.
  const bool streams = a_bytes >= kStreamedBytes && spec.n >= kStreamedColumns;
  const bool packs = b_bytes > cached || streams ||
                     (spec.transpose_b && b_bytes > kTransposedBytes) ||
                     (a_is_transposed && a_bytes > kTransposedBytes);
  if (!packs || m < kPackedRows || spec.n <= lanes) return GemmChoice::kTiles;
  return packs_a(spec, machine) ? GemmChoice::kBlockedPackedA : GemmChoice::kBlocked;
}

}  // namespace onnxgrad::device
