#include "device/cpu/gemm_cost.h"

#include <type_traits>

// The numbers below were fitted to the times that `onnxgrad_ops_bench --benchmark_filter=BM_Gemm`
// gives for every implementation of a product (docs/kernels.md has the table). They decide by
// sizes, type and instruction set alone: the same product runs the same code on every run.

namespace onnxgrad::device {
namespace {

// Cycles. Tiles do two multiply-adds of a vector per cycle but for some waiting.
constexpr double kMultiplyAdd = 0.55;
constexpr double kTileStart = 30;
// Packing transposes an element in about half a cycle.
constexpr double kTransposed = 0.5;
// A dot product: one load per vector, then the sum across the lanes.
constexpr double kDotVector = 1.0;
constexpr double kDotEnd = 6.5;

// Above this size of B (bytes) and with this many rows to use it, B is packed panel by panel.
constexpr double kPackedBytes = 48 * 1024;
constexpr double kPackedRows = 32;
// Multiply-adds from which oneDNN's product is ahead: its code prefetches and packs both operands.
constexpr double kLibraryWork = 40e6;
constexpr double kLibraryWorkTransposed = 25e6;  // with B transposed
constexpr double kLibraryDepth = 256;            // k

double vectors(std::int64_t elements, int lanes) {
  return static_cast<double>((elements + lanes - 1) / lanes);
}

template <class T>
double tiles_cost(const GemmSpec& spec, const GemmTarget<T>& target) {
  const auto m = static_cast<double>(spec.m);
  const auto n = static_cast<double>(spec.n);
  const auto k = static_cast<double>(spec.k);
  const bool packs = spec.transpose_b && spec.n != 1 && spec.k != 1;
  // One column is computed without vectors.
  const double columns = spec.n == 1 ? 1 : vectors(spec.n, target.lanes);
  return kTileStart + kMultiplyAdd * m * columns * k + (packs ? kTransposed * n * k : 0);
}

template <class T>
double dots_cost(const GemmSpec& spec, const GemmTarget<T>& target) {
  const auto n = static_cast<double>(spec.n);
  const auto k = static_cast<double>(spec.k);
  const bool packs = !spec.transpose_b && spec.n != 1;
  const double dot = kDotVector * vectors(spec.k, target.lanes) + kDotEnd;
  return dot * static_cast<double>(spec.m) * n + (packs ? kTransposed * n * k : 0);
}

}  // namespace

template <class T>
GemmChoice choose_gemm(const GemmSpec& spec, const GemmTarget<T>& target) {
  constexpr bool kHasLibrary = std::is_same_v<T, float>;
  const bool a_is_transposed = spec.transpose_a && spec.m != 1 && spec.k != 1;
  if (spec.k == 0) return GemmChoice::kTiles;
  if (spec.choice != GemmChoice::kBest) {
    const bool cannot = (spec.choice == GemmChoice::kDots && a_is_transposed) ||
                        (spec.choice == GemmChoice::kLibrary && !kHasLibrary);
    return cannot ? GemmChoice::kTiles : spec.choice;
  }
  const auto b_size = static_cast<double>(spec.n) * static_cast<double>(spec.k);
  const double work = b_size * static_cast<double>(spec.m);
  if (!a_is_transposed && dots_cost(spec, target) < tiles_cost(spec, target))
    return GemmChoice::kDots;
  if (b_size * sizeof(T) < kPackedBytes || static_cast<double>(spec.m) < kPackedRows ||
      spec.n <= target.lanes) {
    return GemmChoice::kTiles;
  }
  const bool is_deep = static_cast<double>(spec.k) >= kLibraryDepth;
  const double threshold = spec.transpose_b ? kLibraryWorkTransposed : kLibraryWork;
  if (kHasLibrary && is_deep && work >= threshold) return GemmChoice::kLibrary;
  return GemmChoice::kBlocked;
}

template GemmChoice choose_gemm(const GemmSpec& spec, const GemmTarget<float>& target);
template GemmChoice choose_gemm(const GemmSpec& spec, const GemmTarget<double>& target);

}  // namespace onnxgrad::device
