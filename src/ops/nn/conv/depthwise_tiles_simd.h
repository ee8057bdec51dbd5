#ifndef ONNXGRAD_OPS_NN_CONV_DEPTHWISE_TILES_SIMD_H_
#define ONNXGRAD_OPS_NN_CONV_DEPTHWISE_TILES_SIMD_H_

#include <cstddef>
#include <cstdint>

#include "device/isa.h"

// Inner loops of depthwise convolutions, with SIMD over channels: a pixel is one vector of
// depth_lanes channels, and every channel has its own kernel.

namespace onnxgrad::ops::depth {

/// Forward tile: result[result_places[i]] = start + sum over t of source[places[i] + offsets[t]] *
/// weights[t].
template <class T>
struct DepthResults {
  const T* source = nullptr;
  const std::int32_t* places = nullptr;   ///< [count]: offsets of pixels, in elements
  const std::int32_t* offsets = nullptr;  ///< [taps]: offsets of taps from there
  const T* weights = nullptr;             ///< [taps]: pixels
  std::int64_t taps = 0;
  const T* start = nullptr;  ///< one pixel
  T* result = nullptr;
  const std::int32_t* result_places = nullptr;  ///< [count]
  std::int64_t count = 0;
};

/// Weight gradient tile: sums[t] += sum over i of y[i] * source[places[i] + offsets[t]].
template <class T>
struct DepthSums {
  const T* source = nullptr;
  const std::int32_t* places = nullptr;   ///< [count]
  const std::int32_t* offsets = nullptr;  ///< [taps]
  const T* y = nullptr;                   ///< [count] pixels
  std::int64_t count = 0;
  std::int64_t taps = 0;
  T* sums = nullptr;  ///< [taps] pixels
};

/// Returns the number of channels of a pixel.
template <class T>
std::int64_t depth_lanes(device::Isa isa);
template <class T>
void add_results(device::Isa isa, const DepthResults<T>& results);
template <class T>
void add_sums(device::Isa isa, const DepthSums<T>& sums);

}  // namespace onnxgrad::ops::depth

#endif  // ONNXGRAD_OPS_NN_CONV_DEPTHWISE_TILES_SIMD_H_
