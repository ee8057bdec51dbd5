#ifndef ONNXGRAD_OPS_NN_MAX_POOL_PLANES_SIMD_H_
#define ONNXGRAD_OPS_NN_MAX_POOL_PLANES_SIMD_H_

#include <cstdint>

#include "device/isa.h"

// Max pooling of float32 planes, with SIMD. Among equal elements the first in row-major order wins;
// NaN compares larger than any number.

namespace onnxgrad::ops::planes {

/// Planes [height, width] pooled by non-overlapping 2 x 2 windows to [height / 2, width / 2].
struct HalvedPlanes {
  std::int64_t first = 0;  ///< index of the first plane, for the indices
  std::int64_t count = 0;
  std::int64_t height = 0;
  std::int64_t width = 0;

  std::int64_t size() const { return height * width; }
  std::int64_t pooled_size() const { return (height / 2) * (width / 2); }
};

/// Computes y = the maxima and indices = their positions in the whole tensor (nullptr: not wanted).
/// x, y and indices start at plane `first`.
void max_pool_halved(device::Isa isa, const HalvedPlanes& planes, const float* x, float* y,
                     std::int64_t* indices);

/// Computes dx = zeros except dy at the indices. Returns false, with arbitrary dx, if an index is
/// not in its own window.
bool max_pool_halved_grad(device::Isa isa, const HalvedPlanes& planes, const float* dy,
                          const std::int64_t* indices, float* dx);

/// Arbitrary windows as a table: tap k of window o reads position positions[k * windows + o] of the
/// plane. Taps in the padding repeat the window's first tap inside.
struct TapTable {
  const std::int32_t* positions = nullptr;
  std::int64_t taps = 0;
  std::int64_t windows = 0;
  std::int64_t plane_size = 0;
};

/// Max pooling by a table, as max_pool_halved does, for `count` planes from index `first` on.
void max_pool_taps(device::Isa isa, const TapTable& table, std::int64_t first, std::int64_t count,
                   const float* x, float* y, std::int64_t* indices);

}  // namespace onnxgrad::ops::planes

#endif  // ONNXGRAD_OPS_NN_MAX_POOL_PLANES_SIMD_H_
