#ifndef ONNXGRAD_OPS_NN_SOFTMAX_ROWS_SIMD_H_
#define ONNXGRAD_OPS_NN_SOFTMAX_ROWS_SIMD_H_

#include <cstdint>

#include "device/isa.h"

// Building blocks of Softmax, LogSoftmax and cross-entropy over rows of scores, with SIMD. All
// arrays are contiguous [rows, cols] or [rows], for float and double. NaN in a row makes the row
// NaN.

namespace onnxgrad::ops::rows {

/// y[i, :] = softmax(x[i, :]); y may be x.
void softmax(device::Isa isa, const float* x, float* y, std::int64_t rows, std::int64_t cols);
void softmax(device::Isa isa, const double* x, double* y, std::int64_t rows, std::int64_t cols);

/// y[i, :] = x[i, :] - log(sum(exp(x[i, :]))); y may be x.
void log_softmax(device::Isa isa, const float* x, float* y, std::int64_t rows, std::int64_t cols);
void log_softmax(device::Isa isa, const double* x, double* y, std::int64_t rows, std::int64_t cols);

/// sums[i] = log(sum(exp(x[i, :]))).
void log_sum_exp(device::Isa isa, const float* x, float* sums, std::int64_t rows,
                 std::int64_t cols);
void log_sum_exp(device::Isa isa, const double* x, double* sums, std::int64_t rows,
                 std::int64_t cols);

/// dx[i, :] = (exp(x[i, :] - sums[i]) - onehot(labels[i])) * factors[i], 0 if the label is
/// negative. dx may be x; sums may be nullptr, which stands for zeros.
void cross_entropy_grad(device::Isa isa, const float* x, const float* sums,
                        const std::int64_t* labels, const float* factors, float* dx,
                        std::int64_t rows, std::int64_t cols);
void cross_entropy_grad(device::Isa isa, const double* x, const double* sums,
                        const std::int64_t* labels, const double* factors, double* dx,
                        std::int64_t rows, std::int64_t cols);

}  // namespace onnxgrad::ops::rows

#endif  // ONNXGRAD_OPS_NN_SOFTMAX_ROWS_SIMD_H_
