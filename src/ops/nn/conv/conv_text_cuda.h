#ifndef ONNXGRAD_OPS_NN_CONV_CONV_TEXT_CUDA_H_
#define ONNXGRAD_OPS_NN_CONV_CONV_TEXT_CUDA_H_

#include <string>

// Convolutions as texts; conv_cuda.cpp prepares them. Types and constants precede a text:
// og_s, the type of sums; og_x, og_w, og_y, og_b, og_r, those of x, w, y, bias and residual, with
// functions og_get_x(address, i) and og_set_x(address, i, value); og_pass, 0 for forward, 1 for
// backward data, 2 for backward weight (conv.h).

namespace onnxgrad::ops {

/// Words of every kernel: x, w, y, bias, residual, partial sums; batch, groups, out and in
/// channels; input, output, kernel, stride, dilation, begin and end of the padding of three axes;
/// splits, low, high.
inline constexpr int kConvWords = 34;

/// Threads of a block.
inline constexpr int kConvThreads = 256;

/// Functions that the kernels share; they come first.
std::string conv_prelude_text();
/// `og_tiles`: a product of matrices, of which a block computes a tile of og_tile x og_tile from
/// tiles in shared memory; og_tile is 16 or 64. Blocks: columns, rows, groups x splits of the sum.
std::string conv_tiles_text();
/// `og_sum` (partial sums, w, weights, splits): adds up the splits.
std::string conv_sum_text();
/// `og_direct`: a thread for each element of y or x.
std::string conv_direct_text();
/// `og_direct_weight`: a block for each weight.
std::string conv_direct_weight_text();

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_NN_CONV_CONV_TEXT_CUDA_H_
