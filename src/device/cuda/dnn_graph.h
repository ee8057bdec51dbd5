#ifndef ONNXGRAD_DEVICE_CUDA_DNN_GRAPH_H_
#define ONNXGRAD_DEVICE_CUDA_DNN_GRAPH_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "device/cuda/context.h"
#include "device/cuda/dnn_api.h"
#include "onnxgrad/dtype.h"

// Graphs of cuDNN's operations.

namespace onnxgrad::device::cuda {

/// cuDNN's number of a floating-point type.
int dnn_type(DataType dtype);

/// A graph under construction. Every call throws DeviceError if cuDNN refuses it.
class DnnGraph {
 public:
  using Dims = std::vector<std::int64_t>;
  using Tensor = Handle;

  /// Strides of dense memory: row-major, or with axis 1 as the innermost one.
  static Dims strides(const Dims& dims, bool channels_last = false);

  /// A tensor in memory; plans take the addresses in the order of these calls.
  Tensor memory(const Dims& dims, const Dims& strides, int type);
  /// A tensor that only operations of the graph use.
  Tensor between(const Dims& dims, int type = dnn_api::kDataFloat);
  Tensor between(const Dims& dims, const Dims& strides, int type);
  /// A number, as a tensor of ones of this rank.
  Tensor constant(float value, std::size_t rank);

  struct Window {
    Dims strides, dilations, pads_begin, pads_end;
    int precision = dnn_api::kDataFloat;
  };
  /// `operation`: dnn_api::kForward (writes y), kBackwardData (x) or kBackwardFilter (w).
  void convolve(int operation, const Window& window, Tensor x, Tensor w, Tensor y);
  /// A mode of dnn_api::Pointwise of one or two operands.
  void pointwise(int mode, Tensor x, Tensor b, Tensor y, int precision = dnn_api::kDataFloat);
  /// The index of each element along an axis.
  void index_of(Tensor x, std::int64_t axis, Tensor y);
  /// y = condition ? x : b.
  void select(Tensor condition, Tensor x, Tensor b, Tensor y);
  /// y = min(max(x, low), high); NaN stays NaN.
  void clamp(Tensor x, double low, double high, Tensor y);
  void matmul(Tensor a, Tensor b, Tensor c);
  /// Over the axes that have size 1 in y.
  void reduce(int operation, Tensor x, Tensor y);
  /// `mode`: of dnn_api::Resample. Writes y, or as a gradient x from y; windows are not dilated.
  void pool(int mode, const Dims& kernel, const Window& window, bool is_gradient, Tensor x,
            Tensor y);
  /// y is the memory of x with other dimensions or strides.
  void reshape(Tensor x, Tensor y);

 private:
  friend class DnnPlanner;

  Tensor tensor(const Dims& dims, const Dims& strides, int type, int kind);
  Owned& add(int descriptor);

  std::vector<Owned> descriptors_;  ///< all of them: cuDNN refers to them
  std::vector<Handle> operations_;
  std::vector<std::int64_t> uids_;   ///< of tensors in memory, then of the constants
  std::vector<std::int64_t> bytes_;  ///< that tensors in memory span
  std::deque<float> constants_;
  std::vector<std::int64_t> constant_uids_;
  std::int64_t last_uid_ = 0;
};

}  // namespace onnxgrad::device::cuda

#endif  // ONNXGRAD_DEVICE_CUDA_DNN_GRAPH_H_
