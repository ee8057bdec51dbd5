#include "train/testing/counted_device.h"

#include <memory>

#include "device/plugin_lock.h"
#include "train/tools/devices.h"

namespace onnxgrad::train_test {
namespace counted_device_parts {

device::testing::StreamCounts counts;

const device::DevicePlugin kPlugin{
    .lock = ONNXGRAD_PLUGIN_LOCK,
    .name = "counted",
    .count = [] { return 1; },
    .make_device = [](int /*index*/) -> std::unique_ptr<device::Device> {
      return std::make_unique<device::testing::CountingDevice>(counts);
    },
    .register_kernels = [](const opdef::KernelRegistry& cpu,
                           opdef::KernelRegistry& own) { own = cpu; }};

}  // namespace counted_device_parts

device::testing::StreamCounts& counted_device() {
  [[maybe_unused]] static const bool is_installed = [] {
    train::install_device(counted_device_parts::kPlugin);
    return true;
  }();
  return counted_device_parts::counts;
}

}  // namespace onnxgrad::train_test
