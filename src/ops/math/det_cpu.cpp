#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "device/cpu/scratch_layout.h"
#include "device/cpu/threads.h"
#include "ir/builder.h"
#include "onnxgrad/error.h"
#include "opdef/kernel.h"
#include "ops/kernel_support.h"

// Det and Cofactors of matrices [..., n, n], by Gaussian elimination in double precision.
//
// Det pivots by rows. Cofactors pivot by rows and columns, P X Q = L U, so that the smallest pivots
// come last: C(X) = det(P) det(Q) P^T C(L) C(U) Q^T, where C(L) = L^-T. C(U) divides by all pivots
// except the last, which may be zero; if an earlier one is zero too, all cofactors are zero.

namespace onnxgrad::ops::det_cpu {
namespace {

struct MatrixData {
  std::int64_t matrices = 0;
  std::int64_t n = 0;
  int threads = 1;
  device::ScratchBlocks thread_scratch = {};
};

void swap_rows(double* a, std::int64_t n, std::int64_t i, std::int64_t j) {
  std::swap_ranges(a + i * n, a + (i + 1) * n, a + j * n);
}

bool is_finite(const double* a, std::int64_t n) {
  return std::all_of(a, a + n * n, [](double x) { return std::isfinite(x); });
}

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// Subtracts multiples of row k from the rows below it, zero multiples too, since 0 times NaN or
// infinity is NaN. The factors are stored in place of the eliminated elements.
void eliminate(double* a, std::int64_t n, std::int64_t k) {
  for (std::int64_t i = k + 1; i < n; ++i) {
    const double factor = a[i * n + k] / a[k * n + k];
    a[i * n + k] = factor;
    for (std::int64_t j = k + 1; j < n; ++j) a[i * n + j] -= factor * a[k * n + j];
  }
}

double det_of(double* a, std::int64_t n) {
  const bool has_only_numbers = is_finite(a, n);
  double det = 1;
  for (std::int64_t k = 0; k < n; ++k) {
    std::int64_t best = k;
    for (std::int64_t i = k + 1; i < n; ++i) {
      if (std::abs(a[i * n + k]) > std::abs(a[best * n + k])) best = i;
    }
    if (best != k) {
      swap_rows(a, n, k, best);
      det = -det;
    }
    const double pivot = a[k * n + k];
    det *= pivot;
    if (pivot == 0) return has_only_numbers ? det : kNaN;
    eliminate(a, n, k);
  }
  return det;
}

struct Factors {
  std::int64_t rank = 0;  ///< nonzero pivots; elimination stops there
  double sign = 1;        ///< sign of both permutations
};

// Factorizes P X Q = L U in place; rows[i] and columns[j] are the original row i and column j of P
// X Q.
Factors factorize(double* a, std::int64_t n, std::int64_t* rows, std::int64_t* columns) {
  Factors factors;
  for (std::int64_t i = 0; i < n; ++i) rows[i] = columns[i] = i;
  for (std::int64_t k = 0; k < n; ++k) {
    std::int64_t row = k;
    std::int64_t column = k;
    for (std::int64_t i = k; i < n; ++i) {
      for (std::int64_t j = k; j < n; ++j) {
        if (std::abs(a[i * n + j]) > std::abs(a[row * n + column])) {
          row = i;
          column = j;
        }
      }
    }
    if (row != k) {
      swap_rows(a, n, k, row);
      std::swap(rows[k], rows[row]);
      factors.sign = -factors.sign;
    }
    if (column != k) {
      for (std::int64_t i = 0; i < n; ++i) std::swap(a[i * n + k], a[i * n + column]);
      std::swap(columns[k], columns[column]);
      factors.sign = -factors.sign;
    }
    if (a[k * n + k] == 0) break;
    ++factors.rank;
    eliminate(a, n, k);
  }
  return factors;
}

// Computes adj(U) = det(U) U^-1 column by column into `v` [n, n], by back substitution. In the last
// column, det(U) / u_nn is the product of the other pivots.
void adjugate_upper(const double* u, std::int64_t n, double* v) {
  double others = 1;  // product of all pivots but the last
  for (std::int64_t k = 0; k + 1 < n; ++k) others *= u[k * n + k];
  const double last = u[n * n - 1];
  for (std::int64_t j = 0; j < n; ++j) {
    for (std::int64_t i = 0; i < n; ++i) v[i * n + j] = 0;
    v[j * n + j] = j + 1 == n ? others : others * last / u[j * n + j];
    for (std::int64_t i = j - 1; i >= 0; --i) {
      double sum = 0;
      for (std::int64_t k = i + 1; k <= j; ++k) sum += u[i * n + k] * v[k * n + j];
      v[i * n + j] = -sum / u[i * n + i];
    }
  }
}

// Replaces v by v L^-1, from the last column to the first.
void divide_by_lower(const double* a, std::int64_t n, double* v) {
  for (std::int64_t i = 0; i < n; ++i) {
    double* row = v + i * n;
    for (std::int64_t k = n - 1; k > 0; --k) {
      for (std::int64_t j = 0; j < k; ++j) row[j] -= row[k] * a[k * n + j];
    }
  }
}

// adj(X) = adj(Q) adj(U) adj(L) adj(P) up to the sign; C(X) is its transpose.
template <class T>
void cofactors_of(double* a, std::int64_t n, double* scratch, T* result) {
  if (n == 0) return;
  double* v = scratch;
  auto* rows = reinterpret_cast<std::int64_t*>(scratch + n * n);
  std::int64_t* columns = rows + n;
  const bool has_only_numbers = is_finite(a, n);
  const Factors factors = factorize(a, n, rows, columns);
  if (factors.rank + 1 < n) {
    std::fill_n(result, n * n, has_only_numbers ? T{0} : static_cast<T>(kNaN));
    return;
  }
  adjugate_upper(a, n, v);
  divide_by_lower(a, n, v);
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      result[rows[j] * n + columns[i]] = static_cast<T>(factors.sign * v[i * n + j]);
    }
  }
}

template <class T, bool kIsDet>
void run_matrices(const MatrixData& task, KernelArgs args) {
  const std::int64_t size = task.n * task.n;
  const T* x = args.at<T>(0);
  T* y = args.at<T>(1);
  const std::int64_t chunks = device::chunks_of(task.threads, task.matrices);
  device::on_threads(task.threads, chunks, [&](const device::Chunk& chunk) {
    auto* a = reinterpret_cast<double*>(task.thread_scratch.in(args[2], chunk.thread));
    const std::int64_t end = chunk.last(task.matrices);
    for (std::int64_t m = chunk.first(task.matrices); m < end; ++m) {
      std::copy_n(x + m * size, size, a);
      if constexpr (kIsDet)
        y[m] = static_cast<T>(det_of(a, task.n));
      else
        cofactors_of(a, task.n, a + size, y + m * size);
    }
  });
}

template <bool kIsDet>
KernelOffer offer_matrices(const KernelRequest& request) {
  const Dims& dims = request.inputs[0].dims;
  const std::size_t rank = dims.rank();
  if (rank < 2 || dims[rank - 1] != dims[rank - 2]) {
    throw ShapeError({.what = "shape " + dims.to_string() + ", expected square matrices",
                      .where = {.node = request.node.name, .op_type = request.node.op_type},
                      .hint = "Give an input whose last two dimensions are equal."});
  }
  MatrixData data{.matrices = dims.product(0, rank - 2), .n = dims[rank - 1]};
  constexpr std::int64_t kParallelFlops = 1 << 18;
  if (data.matrices * data.n * data.n * data.n >= kParallelFlops) {
    data.threads = static_cast<int>(std::clamp<std::int64_t>(data.matrices, 1, request.threads));
  }
  const std::int64_t cells = kIsDet ? data.n * data.n : 2 * data.n * data.n + 2 * data.n;
  device::ScratchLayout all, own;
  own.reserve<double>(cells);  // or as many indices
  data.thread_scratch = all.reserve_blocks(data.threads, own);
  KernelOffer offer = offer_for_types<float, double>(
      request, request.inputs[0].dtype,
      [&]<class T>(T) { return prepared<run_matrices<T, kIsDet>>(data, "elimination"); });
  offer.kernel.scratch_bytes = all.size_bytes();
  return offer;
}

}  // namespace

void register_det_cpu(opdef::KernelRegistry& registry) {
  registry.add("", "Det", 0, offer_matrices<true>);
  registry.add(ir::kFunctionDomain, "Cofactors", 0, offer_matrices<false>);
}

}  // namespace onnxgrad::ops::det_cpu
