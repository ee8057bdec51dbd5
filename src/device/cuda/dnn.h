#ifndef ONNXGRAD_DEVICE_CUDA_DNN_H_
#define ONNXGRAD_DEVICE_CUDA_DNN_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "device/cuda/context.h"
#include "device/cuda/dnn_api.h"
#include "onnxgrad/dtype.h"

// Convolutions by cuDNN. Engines are selected by their notes; all that remain are timed once for a
// shape on the card, and the number of the fastest is kept beside the images of kernels.

namespace onnxgrad::device::cuda {

/// A convolution of x with w to y, dense tensors [N, C, space...] with two or three spatial axes;
/// the number of groups follows from the channels.
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
  bool allows_tf32 = false;  ///< else float32 is computed without tensor cores
  bool is_deterministic = true;
};

class DnnConvolution {
 public:
  /// nullptr if cuDNN is absent or no engine computes this; `declined` is then the reason.
  static std::shared_ptr<const DnnConvolution> of(const std::shared_ptr<Context>& context,
                                                  const DnnConvSpec& spec, std::string& declined);

  /// Addresses in the card's memory, aligned to 16 bytes.
  struct Operands {
    std::uint64_t x = 0;
    std::uint64_t w = 0;
    std::uint64_t y = 0;
    std::uint64_t workspace = 0;
  };
  /// Throws: DeviceError.
  void run(const Operands& operands, Handle stream) const;
  std::int64_t workspace_bytes() const { return workspace_bytes_; }

 private:
  explicit DnnConvolution(std::shared_ptr<Context> context) : context_(std::move(context)) {}
  bool choose(const DnnConvSpec& spec);
  int execute(Handle plan, const Operands& operands, Handle stream) const;
  double time_us(Handle plan, const Operands& operands, Handle stream) const;

  std::shared_ptr<Context> context_;
  Owned plan_;
  std::int64_t workspace_bytes_ = 0;
};

}  // namespace onnxgrad::device::cuda

#endif  // ONNXGRAD_DEVICE_CUDA_DNN_H_
