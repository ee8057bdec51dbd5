#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "ir/builder.h"
#include "ops/block_text_cuda.h"
#include "ops/kernel_support.h"
#include "ops/kernel_support_cuda.h"

// Det and Cofactors: a thread for each matrix, by the elimination of the CPU (det_cpu.cpp), in
// double precision.

namespace onnxgrad::ops::det_cuda {
namespace {

using device::cuda::Word;

// Words: x, y, matrices in double (scratch), adj(U) and permutations (scratch), matrices, n.
constexpr const char* kText = R"(
OG_FUNCTION bool og_finite(const double* m, og_i64 n) {
  bool is_finite = true;
  for (og_i64 i = 0; i < n * n; ++i) is_finite = is_finite && m[i] - m[i] == 0;
  return is_finite;
}
template <class T>
OG_FUNCTION void og_swap(T& x, T& y) {
  const T kept = x;
  x = y;
  y = kept;
}
OG_FUNCTION void og_eliminate(double* m, og_i64 n, og_i64 k) {
  for (og_i64 i = k + 1; i < n; ++i) {
    const double factor = m[i * n + k] / m[k * n + k];
    m[i * n + k] = factor;
    for (og_i64 j = k + 1; j < n; ++j) m[i * n + j] = m[i * n + j] - factor * m[k * n + j];
  }
}
OG_FUNCTION double og_none() { return (double)og_bits<float>(0x7fc00000u); }

OG_KERNEL(og_det, 6) {
  const og_i64 n = a.integer(5);
  for (og_i64 matrix = og_first(); matrix < a.integer(4); matrix += og_stride()) {
    double* const m = a.pointer<double>(2) + matrix * n * n;
    for (og_i64 i = 0; i < n * n; ++i) m[i] = (double)a.pointer<const og_t>(0)[matrix * n * n + i];
    const bool is_finite = og_finite(m, n);
    double det = 1;
    for (og_i64 k = 0; k < n; ++k) {
      og_i64 best = k;
      for (og_i64 i = k + 1; i < n; ++i) {
        if (og_abs(m[i * n + k]) > og_abs(m[best * n + k])) best = i;
      }
      if (best != k) {
        for (og_i64 j = 0; j < n; ++j) og_swap(m[k * n + j], m[best * n + j]);
        det = -det;
      }
      det = det * m[k * n + k];
      if (m[k * n + k] == 0) {
        if (!is_finite) det = og_none();
        break;
      }
      og_eliminate(m, n, k);
    }
    a.pointer<og_t>(1)[matrix] = (og_t)det;
  }
}

OG_KERNEL(og_cofactors, 6) {
  const og_i64 n = a.integer(5);
  for (og_i64 matrix = og_first(); matrix < a.integer(4); matrix += og_stride()) {
    double* const m = a.pointer<double>(2) + matrix * n * n;
    double* const v = a.pointer<double>(3) + matrix * (n * n + 2 * n);
    og_i64* const rows = (og_i64*)(v + n * n);
    og_i64* const columns = rows + n;
    og_t* const y = a.pointer<og_t>(1) + matrix * n * n;
    for (og_i64 i = 0; i < n * n; ++i) m[i] = (double)a.pointer<const og_t>(0)[matrix * n * n + i];
    const bool is_finite = og_finite(m, n);
    og_i64 rank = 0;
    double sign = 1;
    for (og_i64 i = 0; i < n; ++i) rows[i] = columns[i] = i;
    for (og_i64 k = 0; k < n; ++k) {
      og_i64 row = k, column = k;
      for (og_i64 i = k; i < n; ++i) {
        for (og_i64 j = k; j < n; ++j) {
          if (og_abs(m[i * n + j]) > og_abs(m[row * n + column])) {
            row = i;
            column = j;
          }
        }
      }
      if (row != k) {
        for (og_i64 j = 0; j < n; ++j) og_swap(m[k * n + j], m[row * n + j]);
        og_swap(rows[k], rows[row]);
        sign = -sign;
      }
      if (column != k) {
        for (og_i64 i = 0; i < n; ++i) og_swap(m[i * n + k], m[i * n + column]);
        og_swap(columns[k], columns[column]);
        sign = -sign;
      }
      if (m[k * n + k] == 0) break;
      ++rank;
      og_eliminate(m, n, k);
    }
    if (rank + 1 < n) {
      for (og_i64 i = 0; i < n * n; ++i) y[i] = is_finite ? (og_t)0 : (og_t)og_none();
      continue;
    }
    // adj(U), column by column; then times the inverse of L, from the last column to the first.
    double others = 1;
    for (og_i64 k = 0; k + 1 < n; ++k) others = others * m[k * n + k];
    const double last = m[n * n - 1];
    for (og_i64 j = 0; j < n; ++j) {
      for (og_i64 i = 0; i < n; ++i) v[i * n + j] = 0;
      v[j * n + j] = j + 1 == n ? others : others * last / m[j * n + j];
      for (og_i64 i = j - 1; i >= 0; --i) {
        double sum = 0;
        for (og_i64 k = i + 1; k <= j; ++k) sum = sum + m[i * n + k] * v[k * n + j];
        v[i * n + j] = -sum / m[i * n + i];
      }
    }
    for (og_i64 i = 0; i < n; ++i) {
      double* const line = v + i * n;
      for (og_i64 k = n - 1; k > 0; --k) {
        for (og_i64 j = 0; j < k; ++j) line[j] = line[j] - line[k] * m[k * n + j];
      }
    }
    for (og_i64 i = 0; i < n; ++i) {
      for (og_i64 j = 0; j < n; ++j) {
        y[rows[j] * n + columns[i]] = (og_t)(sign * v[i * n + j]);
      }
    }
  }
}
)";

KernelOffer offer(const KernelRequest& request, const char* name) {
  const Dims& dims = request.inputs[0].dims;
  const DataType dtype = request.inputs[0].dtype;
  const std::size_t rank = dims.rank();
  if (rank < 2 || dims[rank - 1] != dims[rank - 2])
    return KernelOffer::decline("no square matrices");
  if (dtype != DataType::kFloat32 && dtype != DataType::kFloat64) {
    return decline_dtype(request, dtype);
  }
  const std::int64_t matrices = dims.product(0, rank - 2);
  const std::int64_t n = dims[rank - 1];
  if (n == 0 && request.outputs[0].dims.num_elements() == 0) {
    return KernelOffer::decline("no elements");
  }
  const std::int64_t first_bytes = round_up(matrices * n * n * 8, std::int64_t{64});
  std::vector<Word> words{Word::argument(0), Word::argument(1), Word::argument(2),
                          Word::argument(2, first_bytes)};
  add_integers(words, {matrices, n});
  KernelOffer made;
  made.kernel =
      prepared(text_kernel_over(request, matrices, typedefs({{"og_t", text_type(dtype)}}) + kText,
                                name, std::move(words)),
               "elimination of " + std::to_string(n));
  made.kernel.scratch_bytes =
      std::max<std::int64_t>(first_bytes + matrices * (n * n + 2 * n) * 8, 8);
  return made;
}

KernelOffer offer_det(const KernelRequest& request) { return offer(request, "og_det"); }
KernelOffer offer_cofactors(const KernelRequest& request) { return offer(request, "og_cofactors"); }

}  // namespace

void register_det_cuda(opdef::KernelRegistry& registry) {
  registry.add("", "Det", 0, offer_det);
  registry.add(ir::kFunctionDomain, "Cofactors", 0, offer_cofactors);
}

}  // namespace onnxgrad::ops::det_cuda
