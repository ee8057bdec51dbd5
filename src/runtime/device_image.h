#ifndef ONNXGRAD_RUNTIME_DEVICE_IMAGE_H_
#define ONNXGRAD_RUNTIME_DEVICE_IMAGE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "device/device.h"
#include "runtime/plan.h"

namespace onnxgrad::runtime {

/// A plan's host memory on a device that cannot read it: copies of its constants, and slots that
/// inputs are copied into before each run.
class DeviceImage {
 public:
  /// Copies the constants. `plan`, `device` and `stream` outlive this.
  DeviceImage(const Plan& plan, device::Device& device, device::Stream& stream);
  /// Waits for the work that reads it.
  ~DeviceImage();
  DeviceImage(const DeviceImage&) = delete;
  DeviceImage& operator=(const DeviceImage&) = delete;

  device::Address constant(std::size_t i) const { return constants_[i].address; }
  /// The slot of feed `i`, which each copy_feeds() fills from there.
  device::Address bind(std::size_t i, const std::byte* data);
  /// Feed `i` is read from elsewhere.
  void release(std::size_t i) { feeds_[i].on_host = nullptr; }
  void copy_feeds();

 private:
  struct Feed {
    const std::byte* on_host = nullptr;  ///< nullptr: not copied
    device::Buffer slot = {};
  };

  const Plan& plan_;
  device::Device& device_;
  device::Stream& stream_;
  std::vector<device::Buffer> constants_;
  std::vector<Feed> feeds_;
};

/// The image of a plan on a device other than the host, whose memory is read in place: nullptr.
std::unique_ptr<DeviceImage> make_device_image(const Plan& plan, device::Device& device,
                                               device::Stream& stream);

}  // namespace onnxgrad::runtime

#endif  // ONNXGRAD_RUNTIME_DEVICE_IMAGE_H_
