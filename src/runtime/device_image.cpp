#include "runtime/device_image.h"

namespace onnxgrad::runtime {

DeviceImage::DeviceImage(const Plan& plan, device::Device& device, device::Stream& stream)
    : plan_(plan), device_(device), stream_(stream), feeds_(plan.feed_bytes.size()) {
  for (const Tensor& constant : plan.constants) {
    constants_.push_back(device.allocate(constant.size_bytes()));
    stream.copy_in(constants_.back().address, constant.raw(), constant.size_bytes());
  }
}

DeviceImage::~DeviceImage() {
  try {
    stream_.synchronize();
  } catch (...) {  // NOLINT(bugprone-empty-catch): these results are not needed
  }
}

device::Address DeviceImage::bind(std::size_t i, const std::byte* data) {
  Feed& feed = feeds_[i];
  if (feed.slot.owner == nullptr) feed.slot = device_.allocate(plan_.feed_bytes[i]);
  feed.on_host = data;
  return feed.slot.address;
}

void DeviceImage::copy_feeds() {
  for (std::size_t i = 0; i < feeds_.size(); ++i) {
    const Feed& feed = feeds_[i];
    if (feed.on_host == nullptr) continue;
    stream_.copy_in(feed.slot.address, feed.on_host, plan_.feed_bytes[i]);
  }
}

std::unique_ptr<DeviceImage> make_device_image(const Plan& plan, device::Device& device,
                                               device::Stream& stream) {
  return device.is_host() ? nullptr : std::make_unique<DeviceImage>(plan, device, stream);
}

}  // namespace onnxgrad::runtime
