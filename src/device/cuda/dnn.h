#ifndef ONNXGRAD_DEVICE_CUDA_DNN_H_
#define ONNXGRAD_DEVICE_CUDA_DNN_H_

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "device/cuda/context.h"
#include "device/cuda/dnn_graph.h"
#include "device/cuda/dnn_plan.h"
#include "onnxgrad/dtype.h"

namespace onnxgrad::device::cuda {

/// A convolution of x with w to y, tensors [N, C, space...] with two or three spatial axes, dense
/// in row-major order or with the channels last; the number of groups follows from the channels.
/// With an epilogue the result is clamp(sum + bias + residual, low, high), rounded once.
struct DnnConvSpec {
  enum class Pass : std::uint8_t { kForward, kBackwardData, kBackwardWeight };

  Pass pass = Pass::kForward;
  DataType dtype = DataType::kFloat32;  ///< of all: float32, float64, float16 or bfloat16
  std::vector<std::int64_t> x = {};
  std::vector<std::int64_t> w = {};
  std::vector<std::int64_t> y = {};
  std::vector<std::int64_t> strides = {};
  std::vector<std::int64_t> dilations = {};
  std::vector<std::int64_t> pads_begin = {};
  std::vector<std::int64_t> pads_end = {};
  bool has_channels_last = false;
  bool has_bias = false;  ///< per channel of the result
  bool has_residual = false;
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool allows_tf32 = false;  ///< else float32 is computed without tensor cores
  bool is_deterministic = true;

  bool has_clamp() const {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    return low > -kInfinity || high < kInfinity;
  }
  bool has_epilogue() const { return has_bias || has_residual || has_clamp(); }
};

/// Adds the operations of a convolution. Its tensors in memory: x, w, y, the bias and the residual
/// if there are any.
void add_convolution(DnnGraph& graph, const DnnConvSpec& spec);

/// The plan of a convolution: see DnnPlan::of().
std::shared_ptr<const DnnPlan> dnn_convolution(const std::shared_ptr<Context>& context,
                                               const DnnConvSpec& spec, std::string& declined);

/// A pool of x to y, dense tensors [N, C, space...] in row-major order with two or three spatial
/// axes, or the gradient of an average.
struct DnnPoolSpec {
  int mode = dnn_api::kAverage;  ///< of dnn_api::Resample
  bool is_gradient = false;
  DataType dtype = DataType::kFloat32;
  std::vector<std::int64_t> x = {};
  std::vector<std::int64_t> y = {};
  std::vector<std::int64_t> kernel = {};
  std::vector<std::int64_t> strides = {};
  std::vector<std::int64_t> pads_begin = {};
  std::vector<std::int64_t> pads_end = {};
  bool is_deterministic = true;
};

/// Adds the operation of a pool. Its tensors in memory: x, y.
void add_pool(DnnGraph& graph, const DnnPoolSpec& spec);

/// The plan of a pool: see DnnPlan::of().
std::shared_ptr<const DnnPlan> dnn_pool(const std::shared_ptr<Context>& context,
                                        const DnnPoolSpec& spec, std::string& declined);

}  // namespace onnxgrad::device::cuda

#endif  // ONNXGRAD_DEVICE_CUDA_DNN_H_
