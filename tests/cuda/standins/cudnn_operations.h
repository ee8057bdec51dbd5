#ifndef ONNXGRAD_TESTS_CUDA_STANDINS_CUDNN_OPERATIONS_H_
#define ONNXGRAD_TESTS_CUDA_STANDINS_CUDNN_OPERATIONS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

// The operations of cuDNN's graphs, by plain loops in double.

namespace onnxgrad::cuda_standin {

struct DnnTensor {
  std::int64_t uid = 0;
  std::vector<std::int64_t> dims;
  std::vector<std::int64_t> strides;
  int type = 0;
  bool is_virtual = false;
  bool is_by_value = false;
};

/// An operation: its tensors are x, b (w of a convolution), y and the condition.
struct DnnOperation {
  int type = 0;
  DnnTensor x, b, y, condition;
  bool has_b = false;
  int mode = 0;  ///< of a pointwise operation or a reduction
  std::int64_t axis = 0;
  double low = 0;
  double high = 0;
  std::vector<std::int64_t> strides, dilations, begins, ends;  ///< of windows
  std::vector<std::int64_t> window;                            ///< of a pool
};

/// Whether the sizes of its tensors fit together.
bool is_consistent(const DnnOperation& operation);

/// Runs operations in order; `addresses` by uid are the card's, or the host's of tensors by value.
/// `rounds`: factors of products are rounded as for tensor cores. Returns the driver's result.
int run_operations(const std::vector<DnnOperation>& operations, bool rounds,
                   const std::map<std::int64_t, std::uint64_t>& addresses);

}  // namespace onnxgrad::cuda_standin

#endif  // ONNXGRAD_TESTS_CUDA_STANDINS_CUDNN_OPERATIONS_H_
