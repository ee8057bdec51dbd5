#ifndef ONNXGRAD_DEVICE_CUDA_CUDA_DEVICE_H_
#define ONNXGRAD_DEVICE_CUDA_CUDA_DEVICE_H_

#include <memory>
#include <string>

#include "device/cuda/context.h"
#include "device/device.h"
#include "device/linked_device.h"

namespace onnxgrad::device::cuda {

/// kDLCUDA of DLPack.
inline constexpr std::int32_t kDlCuda = 2;

/// A card of NVIDIA: docs/cuda.md.
class CudaDevice final : public Device, public LinkedDevice {
 public:
  /// Throws: DeviceError (no such card; a library is missing, with the command that installs it).
  explicit CudaDevice(int index);

  const std::shared_ptr<Context>& context() const { return context_; }
  std::string name() const override;
  bool is_host() const override { return false; }
  DlpackDevice dlpack_device() const override { return {.type = kDlCuda, .id = context_->index()}; }
  /// The alignment that cuBLASLt and loads of 16 bytes ask for; the driver's allocations have it.
  std::int64_t alignment() const override { return 256; }
  std::unique_ptr<Stream> make_stream() override;
  int num_compute_streams() const override;
  std::shared_ptr<std::byte> allocate_staging(std::int64_t bytes) override {
    return context_->allocate_pinned(bytes);
  }
  const StepKernels& step_kernels() const override;
  void link(std::shared_ptr<JobRanks> ranks) override;

 private:
  Buffer make_buffer(std::int64_t bytes) override { return context_->allocate(bytes); }

  std::shared_ptr<Context> context_;
};

}  // namespace onnxgrad::device::cuda

#endif  // ONNXGRAD_DEVICE_CUDA_CUDA_DEVICE_H_
