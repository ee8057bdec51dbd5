#ifndef ONNXGRAD_OPS_TENSOR_SORTED_SCATTER_CUDA_H_
#define ONNXGRAD_OPS_TENSOR_SORTED_SCATTER_CUDA_H_

#include <cstdint>
#include <string>
#include <vector>

#include "device/cuda/text_kernel.h"
#include "opdef/kernel.h"

// Scatters without atomics, with the same bits in every run. The updates are sorted by the place
// that they change, stably: runs in shared memory, then merges of two runs each. Pieces of the
// sorted list are combined first, then the pieces of one place, so that many updates of one place
// take no longer than of many.

namespace onnxgrad::ops {

struct SortedScatter {
  std::int64_t count = 0;  ///< updates
  std::int64_t block = 0;  ///< adjacent elements of each
  std::int64_t element_bytes = 0;
  /// Text of og_T and of functions that read words from w on: og_target(a, w, t), the place that
  /// update t changes, or -1, reads target_words; the others read apply_words: og_update(a, w, t,
  /// column), an element of an update; og_element(a, w, target, column), where it goes;
  /// og_reduce(x, y) of two updates of a place; og_finish(a, w, old, total), the result.
  std::string text = {};
  std::vector<device::cuda::Word> target_words = {};
  std::vector<device::cuda::Word> apply_words = {};
  device::cuda::Word result = {};
  std::int64_t scratch = 0;        ///< the argument
  std::int64_t scratch_bytes = 0;  ///< of it that others use
};

/// og_update and og_element of dense updates, whose address is the first of the words, and of
/// `size` elements, the second; places are those of the first of adjacent elements.
std::string dense_updates_text();

/// Appends the launches. Returns the bytes of scratch that are needed then.
std::int64_t append_scatter(const opdef::KernelRequest& request, const SortedScatter& scatter,
                            std::vector<device::cuda::TextKernel>& launches);

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_TENSOR_SORTED_SCATTER_CUDA_H_
