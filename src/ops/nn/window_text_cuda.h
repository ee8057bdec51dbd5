#ifndef ONNXGRAD_OPS_NN_WINDOW_TEXT_CUDA_H_
#define ONNXGRAD_OPS_NN_WINDOW_TEXT_CUDA_H_

#include <string_view>
#include <vector>

#include "device/cuda/text_kernel.h"
#include "ops/nn/window.h"

// Sliding windows in texts, for convolutions and pools of up to three axes.

namespace onnxgrad::ops {

/// Words that append_window() adds.
inline constexpr int kWindowWords = 7;

/// Definitions: og_axis with og_axis_at(a, first word); og_place {outer, d, h, w} with og_split(i,
/// d, h, w), the place of element i of [outer, d, h, w].
std::string_view window_text();

void append_window(std::vector<device::cuda::Word>& words, const WindowAxis& axis);

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_NN_WINDOW_TEXT_CUDA_H_
