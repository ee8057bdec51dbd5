#include "device/testing/simulated_device.h"
#include "train/tools/devices.h"

namespace onnxgrad::train_test::test_device {
namespace {

[[maybe_unused]] const bool kIsInstalled = [] {
  train::install_device(device::testing::simulated_plugin());
  return true;
}();

}  // namespace
}  // namespace onnxgrad::train_test::test_device
