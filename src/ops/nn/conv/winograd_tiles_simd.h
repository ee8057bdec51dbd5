#ifndef ONNXGRAD_OPS_NN_CONV_WINOGRAD_TILES_SIMD_H_
#define ONNXGRAD_OPS_NN_CONV_WINOGRAD_TILES_SIMD_H_

#include <cstddef>
#include <cstdint>

#include "device/isa.h"

// Transforms of Winograd's minimal filtering for tiles of 6 x 6, with SIMD over channels. A kernel
// of r x r (3 or 5) gives m x m results per tile, m = 7 - r, through products at the 36 pairs of
// the points 0, a, -a, b, -b and infinity with a = sqrt(1/2), b = sqrt(2):
//   y = A^T [(G w G^T) * (B^T x B)] A
// and by transposition dw = G^T [(A dy A^T) * (B^T x B)] G. With these points the float32 errors
// are within twice those of a direct convolution; the usual points 1 and 2 lose two more bits.
// Sources: Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, CVPR 2016; Barabasz
// et al., Error Analysis and Improving the Accuracy of Winograd Convolution, TOMS 2020.
//
// A pixel is `n` contiguous channels, n a multiple of the vector's lanes; the 36 values of a
// transformed tile have stride `plane`, row by row.

namespace onnxgrad::ops::winograd {

inline constexpr std::int64_t kTile = 6;
inline constexpr std::int64_t kPoints = kTile * kTile;

/// Returns the results of one tile along an axis; the kernel is 3 or 5.
constexpr std::int64_t results_per_tile(std::int64_t kernel) { return kTile + 1 - kernel; }

/// to = B^T x B. pixels: [36].
void transform_source(device::Isa isa, const float* const* pixels, std::int64_t n, float* to,
                      std::ptrdiff_t plane);
/// to = A dy A^T. pixels: [m * m].
void transform_gradient(device::Isa isa, std::int64_t kernel, const float* const* pixels,
                        std::int64_t n, float* to, std::ptrdiff_t plane);
/// to = G w G^T. taps: [r * r] pixels with stride `step` (negative: kernel rotated by 180 degrees).
void transform_weights(device::Isa isa, std::int64_t kernel, const float* taps, std::ptrdiff_t step,
                       std::int64_t n, float* to, std::ptrdiff_t plane);
/// pixels = A^T sums A + bias. pixels: [m * m], nullptr for those outside the image; bias: [n].
void write_results(device::Isa isa, std::int64_t kernel, const float* sums, std::ptrdiff_t plane,
                   const float* bias, std::int64_t n, float* const* pixels);
/// taps = G^T sums G. taps: [r * r] pixels with stride `step`.
void write_weights(device::Isa isa, std::int64_t kernel, const float* sums, std::ptrdiff_t plane,
                   std::int64_t n, float* taps, std::ptrdiff_t step);

}  // namespace onnxgrad::ops::winograd

#endif  // ONNXGRAD_OPS_NN_CONV_WINOGRAD_TILES_SIMD_H_
