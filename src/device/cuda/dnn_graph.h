#ifndef ONNXGRAD_DEVICE_CUDA_DNN_GRAPH_H_
#define ONNXGRAD_DEVICE_CUDA_DNN_GRAPH_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "device/cuda/context.h"
#include "device/cuda/dnn_api.h"
#include "onnxgrad/dtype.h"

// Graphs of cuDNN's operations. Its heuristics propose engines for a graph; those that may compute
// it are selected by their notes and timed once on the card, and the number of the fastest is kept
// beside the images of kernels.

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

/// Engines that may compute a graph.
struct DnnRule {
  bool is_strict = true;  ///< none on tensor cores, which round the factors of float32
  bool is_deterministic = true;
};

class DnnPlan {
 public:
  using Build = std::function<void(DnnGraph& graph)>;

  /// The plan of the fastest engine. nullptr if cuDNN is absent or no engine computes the graph;
  /// `declined` is then the reason. `key` describes the graph: equal keys, equal graphs, of which
  /// there is one plan on a card.
  static std::shared_ptr<const DnnPlan> of(const std::shared_ptr<Context>& context,
                                           const std::string& key, const DnnRule& rule,
                                           const Build& build, std::string& declined);

  /// `addresses`: of the tensors in memory, aligned to 16 bytes. Throws: DeviceError.
  void run(std::span<const std::uint64_t> addresses, std::uint64_t workspace, Handle stream) const;
  std::int64_t workspace_bytes() const { return workspace_bytes_; }
  /// Time of one run when it was chosen.
  double time_us() const { return time_us_; }

 private:
  friend class DnnPlanner;
  DnnPlan() = default;
  int execute(Handle plan, std::span<const std::uint64_t> addresses, std::uint64_t workspace,
              Handle stream) const;

  std::shared_ptr<Context> context_;
  std::vector<std::int64_t> uids_;
  std::deque<float> constants_;
  Owned plan_;
  std::int64_t workspace_bytes_ = 0;
  double time_us_ = 0;
};

/// Whether cuDNN makes a plan of a graph for a card that is described by its properties, as JSON;
/// no card is needed. Engines that are compiled at run time want a libcuda.so.1, if only the
/// toolkit's stub of it. Throws: DeviceError.
bool has_dnn_plan(const std::string& device_json, const DnnRule& rule, const DnnPlan::Build& build);

}  // namespace onnxgrad::device::cuda

#endif  // ONNXGRAD_DEVICE_CUDA_DNN_GRAPH_H_
