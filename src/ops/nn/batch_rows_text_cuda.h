#ifndef ONNXGRAD_OPS_NN_BATCH_ROWS_TEXT_CUDA_H_
#define ONNXGRAD_OPS_NN_BATCH_ROWS_TEXT_CUDA_H_

#include <string_view>

namespace onnxgrad::ops {

/// Kernels of batch normalisation with channels last, behind the texts of
/// batch_normalization_cuda.cpp, whose words they take: a block sums a part of the rows for its
/// channels (og_row_moments, og_row_sums), the next launch combines the parts, in order, and goes
/// over the rows. Further words of the forward pass, 22: moments, 23: parts; of the gradient, 22:
/// sums, 23: moments, 24: parts. Moments are float64 [2 parts + 1, C], sums [2 parts, C].
std::string_view batch_rows_forward_text();
std::string_view batch_rows_gradient_text();

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_NN_BATCH_ROWS_TEXT_CUDA_H_
