#ifndef ONNXGRAD_OPS_TENSOR_STRIDED_COPY_CPU_H_
#define ONNXGRAD_OPS_TENSOR_STRIDED_COPY_CPU_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "device/isa.h"
#include "opdef/kernel.h"

// Strided copy between two views of the same sizes: the loop behind Transpose, Slice, Expand,
// Concat, Split, Pad and Tile. All decisions are made once, in plan_copy.

namespace onnxgrad::ops {

/// Two views of the same sizes: strides and offsets count elements; strides may be zero (source) or
/// negative. At most 128 axes.
struct CopyRequest {
  std::int64_t element_bytes = 0;  ///< 1, 2, 4, 8 or 16
  std::vector<std::int64_t> sizes = {};
  std::vector<std::int64_t> source_strides = {};
  std::vector<std::int64_t> target_strides = {};
  std::int64_t source_offset = 0;
  std::int64_t target_offset = 0;
};

/// Planned copy: axes merged where both sides allow, innermost runs as blocks of bytes.
struct CopyPlan {
  struct Axis {
    std::int64_t size = 1;
    std::int64_t source_stride = 0;  // bytes
    std::int64_t target_stride = 0;  // bytes
  };
  std::vector<Axis> axes = {};     // outermost first; the last one or two form the inner loop
  std::int64_t block_bytes = 0;    // contiguous on both sides; 0: nothing to copy
  std::int64_t source_offset = 0;  // bytes
  std::int64_t target_offset = 0;  // bytes
  bool is_tiled = false;           // the last two axes are a transposition
  int threads = 1;                 // threads that split the outermost axis
  device::Isa isa = {};
};

/// Plans a copy on at most `threads` threads, on fewer if there is little to copy.
CopyPlan plan_copy(const CopyRequest& request, device::Isa isa, int threads = 1);

/// Copies target[i] = source[i] for all elements of the views, which lie inside the two buffers and
/// do not overlap.
void run_copy(const CopyPlan& plan, const std::byte* source, std::byte* target);

/// Offers the copy of the first input, whose view `copy` reads, to the first output, or declines
/// its type.
opdef::KernelOffer offer_view(const opdef::KernelRequest& request, const CopyRequest& copy);

/// Returns the row-major strides, in elements.
std::vector<std::int64_t> dense_strides(std::span<const std::int64_t> dims);

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_TENSOR_STRIDED_COPY_CPU_H_
