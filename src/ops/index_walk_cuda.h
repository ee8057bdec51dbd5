#ifndef ONNXGRAD_OPS_INDEX_WALK_CUDA_H_
#define ONNXGRAD_OPS_INDEX_WALK_CUDA_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ops/fault_text_cuda.h"
#include "ops/kernel_support.h"
#include "ops/kernel_support_cuda.h"
#include "ops/tensor/strided_copy_cpu.h"

// Helpers of kernels that move data: a walk over the elements of a view, and checked indices. The
// numbers of a view are words of a kernel, so that one text serves all shapes.

namespace onnxgrad::ops {

/// An axis of two views.
struct WalkAxis {
  std::int64_t size = 1;
  std::int64_t from = 0;  ///< strides, in elements
  std::int64_t to = 0;
};

constexpr std::size_t kWalkAxes = 8;
constexpr std::size_t kWalkWords = 1 + 3 * kWalkAxes;

/// Adds the kWalkWords words that og_walk reads; axes, outermost first, are merged where both
/// strides allow. False: there are too many.
bool append_walk(std::vector<device::cuda::Word>& words, std::vector<WalkAxis> axes);

/// The declarations of og_walk, og_T, an unsigned type of as many bytes, and og_checked.
std::string move_text(std::int64_t bytes);
/// Its names for element types that kernels compute with; empty for others.
std::string walk_type(DataType dtype);
/// The declarations of move_text() with og_T of this name.
std::string typed_text(const std::string& type);

/// The largest element of at most 8 bytes that runs of so many bytes consist of.
std::int64_t unit_of(std::int64_t run_bytes);

/// A copy between two views; nullopt: they have too many axes.
std::optional<device::cuda::TextKernel> copy_kernel(const KernelRequest& request, CopyRequest copy,
                                                    std::int64_t from_argument,
                                                    std::int64_t to_argument);
/// offer_view() of a card.
KernelOffer offer_view_on_card(const KernelRequest& request, const CopyRequest& copy);
/// A copy of so many bytes, which does nothing if both are one.
device::cuda::TextKernel bytes_kernel(const KernelRequest& request, std::int64_t bytes,
                                      std::int64_t from_argument, std::int64_t to_argument);

/// Words for og_checked of the indices in `input`.
Refusal checked_indices(const KernelRequest& request, std::size_t input,
                        std::vector<std::int64_t> sizes);

/// An offer of launches that check the indices in `input`.
KernelOffer offer_checked(const KernelRequest& request, std::vector<device::cuda::TextKernel> all,
                          const Refusal& checked, std::string label, std::size_t input,
                          const std::vector<std::int64_t>& sizes);

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_INDEX_WALK_CUDA_H_
